"""timm: its loader taken over, with the normalisation that its prefetcher does on the device."""

from __future__ import annotations

from typing import Any

from timm.data.loader import PrefetchLoader
from timm.data.mixup import FastCollateMixup
from torch import nn

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.integrations.loaders import loader_of, options_of
from leantrain.lean import Lean, Prepare
from leantrain.loader import PlannedLoader
from leantrain.methods import Method
from leantrain.ranks import world_size


def attach(
    model: nn.Module, loader: Any, method: Method | str | None = None, *, epochs: int, **options: Any
) -> tuple[Lean, PlannedLoader]:
    """Attach to what `timm.data.create_loader` made; the batches of the loader it gives are ready for `lean.loss`.

    Args:
        model: the model that is trained; under DDP the wrapped one.
        loader: of the training data, with a prefetcher or without. Its batch size is per process, as in timm.
        method, epochs, options: as for `leantrain.attach`.
    """
    prepare: Prepare | None = None
    inner = loader
    if isinstance(loader, PrefetchLoader):
        inner, prepare = loader.loader, _Prefetched(loader)
    theirs = loader_of(inner, "timm's training data")
    if isinstance(theirs.collate_fn, FastCollateMixup):
        raise LeanError(
            "timm's Mixup is in the loader's collate function, which augments at no saving and gives soft labels, "
            "where MixTrain shows two examples in one input and saves; make the loader without it, with --mixup 0 "
            '--cutmix 0, and use method="mixtrain-cutmix", or another one and label_smoothing=….'
        )
    given = {"collate": theirs.collate_fn, "prepare": prepare, **options}
    lean = Lean(model, theirs.dataset, method, epochs=epochs, **given)
    size, kept = options_of(theirs)
    return lean, lean.loader(size * world_size(), **kept)


class _Prefetched:
    """What a prefetcher does to a batch: bytes to the device, normalised and erased there."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self.loader = loader

    def __call__(self, batch: Batch) -> Batch:
        theirs = self.loader
        batch = batch.to(theirs.device)
        inputs = batch.inputs.to(theirs.img_dtype).sub_(theirs.mean).div_(theirs.std)
        return batch.with_inputs(inputs if theirs.random_erasing is None else theirs.random_erasing(inputs))

"""timm: its loader taken over, with the normalisation that its prefetcher does on the device, and its scheduler."""

from __future__ import annotations

import math
from typing import Any

from timm.data.loader import PrefetchLoader
from timm.data.mixup import FastCollateMixup
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy
from timm.scheduler.plateau_lr import PlateauLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn
from torch.utils.data import DataLoader

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.lean import Lean, Prepare
from leantrain.loader import PlannedLoader
from leantrain.methods import Method
from leantrain.ranks import world_size
from leantrain.takeover import loader_of, options_of, per_example


def attach(
    model: nn.Module, loader: Any, method: Method | str | None = None, *, epochs: int, **options: Any
) -> tuple[Lean, PlannedLoader]:
    """Attach to what `timm.data.create_loader` made; the batches of the loader it gives are ready for `lean.loss`.

    Args:
        model: the model that is trained; under DDP the wrapped one.
        loader: of the training data, with a prefetcher or without. Its batch size is per process, as in timm.
        method, epochs, options: as for `leantrain.attach`.
    """
    lean, theirs = _attached(model, loader, method, epochs, options)
    size, kept = options_of(theirs)
    return lean, lean.loader(size * world_size(), **kept)


def take_over(
    model: nn.Module,
    loader: Any,
    scheduler: Scheduler,
    method: Method | str | None = None,
    *,
    epochs: int,
    criterion: nn.Module | None = None,
    updates: int | None = None,
    **options: Any,
) -> tuple[Lean, PlannedLoader, DrivenScheduler]:
    """Put a method behind the loader and the scheduler of timm's `train.py` or its like; see `leantrain.take_over`.

    Args:
        model, loader, method, options: as for `attach`.
        scheduler: what `create_scheduler_v2` made, driven by progress from now on.
        epochs: how many the run stands for: those that `create_scheduler_v2` says.
        criterion: the script's own; timm's label smoothing and torch's losses are taken over, others refused.
        updates: how many updates an epoch of plain training has, where gradients accumulate; by default its batches.
    """
    lean, theirs = _attached(model, loader, method, epochs, {**_smoothed(criterion), **options})
    updates = updates or len(theirs)
    if lean.decides_inside and updates < len(theirs):
        raise LeanError(
            f"{lean.method} decides inside the epoch what is trained on, and gradients accumulate over "
            f"{math.ceil(len(theirs) / updates)} batches; set --grad-accum-steps 1, or use a method that decides "
            "before the epoch."
        )
    lean.save_with(scheduler.optimizer)
    size, kept = options_of(theirs)
    ours = lean.loader(size * world_size(), unpacked=True, **kept)
    return lean, ours, DrivenScheduler(scheduler, lean, updates)


class DrivenScheduler:
    """A timm scheduler that goes by the run's progress instead of the epochs and updates that it is told.

    So it comes down fully whatever is skipped. It is asked for the value of an epoch or an update of plain training.
    """

    def __init__(self, scheduler: Scheduler, lean: Lean, updates: int) -> None:
        self.scheduler, self._lean, self._updates = scheduler, lean, updates

    def step(self, epoch: int, metric: float | None = None) -> None:
        if isinstance(self.scheduler, PlateauLRScheduler):  # it waits for a metric, and counts nothing
            self.scheduler.step(epoch, metric)
        else:
            self.scheduler.step(self._reached(self._lean.epochs), metric)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        self.scheduler.step_update(self._reached(self._lean.epochs * self._updates), metric)

    def _reached(self, count: int) -> int:
        return math.floor(self._lean.progress * count + 1e-9)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def _attached(
    model: nn.Module, loader: Any, method: Method | str | None, epochs: int, options: dict[str, Any]
) -> tuple[Lean, DataLoader[Any]]:
    """The run on what a timm loader loads, and the DataLoader in it."""
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
    return Lean(model, theirs.dataset, method, epochs=epochs, **given), theirs


def _smoothed(criterion: nn.Module | None) -> dict[str, Any]:
    """The options of `attach` that stand for a criterion of timm's `train.py`."""
    if isinstance(criterion, LabelSmoothingCrossEntropy):
        return {"label_smoothing": criterion.smoothing}
    if criterion is not None and type(criterion).__module__.startswith("timm."):
        raise LeanError(
            f"the criterion is timm's {type(criterion).__name__}, which gives no loss per example; train with "
            "cross-entropy (no --mixup, --cutmix, --bce-loss or --jsd-loss), or give your own with one."
        )
    return per_example({"criterion": criterion})


class _Prefetched:
    """What a prefetcher does to a batch: bytes to the device, normalised and erased there."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self.loader = loader

    def __call__(self, batch: Batch) -> Batch:
        theirs = self.loader
        batch = batch.to(theirs.device)
        inputs = batch.inputs.to(theirs.img_dtype).sub_(theirs.mean).div_(theirs.std)
        return batch.with_inputs(inputs if theirs.random_erasing is None else theirs.random_erasing(inputs))

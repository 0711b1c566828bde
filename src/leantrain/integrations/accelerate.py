"""Accelerate: a loader that tells an Accelerator where an epoch ends, as its own do, and a script's taken over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin, SeedableRandomSampler, get_sampler
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import GradientState
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from leantrain.errors import LeanError
from leantrain.lean import Lean
from leantrain.loader import PlannedLoader
from leantrain.methods import Method
from leantrain.takeover import driven, loading_options, per_example


def take_over(
    model: nn.Module,
    loader: Any,
    scheduler: AcceleratedScheduler | None,
    method: Method | str | None = None,
    *,
    epochs: int,
    steps: int | None = None,
    **options: Any,
) -> tuple[Lean, LeanLoader, Any]:
    """Put a method behind what `accelerator.prepare` gave, right before the loop; see `leantrain.take_over`.

    Args:
        model: the prepared model.
        loader: the prepared loader of the training data.
        scheduler: the prepared one, driven by progress from now on; None where there is none.
        method, epochs, steps, options: as for `leantrain.take_over`.
    """
    sampler = get_sampler(loader) if isinstance(loader, DataLoader) else loader  # type: ignore[no-untyped-call]
    if type(sampler) not in (RandomSampler, SequentialSampler, SeedableRandomSampler):
        raise LeanError(
            f"the loader is a {type(loader).__name__} with a {type(sampler).__name__}, but must be a DataLoader with "
            "shuffle=True and a batch_size, as accelerator.prepare gives it; the plan decides what forms a batch."
        )
    total = loader.total_batch_size
    options = per_example({"collate": loader.collate_fn, **options})
    lean = Lean(model, loader.dataset, method, epochs=epochs, **options)
    if scheduler is not None:
        scheduler.scheduler = driven(lean, scheduler.scheduler, steps)
    return lean, LeanLoader(lean.loader(total, unpacked=True, **loading_options(loader))), scheduler


class LeanLoader(DataLoaderStateMixin):
    """A run's loader for `accelerator.accumulate`, which steps at the end of an epoch too, however many batches it has.

    Without accumulation the loader itself does. Either may be given to `accelerator.prepare`, which leaves it as it is:
    its batches are planned for all processes already, and `lean.loss` moves them to where the model is.
    """

    def __init__(self, loader: PlannedLoader) -> None:
        self.loader = loader
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[Any]:
        self.begin()  # type: ignore[no-untyped-call]
        try:
            batches = iter(self.loader)
            if self.loader.lean.decides_inside:  # which one is the last is known once there is no other
                yield from self._marked_ahead(batches)
            else:
                left = len(self.loader)
                for batch in batches:
                    left -= 1
                    self.end_of_dataloader = left == 0
                    yield batch
        finally:
            self.end()  # type: ignore[no-untyped-call]

    def _marked_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        held = next(batches, None)
        while held is not None:
            following = next(batches, None)
            self.end_of_dataloader = following is None
            yield held
            held = following

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

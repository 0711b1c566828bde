"""Accelerate: a loader that tells an Accelerator where an epoch ends, as its own do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

from leantrain.batch import Batch
from leantrain.loader import PlannedLoader


class LeanLoader(DataLoaderStateMixin):
    """A run's loader for `accelerator.accumulate`, which steps at the end of an epoch too, however many batches it has.

    Without accumulation the loader itself does. Either may be given to `accelerator.prepare`, which leaves it as it is:
    its batches are planned for all processes already, and `lean.loss` moves them to where the model is.
    """

    def __init__(self, loader: PlannedLoader) -> None:
        self.loader = loader
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[Batch]:
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

    def _marked_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
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

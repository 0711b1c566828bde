"""Resizing: all examples, shown smaller. The cost of an input goes with its pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.options import option
from leantrain.plan import Form, Groups, Plan, make_plan


def _shrunk_plan(ledger: Ledger, moment: Moment, scale: float, rng: torch.Generator) -> Plan:
    groups = Groups(torch.arange(len(ledger), dtype=torch.int32), Form(scale=scale))
    return make_plan(moment.epoch, [groups], moment.batch_size, rng)


@dataclass(frozen=True)
class InputScaling(Method):
    """Show every example at one smaller size throughout; the papers' rival of equal runtime scales down 1.4 times."""

    name: ClassVar[str] = "input-scaling"
    shrinks: ClassVar[bool] = True
    size: int | None = option(None, "pixels along the shorter side; if not given, the full size over 1.4", low=1)

    def scales(self, side: int) -> tuple[float, ...]:
        if self.size is not None and self.size > side:
            raise LeanError(f"size is {self.size}, but the images have {side} pixels; give a smaller one.")
        return (1 / 1.4 if self.size is None else self.size / side,)

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        return _shrunk_plan(ledger, moment, self.scales(moment.side)[0], rng), state


@dataclass(frozen=True)
class ProgressiveResizing(Method):
    """Show examples small at first and larger as training goes on; the last part at full size."""

    name: ClassVar[str] = "progressive-resizing"
    shrinks: ClassVar[bool] = True
    first: float = option(0.5, "side at the start, as a share of the full one", above=0, high=1)
    second: float = option(0.75, "side in the middle part", above=0, high=1)
    small: float = option(0.4, "share of the run at the first size", low=0, high=1)
    middle: float = option(0.4, "share of the run at the second size; the rest is at full size", low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.small + self.middle > 1:
            raise LeanError(f"small={self.small} and middle={self.middle} are more than the whole run; lower one.")

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        scale = self.scale_at(moment.progress)
        # The last epoch is whole, however few there are: the last by number, or the one that the budget will cut.
        cost = scale**2 * (len(ledger) + moment.batch_size / 2)  # what is left afterwards must be worth a batch
        last = moment.epoch + 1 == moment.epochs if math.isinf(moment.left) else cost >= moment.left
        return _shrunk_plan(ledger, moment, 1.0 if last else scale, rng), state

    def scales(self, side: int) -> tuple[float, ...]:
        return self.first, self.second

    def scale_at(self, progress: float) -> float:
        """The side at that point of the run."""
        if progress < self.small - 1e-9:
            return self.first
        return self.second if progress < self.small + self.middle - 1e-9 else 1.0

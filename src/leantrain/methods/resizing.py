"""Resizing: all examples, shown smaller. The cost of an input goes with its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.methods.growing import Growth
from leantrain.options import option
from leantrain.shrinking import Shrunk


@register_method
@dataclass(frozen=True)
class InputScaling(Method):
    """Show every example at one smaller size throughout; the papers' rival of equal runtime scales down 1.4 times."""

    name: ClassVar[str] = "input-scaling"
    after_mixing: ClassVar[bool] = True
    size: int | None = option(None, "pixels along the shorter side; if not given, the full size over 1.4", low=1)

    @property
    def expected_share(self) -> float | None:
        return None if self.size is not None else 1 / 1.4**2

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(shrunk=self._scale(side)),)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.show(Shrunk.name, self._scale(moment.side)), state

    def _scale(self, side: int) -> float:
        if self.size is None or not side:  # where there are no images, the form itself says so
            return 1 / 1.4
        if self.size > side:
            raise LeanError(f"size is {self.size}, but the images have {side} pixels; give a smaller one.")
        return self.size / side


@register_method
@dataclass(frozen=True)
class ProgressiveResizing(Method):
    """Show examples small at first and larger as training goes on; the last part at full size."""

    name: ClassVar[str] = "progressive-resizing"
    after_mixing: ClassVar[bool] = True
    first: float = option(0.5, "side at the start, as a share of the full one", above=0, high=1)
    second: float = option(0.75, "side in the middle part", above=0, high=1)
    small: float = option(0.2, "share of the run's cost that is spent at the first size", low=0, high=1)
    middle: float = option(
        0.4, "share of the run's cost that is spent at the second size; the rest is at full size", low=0, high=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.small + self.middle > 1:
            raise LeanError(f"small={self.small} and middle={self.middle} are more than the whole run; lower one.")

    @property
    def expected_share(self) -> float:
        return 1.0 / self._growth.passes

    def forms(self, side: int) -> tuple[Form, ...]:
        return self._growth.forms

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return self._growth.show(draft, moment), state

    @property
    def _growth(self) -> Growth:
        values, shares = (self.first, self.second, 1.0), (self.small, self.middle, 1.0 - self.small - self.middle)
        return Growth(Shrunk.name, values, shares)

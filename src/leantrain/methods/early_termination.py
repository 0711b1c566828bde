"""Early termination: plain training that stops before its schedule has decayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option

SHARE = 0.7
"""Where a run ends that names neither a share nor an accuracy: about what MixTrain costs in its paper."""


@register_method
@dataclass(frozen=True)
class EarlyTermination(Method):
    """Stop the plain schedule before its end: at a share of the run, or once an accuracy is reached."""

    name: ClassVar[str] = "early-termination"
    after_mixing: ClassVar[bool] = True
    at: float | None = option(
        None,
        f"share of the run after which it ends; {SHARE} if there is no accuracy either",
        above=0.0,
        high=1.0,
    )
    accuracy: float | None = option(None, "end when held-out data reach it; needs --validation", above=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.start, self.until) != (0.0, 1.0):
            raise LeanError(f"early-termination has no start={self.start} and until={self.until}; give at=SHARE.")

    @property
    def end(self) -> float:
        if self.at is not None:
            return self.at
        return SHARE if self.accuracy is None else 1.0

    @property
    def wanted_accuracy(self) -> float | None:
        return self.accuracy

    @property
    def expected_share(self) -> float | None:
        return self.end if self.accuracy is None else None

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft, state

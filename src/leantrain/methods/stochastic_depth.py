"""Stochastic depth: every batch goes through some of the residual blocks only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.depth import Depth
from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option


@register_method
@dataclass(frozen=True)
class StochasticDepth(Method):
    """Skip residual blocks at random, batch by batch and late ones more often, so that less is computed."""

    name: ClassVar[str] = "stochastic-depth"
    after_mixing: ClassVar[bool] = True
    skip: float = option(
        0.25, "share of the work skipped on average; the paper's survival of 0.5 is about 0.25", above=0.0, below=1.0
    )

    @property
    def expected_share(self) -> float:
        return 1.0 - self.skip

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(depth=1.0 - self.skip),)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.show(Depth.name, 1.0 - self.skip), state

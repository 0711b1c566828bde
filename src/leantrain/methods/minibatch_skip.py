"""Mini-batch skipping: a random share of the batches is dropped each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option


@register_method
@dataclass(frozen=True)
class MinibatchSkip(Method):
    """Drop a random share of the mini-batches each epoch; the papers' rival of equal runtime drops 30 %."""

    name: ClassVar[str] = "minibatch-skip"
    after_mixing: ClassVar[bool] = True
    skip: float = option(0.3, "share of the mini-batches dropped each epoch", low=0.0, below=1.0)

    @property
    def expected_share(self) -> float:
        return 1.0 - self.skip

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.skip_batches(self.skip), state

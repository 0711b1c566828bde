"""Random-Backprop: a random share of the examples each epoch, the dropped ones never forwarded."""

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
class RandomBackprop(Method):
    """Train on a random share of the examples each epoch, drawn anew; the dropped ones cost nothing."""

    name: ClassVar[str] = "random-backprop"
    keep: float = option(0.5, "share of the examples trained on each epoch", above=0.0, high=1.0)
    per_batch: bool = option(
        False,
        "keep that share of every mini-batch, so that steps stay as many (the poster); else refill batches",
    )

    @property
    def expected_share(self) -> float:
        return self.keep

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        kept = max(1, round(self.keep * len(draft)))
        drawn = draft.take(torch.randperm(len(draft), generator=rng, dtype=torch.int32)[:kept])
        return drawn.smaller_batches(self.keep, moment.batch_size) if self.per_batch else drawn, state

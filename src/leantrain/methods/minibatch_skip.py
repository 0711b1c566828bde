"""Mini-batch skipping: a random share of the batches is dropped each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.options import option
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class MinibatchSkip(Method):
    """Drop a random share of the mini-batches each epoch; the papers' rival of equal runtime drops 30 %."""

    name: ClassVar[str] = "minibatch-skip"
    skip: float = option(0.3, "share of the mini-batches dropped each epoch", low=0.0, below=1.0)

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        index = torch.arange(len(ledger), dtype=torch.int32)
        plan = whole_plan(moment.epoch, index, moment.batch_size, rng)
        kept = max(1, round((1.0 - self.skip) * len(plan)))
        # Batches are in random order, so the first ones are random ones.
        return plan.truncated(float(plan.costs()[:kept].sum())), state

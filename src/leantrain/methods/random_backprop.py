"""Random-Backprop: a random share of the examples each epoch, the dropped ones never forwarded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.methods.pruning import available
from leantrain.options import option
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class RandomBackprop(Method):
    """Train on a random share of the examples each epoch, drawn anew; the dropped ones cost nothing."""

    name: ClassVar[str] = "random-backprop"
    keep: float = option(0.5, "share of the examples trained on each epoch", above=0.0, high=1.0)

    @property
    def share(self) -> float:
        return self.keep

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        index = available(ledger)
        kept = max(1, round(self.keep * len(index)))
        chosen = index[torch.randperm(len(index), generator=rng, dtype=torch.int32)[:kept]]
        return whole_plan(moment.epoch, chosen, moment.batch_size, rng), state

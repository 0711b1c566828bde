"""RS2, repeated sampling of random subsets: a fresh random fraction every epoch, none twice before all were seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.options import option
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class RS2(Method):
    """Train on a fresh random fraction each epoch, none twice before all were seen; the control of any selection."""

    name: ClassVar[str] = "rs2"
    keep: float = option(0.5, "share of the examples trained on each epoch", above=0.0, high=1.0)

    def init(self, ledger: Ledger) -> State:
        return {"queue": torch.empty(0, dtype=torch.int32)}

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        kept = max(1, round(self.keep * len(ledger)))
        queue = state["queue"]
        if len(queue) < kept:
            # The rest of the round first, then a new round without these: no example twice in one epoch.
            fresh = torch.randperm(len(ledger), generator=rng, dtype=torch.int32)
            waiting = torch.zeros(len(ledger), dtype=torch.bool)
            waiting[queue] = True
            queue = torch.cat([queue, fresh[~waiting[fresh]], fresh[waiting[fresh]]])
        plan = whole_plan(moment.epoch, queue[:kept], moment.batch_size, rng)
        return plan, {"queue": queue[kept:].clone()}

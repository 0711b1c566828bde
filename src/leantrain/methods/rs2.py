"""RS2, repeated sampling of random subsets: a fresh random fraction every epoch, none twice before all were seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option
from leantrain.plan import at


@register_method
@dataclass(frozen=True)
class RS2(Method):
    """Train on a fresh random fraction each epoch, none twice before all were seen; the control of any selection."""

    name: ClassVar[str] = "rs2"
    keep: float = option(0.5, "share of the examples trained on each epoch", above=0.0, high=1.0)

    @property
    def expected_share(self) -> float:
        return self.keep

    def init(self, ledger: Ledger) -> State:
        return {"queue": torch.empty(0, dtype=torch.int32)}

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        index = draft.index
        place = torch.full((len(ledger),), -1, dtype=torch.int32)  # of every example in the draft
        place[index] = torch.arange(len(index), dtype=torch.int32)
        kept = max(1, round(self.keep * len(index)))
        queue = state["queue"]
        places = at(place, queue)
        if int((places >= 0).sum()) < kept:
            # The rest of the round first, then a new round without these: no example twice in one epoch. Who is not in
            # the draft loses the turn, or the queue would grow with every round.
            queue = queue[places >= 0]
            fresh = torch.randperm(len(ledger), generator=rng, dtype=torch.int32)
            waiting = torch.zeros(len(ledger), dtype=torch.bool)
            waiting[queue] = True
            again = at(waiting, fresh)
            queue = torch.cat([queue, fresh[~again], fresh[again]])
            places = at(place, queue)
        here = (places >= 0).nonzero().squeeze(1)[:kept]
        left = torch.ones(len(queue), dtype=torch.bool)
        left[here] = False
        return draft.take(at(places, here)), {"queue": queue[left]}

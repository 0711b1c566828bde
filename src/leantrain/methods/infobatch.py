"""InfoBatch: prune easy examples at random each epoch, and weigh the kept ones up, so that gradients stay unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.options import option
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class InfoBatch(Method):
    """Drop a random share of the examples below the mean loss, weigh the rest of them up; the last epochs are full."""

    name: ClassVar[str] = "infobatch"
    prune: float = option(0.5, "share dropped of the examples below the mean loss; the paper: 0.5", low=0.0, below=1.0)
    full: float = option(0.125, "share of the run, at its end, on all examples; the paper: 0.125", low=0.0, high=1.0)

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        loss = ledger["loss"].cpu()
        known = loss.isfinite()
        everything = torch.arange(len(ledger), dtype=torch.int32)
        # Full is every epoch that reaches into the last share: so it is never cut short, however few epochs there are.
        ending = moment.progress + 1.0 / moment.epochs > 1.0 - self.full + 1e-9
        if ending or not known.any():
            return whole_plan(moment.epoch, everything, moment.batch_size, rng), state
        easy = known & (loss < loss[known].mean(dtype=torch.float64))
        dropped = easy & (torch.rand(len(loss), generator=rng) < self.prune)
        kept = ~dropped  # never none: an example at the mean or above is not easy
        weight = torch.where(easy, 1.0 / (1.0 - self.prune), 1.0)[kept]
        return whole_plan(moment.epoch, everything[kept], moment.batch_size, rng, weight), state

"""EL2N: prune the examples whose error vector is shortest early in training, once, before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Moment, State
from leantrain.methods.pruning import Pruning, available
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class EL2N(Pruning):
    """Prune the lowest EL2N scores, ‖softmax − one-hot‖ over a few short-trained models, and train on the rest."""

    name: ClassVar[str] = "el2n"

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        return whole_plan(moment.epoch, available(ledger), moment.batch_size, rng), state

"""Plain training: every example once an epoch. What every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.plan import Plan, whole_plan


@dataclass(frozen=True)
class SGD(Method):
    """Plain training: every example once an epoch, whole, in random order (with whatever optimiser is chosen)."""

    name: ClassVar[str] = "sgd"

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        return whole_plan(moment.epoch, torch.arange(len(ledger), dtype=torch.int32), moment.batch_size, rng), state

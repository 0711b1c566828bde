"""Forgetting: how often training loses an example again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leantrain.scoring.kinds.base import RecordedScore, register_score


def forgetting(correct: Tensor) -> Tensor:
    """How often each example went from right to wrong, over the rows (epochs, N) of whether it was right.

    One that was never right has the number of epochs, which no count of changes reaches.
    """
    forgotten = (correct[:-1] & ~correct[1:]).sum(0)
    return torch.where(correct.any(0), forgotten, len(correct)).float()


@register_score
@dataclass(frozen=True)
class Forgetting(RecordedScore):
    """How often an example went from right to wrong between epochs; never right: the number of epochs."""

    name: ClassVar[str] = "forgetting"
    meaning: ClassVar[str] = "how often it went from right to wrong; never right: the number of epochs"
    epochs: ClassVar[int] = 5  # it has to see an example learnt and lost again
    least_epochs: ClassVar[int] = 2  # nothing is forgotten within one epoch

    def from_records(self, correct: Tensor) -> Tensor:
        return forgetting(correct)

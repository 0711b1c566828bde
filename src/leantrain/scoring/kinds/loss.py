"""Loss: the cross-entropy of an example's label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.scoring.kinds.base import Score, logits_of, register_score


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy per example, without smoothing."""
    return F.cross_entropy(logits.float(), targets, reduction="none")


@register_score
@dataclass(frozen=True)
class Loss(Score):
    """The cross-entropy of an example's label, without smoothing."""

    name: ClassVar[str] = "loss"
    meaning: ClassVar[str] = "cross-entropy"

    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        return loss(logits_of(model(inputs)), targets)

"""EL2N: the length of the error vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.scoring.kinds.base import Score, logits_of, register_score


def el2n(logits: Tensor, targets: Tensor) -> Tensor:
    """The length of the error vector, ‖softmax − one-hot‖₂, per example."""
    error = logits.float().softmax(1) - F.one_hot(targets, logits.shape[1])
    length: Tensor = torch.linalg.vector_norm(error, dim=1)
    return length


@register_score
@dataclass(frozen=True)
class EL2N(Score):
    """‖softmax − one-hot‖₂ of an example, between 0 and √2."""

    name: ClassVar[str] = "el2n"
    title: ClassVar[str] = "EL2N"
    meaning: ClassVar[str] = "EL2N: length of softmax − one-hot"

    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        return el2n(logits_of(model(inputs)), targets)

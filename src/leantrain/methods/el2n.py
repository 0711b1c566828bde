"""EL2N: prune the examples whose error vector is shortest early in training, once, before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leantrain.methods.base import register_method
from leantrain.methods.pruning import Pruning


@register_method
@dataclass(frozen=True)
class EL2N(Pruning):
    """Prune the lowest EL2N scores, ‖softmax − one-hot‖ over a few short-trained models, and train on the rest."""

    name: ClassVar[str] = "el2n"
    score: ClassVar[str] = "el2n"

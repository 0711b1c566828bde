"""GraNd: as EL2N, by the norm of each example's own gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leantrain.methods.base import register_method
from leantrain.methods.pruning import Pruning


@register_method
@dataclass(frozen=True)
class GraNd(Pruning):
    """Prune the examples with the smallest gradients, over a few short-trained models, and train on the rest."""

    name: ClassVar[str] = "grand"
    score: ClassVar[str] = "grand"

"""GraNd: as EL2N, by the norm of each example's own gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leantrain.cost import BACKWARD, FORWARD
from leantrain.methods.el2n import EL2N


@dataclass(frozen=True)
class GraNd(EL2N):
    """Prune the examples with the smallest gradients, over a few short-trained models, and train on the rest."""

    name: ClassVar[str] = "grand"
    kind: ClassVar[str] = "grand"
    pass_cost: ClassVar[float] = FORWARD + BACKWARD

"""The Diet methods: prune by EL2N first, then choose each epoch among what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leantrain.methods.pruning import Pruning
from leantrain.methods.random_backprop import RandomBackprop
from leantrain.methods.selective_backprop import SelectiveBackprop


@dataclass(frozen=True)
class DietSB(Pruning, SelectiveBackprop):
    """EL2N pruning, then Selective-Backprop on the rest: `keep` is the share of the rest."""

    name: ClassVar[str] = "diet-sb"


@dataclass(frozen=True)
class DietRandom(Pruning, RandomBackprop):
    """EL2N pruning, then Random-Backprop on the rest: `keep` is the share of the rest."""

    name: ClassVar[str] = "diet-random"

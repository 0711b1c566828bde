"""The Diet methods: prune by EL2N first, then choose each epoch among what is left."""

from __future__ import annotations

from leantrain.methods.base import register_method
from leantrain.methods.chain import preset
from leantrain.methods.el2n import EL2N
from leantrain.methods.random_backprop import RandomBackprop
from leantrain.methods.selective_backprop import SelectiveBackprop

DietSB = register_method(
    preset(
        "diet-sb",
        "EL2N pruning, then Selective-Backprop on the rest: `keep` is the share of the rest.",
        EL2N,
        SelectiveBackprop,
    )
)
DietRandom = register_method(
    preset(
        "diet-random",
        "EL2N pruning, then Random-Backprop on the rest: `keep` is the share of the rest.",
        EL2N,
        RandomBackprop,
    )
)

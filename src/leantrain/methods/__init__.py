"""Methods by name: one file each, a config dataclass with pure functions."""

from __future__ import annotations

from leantrain.methods.base import Method, Moment, State
from leantrain.methods.infobatch import InfoBatch
from leantrain.methods.minibatch_skip import MinibatchSkip
from leantrain.methods.mixtrain import MixTrain, MixTrainCutMix, MixTrainMixUp
from leantrain.methods.random_backprop import RandomBackprop
from leantrain.methods.rs2 import RS2
from leantrain.methods.sgd import SGD
from leantrain.options import parse_named

_KINDS: tuple[type[Method], ...] = (SGD, MixTrainCutMix, MixTrainMixUp, RandomBackprop, RS2, InfoBatch, MinibatchSkip)
METHODS: dict[str, type[Method]] = {kind.name: kind for kind in _KINDS}
ALIASES: dict[str, type[Method]] = {kind.alias: kind for kind in METHODS.values() if kind.alias}


def parse_method(text: str) -> Method:
    """A method from its name and options, for example `random-backprop[keep=0.25]`."""
    return parse_named(text, {**METHODS, **ALIASES}, "method")


__all__ = [
    "ALIASES",
    "METHODS",
    "RS2",
    "SGD",
    "InfoBatch",
    "Method",
    "MinibatchSkip",
    "MixTrain",
    "Moment",
    "RandomBackprop",
    "State",
    "parse_method",
]

"""Methods by name: one file each, a config dataclass with pure functions."""

from __future__ import annotations

from leantrain.methods.autoassist import AutoAssist
from leantrain.methods.base import Method, Moment, Seen, State, Wanted
from leantrain.methods.diet import DietRandom, DietSB
from leantrain.methods.el2n import EL2N
from leantrain.methods.grand import GraNd
from leantrain.methods.infobatch import InfoBatch
from leantrain.methods.minibatch_skip import MinibatchSkip
from leantrain.methods.mixtrain import MixTrain, MixTrainCutMix, MixTrainMixUp
from leantrain.methods.oracle_skip import OracleSkip
from leantrain.methods.pruning import Pruning
from leantrain.methods.random_backprop import RandomBackprop
from leantrain.methods.resizing import InputScaling, ProgressiveResizing
from leantrain.methods.rs2 import RS2
from leantrain.methods.selective_backprop import SelectiveBackprop
from leantrain.methods.sgd import SGD
from leantrain.options import parse_named

_KINDS: tuple[type[Method], ...] = (
    SGD,
    MixTrainCutMix,
    MixTrainMixUp,
    ProgressiveResizing,
    InputScaling,
    RandomBackprop,
    RS2,
    InfoBatch,
    SelectiveBackprop,
    AutoAssist,
    EL2N,
    GraNd,
    DietSB,
    DietRandom,
    MinibatchSkip,
    OracleSkip,
)
METHODS: dict[str, type[Method]] = {kind.name: kind for kind in _KINDS}
ALIASES: dict[str, type[Method]] = {kind.alias: kind for kind in METHODS.values() if kind.alias}


def parse_method(text: str) -> Method:
    """A method from its name and options, for example `random-backprop[keep=0.25]`."""
    return parse_named(text, {**METHODS, **ALIASES}, "method")


__all__ = [
    "ALIASES",
    "EL2N",
    "METHODS",
    "RS2",
    "SGD",
    "AutoAssist",
    "DietRandom",
    "DietSB",
    "GraNd",
    "InfoBatch",
    "InputScaling",
    "Method",
    "MinibatchSkip",
    "MixTrain",
    "Moment",
    "OracleSkip",
    "ProgressiveResizing",
    "Pruning",
    "RandomBackprop",
    "Seen",
    "SelectiveBackprop",
    "State",
    "Wanted",
    "parse_method",
]

"""Methods: one file each, a config dataclass with pure functions, which registers itself; and chains of them."""

from __future__ import annotations

# In the order in which lists show them.
# isort: off
from leantrain.methods.base import (
    METHODS,
    Condenses,
    Ends,
    Learns,
    Method,
    Mixes,
    Moment,
    NeedsLosses,
    NeedsScores,
    Offers,
    Panel,
    Reason,
    Reshapes,
    ScoreRequest,
    ScoresGiven,
    Seen,
    Selects,
    Shows,
    State,
    Thins,
    register_method,
)
from leantrain.methods.plain import SGD, Plain
from leantrain.methods.lean import LeanMethod
from leantrain.methods.mixtrain import MixTrain, MixTrainCutMix, MixTrainMixUp
from leantrain.methods.augmentation import CutMix, MixUp
from leantrain.methods.resizing import InputScaling, ProgressiveResizing
from leantrain.methods.fixres import FixRes
from leantrain.methods.freezing import Freezing
from leantrain.methods.token_dropping import TokenDropping
from leantrain.methods.random_backprop import RandomBackprop
from leantrain.methods.rs2 import RS2
from leantrain.methods.infobatch import InfoBatch
from leantrain.methods.selective_backprop import SelectiveBackprop
from leantrain.methods.autoassist import AutoAssist
from leantrain.methods.el2n import EL2N
from leantrain.methods.grand import GraNd
from leantrain.methods.pruning import Prune, Pruning
from leantrain.methods.diet import DietRandom, DietSB
from leantrain.methods.coreset import Coreset, FacilityLocation, Glister, GraNdCoreset
from leantrain.methods.minibatch_skip import MinibatchSkip
from leantrain.methods.early_termination import EarlyTermination
from leantrain.methods.stochastic_depth import StochasticDepth
from leantrain.methods.prune_train import PruneTrain
from leantrain.methods.oracle_skip import OracleSkip
from leantrain.methods.chain import (
    Chain,
    Preset,
    as_method,
    chain,
    choose_method,
    for_a_budget,
    parse_method,
    parts_of,
    preset,
)

# isort: on

__all__ = [
    "EL2N",
    "METHODS",
    "RS2",
    "SGD",
    "AutoAssist",
    "Chain",
    "Condenses",
    "Coreset",
    "CutMix",
    "DietRandom",
    "DietSB",
    "EarlyTermination",
    "Ends",
    "FacilityLocation",
    "FixRes",
    "Freezing",
    "Glister",
    "GraNd",
    "GraNdCoreset",
    "InfoBatch",
    "InputScaling",
    "LeanMethod",
    "Learns",
    "Method",
    "MinibatchSkip",
    "MixTrain",
    "MixTrainCutMix",
    "MixTrainMixUp",
    "MixUp",
    "Mixes",
    "Moment",
    "NeedsLosses",
    "NeedsScores",
    "Offers",
    "OracleSkip",
    "Panel",
    "Plain",
    "Preset",
    "ProgressiveResizing",
    "Prune",
    "PruneTrain",
    "Pruning",
    "RandomBackprop",
    "Reason",
    "Reshapes",
    "ScoreRequest",
    "ScoresGiven",
    "Seen",
    "SelectiveBackprop",
    "Selects",
    "Shows",
    "State",
    "StochasticDepth",
    "Thins",
    "TokenDropping",
    "as_method",
    "chain",
    "choose_method",
    "for_a_budget",
    "parse_method",
    "parts_of",
    "preset",
    "register_method",
]

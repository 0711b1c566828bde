"""leantrain: train image classifiers on fewer and cheaper examples, with the accuracy kept.

The public names are loaded when first used, so that `import leantrain` is fast and torch comes only when needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from leantrain.lazy import BeforeImport, lazy_names

if TYPE_CHECKING:
    from leantrain.batch import Batch as Batch
    from leantrain.draft import Draft as Draft
    from leantrain.errors import LeanError as LeanError
    from leantrain.forms import Answer as Answer
    from leantrain.forms import Form as Form
    from leantrain.forms import FormKind as FormKind
    from leantrain.forms import register_form as register_form
    from leantrain.head import fit_head as fit_head
    from leantrain.lean import Lean as Lean
    from leantrain.lean import attach as attach
    from leantrain.ledger import Ledger as Ledger
    from leantrain.methods import EL2N as EL2N
    from leantrain.methods import RS2 as RS2
    from leantrain.methods import SGD as SGD
    from leantrain.methods import AutoAssist as AutoAssist
    from leantrain.methods import Chain as Chain
    from leantrain.methods import CutMix as CutMix
    from leantrain.methods import DietRandom as DietRandom
    from leantrain.methods import DietSB as DietSB
    from leantrain.methods import EarlyTermination as EarlyTermination
    from leantrain.methods import FacilityLocation as FacilityLocation
    from leantrain.methods import FixRes as FixRes
    from leantrain.methods import Freezing as Freezing
    from leantrain.methods import Glister as Glister
    from leantrain.methods import GraNd as GraNd
    from leantrain.methods import GraNdCoreset as GraNdCoreset
    from leantrain.methods import InfoBatch as InfoBatch
    from leantrain.methods import InputScaling as InputScaling
    from leantrain.methods import Method as Method
    from leantrain.methods import MinibatchSkip as MinibatchSkip
    from leantrain.methods import MixTrain as MixTrain
    from leantrain.methods import MixUp as MixUp
    from leantrain.methods import Moment as Moment
    from leantrain.methods import OracleSkip as OracleSkip
    from leantrain.methods import Plain as Plain
    from leantrain.methods import ProgressiveResizing as ProgressiveResizing
    from leantrain.methods import Prune as Prune
    from leantrain.methods import PruneTrain as PruneTrain
    from leantrain.methods import RandomBackprop as RandomBackprop
    from leantrain.methods import SelectiveBackprop as SelectiveBackprop
    from leantrain.methods import StochasticDepth as StochasticDepth
    from leantrain.methods import chain as chain
    from leantrain.methods import preset as preset
    from leantrain.methods import register_method as register_method
    from leantrain.options import option as option
    from leantrain.plan import Plan as Plan
    from leantrain.scoring import Score as Score
    from leantrain.scoring import Scores as Scores
    from leantrain.scoring import register_score as register_score
    from leantrain.scoring import score as score
    from leantrain.takeover import take_over as take_over
    from leantrain.tuning import keep_statistics as keep_statistics

__version__ = "0.1.0"

_HOMES = {
    "Answer": "forms",
    "AutoAssist": "methods",
    "Batch": "batch",
    "Chain": "methods",
    "CutMix": "methods",
    "DietRandom": "methods",
    "DietSB": "methods",
    "Draft": "draft",
    "EL2N": "methods",
    "EarlyTermination": "methods",
    "FacilityLocation": "methods",
    "FixRes": "methods",
    "Freezing": "methods",
    "Form": "forms",
    "FormKind": "forms",
    "Glister": "methods",
    "GraNd": "methods",
    "GraNdCoreset": "methods",
    "InfoBatch": "methods",
    "InputScaling": "methods",
    "Lean": "lean",
    "LeanError": "errors",
    "Ledger": "ledger",
    "Method": "methods",
    "MinibatchSkip": "methods",
    "MixTrain": "methods",
    "MixUp": "methods",
    "Moment": "methods",
    "OracleSkip": "methods",
    "Plain": "methods",
    "Plan": "plan",
    "ProgressiveResizing": "methods",
    "Prune": "methods",
    "PruneTrain": "methods",
    "RS2": "methods",
    "RandomBackprop": "methods",
    "SGD": "methods",
    "Score": "scoring",
    "Scores": "scoring",
    "SelectiveBackprop": "methods",
    "StochasticDepth": "methods",
    "attach": "lean",
    "chain": "methods",
    "fit_head": "head",
    "keep_statistics": "tuning",
    "option": "options",
    "preset": "methods",
    "register_form": "forms",
    "register_method": "methods",
    "register_score": "scoring",
    "score": "scoring",
    "take_over": "takeover",
}
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

_before_torchvision: Any = BeforeImport("torchvision", "leantrain._torchvision")  # which timm and others import too
sys.meta_path.insert(0, _before_torchvision)

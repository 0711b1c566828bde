"""leantrain: train image classifiers on fewer and cheaper examples, with the accuracy kept.

The public names are loaded when first used, so that `import leantrain` is fast and torch comes only when needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leantrain.errors import LeanError as LeanError
    from leantrain.lean import Lean as Lean
    from leantrain.lean import attach as attach
    from leantrain.ledger import Ledger as Ledger
    from leantrain.loader import Batch as Batch
    from leantrain.methods import SGD as SGD
    from leantrain.methods import MixTrain as MixTrain
    from leantrain.methods import RandomBackprop as RandomBackprop
    from leantrain.plan import Plan as Plan
    from leantrain.scoring import Scores as Scores
    from leantrain.scoring import score as score

__version__ = "0.1.0"

_HOMES = {
    "LeanError": "errors",
    "Lean": "lean",
    "attach": "lean",
    "Ledger": "ledger",
    "Batch": "loader",
    "SGD": "methods",
    "MixTrain": "methods",
    "RandomBackprop": "methods",
    "Plan": "plan",
    "Scores": "scoring",
    "score": "scoring",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leantrain' has no attribute '{name}'")
    return getattr(importlib.import_module(f"leantrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]

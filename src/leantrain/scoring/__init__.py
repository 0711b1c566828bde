"""Scores: one number per training example that says how hard it is, made before training, kept in a file.

Rooms: `scores.py` is the file, `measures.py` asks a model, `ensemble.py` trains the models that are asked, `compare.py`
sets scores beside each other, `summary.py` says them in numbers and `figures.py` in pictures.

The names are loaded when first used: a method that reads a scores file must not bring the training loop with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leantrain.scoring.compare import compare_scores as compare_scores
    from leantrain.scoring.compare import from_run as from_run
    from leantrain.scoring.ensemble import score as score
    from leantrain.scoring.ensemble import score_images as score_images
    from leantrain.scoring.scores import Scores as Scores
    from leantrain.scoring.scores import load as load

_HOMES = {
    "Scores": "scores",
    "load": "scores",
    "score": "ensemble",
    "score_images": "ensemble",
    "compare_scores": "compare",
    "from_run": "compare",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leantrain.scoring' has no attribute '{name}'")
    return getattr(importlib.import_module(f"leantrain.scoring.{_HOMES[name]}"), name)

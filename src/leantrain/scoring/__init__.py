"""Scores: one number per training example that says how hard it is, made before training, kept in a file.

Rooms: `kinds/` has one file per score, `ensemble.py` trains the models that are asked, `scores.py` is the file,
`compare.py` sets scores beside each other, `summary.py` sums them up. Torch and numpy are all that it needs; what the
program adds (training as `leantrain train` does, tables, figures) is in `leantrain.run.scores` and `leantrain.inspect`.

The names are loaded when first used: a method that reads a scores file must not bring the training of models with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leantrain.lazy import lazy_names

if TYPE_CHECKING:
    from leantrain.scoring.compare import combined as combined
    from leantrain.scoring.compare import compare_scores as compare_scores
    from leantrain.scoring.ensemble import score as score
    from leantrain.scoring.kinds import SCORES as SCORES
    from leantrain.scoring.kinds import RecordedScore as RecordedScore
    from leantrain.scoring.kinds import Score as Score
    from leantrain.scoring.kinds import logits_of as logits_of
    from leantrain.scoring.kinds import parse_score as parse_score
    from leantrain.scoring.kinds import register_score as register_score
    from leantrain.scoring.kinds import score_pass as score_pass
    from leantrain.scoring.scores import Scores as Scores
    from leantrain.scoring.scores import load as load
    from leantrain.scoring.summary import summarise as summarise

_HOMES = {
    "SCORES": "kinds",
    "RecordedScore": "kinds",
    "Score": "kinds",
    "Scores": "scores",
    "combined": "compare",
    "compare_scores": "compare",
    "load": "scores",
    "logits_of": "kinds",
    "parse_score": "kinds",
    "register_score": "kinds",
    "score": "ensemble",
    "score_pass": "kinds",
    "summarise": "summary",
}
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

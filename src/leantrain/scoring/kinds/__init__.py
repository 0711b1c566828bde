"""Scores by name: one file each, which registers itself."""

from __future__ import annotations

from leantrain.scoring.kinds.base import (
    SCORES,
    RecordedScore,
    Score,
    ScoringBatch,
    logits_of,
    make_score,
    parse_score,
    register_score,
    score_pass,
    words_for,
)
from leantrain.scoring.kinds.el2n import EL2N
from leantrain.scoring.kinds.forgetting import Forgetting
from leantrain.scoring.kinds.grand import GraNd
from leantrain.scoring.kinds.loss import Loss

__all__ = [
    "EL2N",
    "SCORES",
    "Forgetting",
    "GraNd",
    "Loss",
    "RecordedScore",
    "Score",
    "ScoringBatch",
    "logits_of",
    "make_score",
    "parse_score",
    "register_score",
    "score_pass",
    "words_for",
]

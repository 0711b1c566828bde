"""Scores beside each other: do they rank alike, and would they prune the same examples?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leantrain.errors import LeanError
from leantrain.scoring.scores import Scores

FRACTIONS = 100
Array = np.ndarray[Any, Any]


def compare_scores(a: Scores, b: Scores) -> dict[str, Any]:
    """Compare two scores of the same examples, matched by id.

    Where several examples have the same score and a cut falls among them, each counts by its chance of being cut, as if
    lots were drawn on either side. So ties make no agreement: two constant scores overlap as chance does.

    Returns:
        common: examples that both score; only_a, only_b: those that only one of them does.
        spearman: rank correlation, with the mean rank for equal scores; None where all scores of a side are equal.
        fractions: 0.01 … 1.00.
        overlap: at each, how many of the lowest by A are among the lowest by B, as a share.
        chance: what that would be between unrelated scores.
    """
    known = set(b.ids)
    common = [name for name in a.ids if name in known]
    if not common or a.classes != b.classes:  # ids may be places, which mean nothing in another set
        raise LeanError(
            f"the two scores have no example in common ('{a.ids[0]}' of class '{_class(a)}', … and '{b.ids[0]}' of "
            f"class '{_class(b)}', …); compare scores of the same data."
        )
    x, y = (side.values_for(common).double().numpy() for side in (a, b))
    length = len(common)
    counts = [max(1, round(number * length / FRACTIONS)) for number in range(1, FRACTIONS + 1)]
    return {
        "a": a.kind,
        "b": b.kind,
        "common": length,
        "only_a": len(a) - length,
        "only_b": len(b) - length,
        "spearman": spearman(x, y),
        "fractions": [number / FRACTIONS for number in range(1, FRACTIONS + 1)],
        "overlap": [float(_lowest(x, count) @ _lowest(y, count)) / count for count in counts],
        "chance": [count / length for count in counts],
    }


def combined(a: Scores, b: Scores) -> Scores:
    """The mean of an example's ranks in two scores, 0…1: what both find easy is lowest."""
    known = set(b.ids)
    rows = a.rows([name for name in a.ids if name in known])
    ids = tuple(a.ids[row] for row in rows.tolist())
    ranks = [_ranks(side.values_for(ids).double().numpy()) for side in (a, b)]
    return Scores(
        values=torch.from_numpy((ranks[0] + ranks[1]) / (2 * len(ids))).float(),
        ids=ids,
        targets=a.targets[rows],
        classes=a.classes,
        kind="combined",
        cost=a.cost + b.cost,
        seconds=a.seconds + b.seconds,
        made_with={**a.made_with, "of": [a.kind, b.kind]},
    )


def _class(scores: Scores) -> str:
    """Of the first example, so that a message can distinguish data sets."""
    return scores.classes[int(scores.targets[0])]


def spearman(x: Array, y: Array) -> float | None:
    """The correlation of ranks; equal values share the mean of theirs. None where all values of a side are equal."""
    ranks = np.stack([_ranks(x), _ranks(y)])
    centred = ranks - ranks.mean(1, keepdims=True)
    spread = np.sqrt((centred**2).sum(1))
    return float(centred[0] @ centred[1] / spread.prod()) if spread.all() else None


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    mean: Array = (last - (count - 1) / 2)[place]
    return mean


def _lowest(values: Array, count: int) -> Array:
    """Each one's chance of being among the `count` lowest: 1, 0, or a share where equal ones lie on the border."""
    border = np.partition(values, count - 1)[count - 1]
    below, equal = values < border, values == border
    chance: Array = below + equal * ((count - below.sum()) / equal.sum())
    return chance

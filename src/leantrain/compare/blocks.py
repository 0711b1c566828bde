"""Seeds as blocks: what a run of a row spreads, estimated from all rows that spread alike.

The runs of one seed share their data order and their first weights, so a table of rows and seeds is a design in
randomised blocks: accuracy = row + seed + rest. Two seeds tell little about one row's rest, but several rows of two
seeds tell more, where they spread alike. A row that spreads more than the others is left out and keeps its own spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]
Row = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.25
"""How often one of the rows is left out by mistake where all spread alike. So often, because it costs little: what is
left out has Student's interval, while one row that does not belong widens the intervals of all others."""


@dataclass(frozen=True)
class Pool:
    """The rows that spread alike.

    Attributes:
        rows: their labels.
        deviation: of the difference of two runs of one seed, from different rows; in the unit of the accuracies.
        freedom: the degrees of freedom that it rests on.
    """

    rows: frozenset[str]
    deviation: float
    freedom: int


def pool(accuracies: Mapping[str, Mapping[int, float]]) -> Pool | None:
    """The rows that spread alike, of those with all seeds; None where three rows of two seeds are not to be had.

    Args:
        accuracies: by row, by seed.
    """
    most = max((len(own) for own in accuracies.values()), default=0)
    complete = {label: own for label, own in accuracies.items() if len(own) == most}
    if most < 2 or len({frozenset(own) for own in complete.values()}) != 1:
        return None
    labels = list(complete)
    values = np.array([[complete[label][seed] for seed in sorted(complete[label])] for label in labels])
    while len(labels) >= 3:
        row, chance = _oddest(values)
        if chance >= LEVEL:
            break
        del labels[row]
        values = np.delete(values, row, axis=0)
    if len(labels) < 3:
        return None
    variance, freedom = _rest(values)
    return Pool(frozenset(labels), math.sqrt(2 * variance), freedom)


def _rest(values: Table) -> tuple[float, int]:
    """The variance that neither rows nor seeds explain, and its degrees of freedom."""
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1)
    return float((rest**2).sum()) / freedom, freedom


def _oddest(values: Table) -> tuple[int, float]:
    """The row that spreads most against the others, and how often one of them would do so by chance."""
    chances = [_chance(values[row], np.delete(values, row, axis=0)) for row in range(len(values))]
    row = int(np.argmin(chances))
    return row, chances[row] * len(values)


def _chance(row: Row, others: Table) -> float:
    """How often a row would spread as much against the others if it spread as they do: an exact F test."""
    from scipy.special import fdtrc  # not scipy.stats, which takes a second to import

    variance, freedom = _rest(others)
    own = float((row - others.mean(0)).var(ddof=1)) / (1 + 1 / len(others))
    if variance == 0.0:
        return 1.0 if own == 0.0 else 0.0
    return float(fdtrc(len(row) - 1, freedom, own / variance))

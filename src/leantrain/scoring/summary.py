"""Scores in numbers, as summary.json holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from leantrain.scoring.scores import Scores

SHOWN = 20
"""Examples that are named, or pictured, from either end."""
PRUNED = 0.25
"""The share of the examples at which figures and tables say what pruning the lowest would take away."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def order(scores: Scores) -> Tensor:
    """The examples from the lowest score to the highest; equal ones as they come."""
    return scores.values.argsort(stable=True)


def summarise(scores: Scores) -> dict[str, Any]:
    """What there is to know of scores without looking at each of them."""
    ranked = order(scores)
    lowest = torch.zeros(len(scores), dtype=torch.bool)
    lowest[ranked[: round(PRUNED * len(scores))]] = True
    levels = quantiles(scores.values, QUANTILES)
    return {
        "kind": scores.kind,
        "examples": len(scores),
        "cost": scores.cost,
        "cost_epochs": scores.cost / len(scores),
        "seconds": scores.seconds,
        "mean": float(scores.values.double().mean()),
        "quantiles": dict(zip(map(str, QUANTILES), levels, strict=True)),
        "classes": {
            scores.classes[number]: {
                "examples": len(mine),
                "mean": float(scores.values[mine].double().mean()),
                "median": quantiles(scores.values[mine], (0.5,))[0],
                "lowest_quarter": float(lowest[mine].double().mean()),
            }
            for number, mine in by_class(scores).items()
        },
        "lowest": _named(scores, ranked[:SHOWN]),
        "highest": _named(scores, ranked.flip(0)[:SHOWN]),
        "made_with": scores.made_with,
    }


def by_class(scores: Scores) -> dict[int, Tensor]:
    """The examples of each class that has any."""
    ends = torch.bincount(scores.targets, minlength=len(scores.classes)).cumsum(0)
    parts = scores.targets.argsort(stable=True).tensor_split(ends[:-1])
    return {number: part for number, part in enumerate(parts) if len(part)}


def quantiles(values: Tensor, shares: tuple[float, ...]) -> list[float]:
    """By numpy: torch's own takes sixteen million values at most."""
    levels: list[float] = np.quantile(values.double().numpy(), shares).tolist()
    return levels


def _named(scores: Scores, which: Tensor) -> list[dict[str, Any]]:
    return [
        {"id": scores.ids[i], "class": scores.classes[int(scores.targets[i])], "score": float(scores.values[i])}
        for i in which.tolist()
    ]

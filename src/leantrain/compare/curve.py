"""The curve: accuracy against cost or time, and the budget that keeps the accuracy of full training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from leantrain.compare.verdict import Difference

OTHER = {"cost": "time", "time": "cost"}


class Kept(NamedTuple):
    """The smallest budget that keeps the accuracy, read off a curve by interpolation.

    Attributes:
        budget: where the mean difference to full training reaches the margin; None where no budget that was tried
            keeps the accuracy.
        low: where the interval's upper end reaches it: the least that the seeds allow.
        high: where the interval's lower end reaches it; None where that is beyond the largest budget.
        least: the smallest budget that was tried.
        unit: what all of these are shares of, full training's "cost" or "time".
        other: what share of the other one it takes, likewise; None where not known.
    """

    budget: float | None
    low: float | None
    high: float | None
    least: float
    unit: str = "cost"
    other: float | None = None

    def text(self, margin: float) -> str:
        if self.budget is None:
            return f"none of these budgets keeps the accuracy within {margin:g} points"
        low, high = ("more than tried" if end is None else f"{end:.2f}" for end in (self.low, self.high))
        found = f"{self.budget:.2f} of the {self.unit}" + (" or less" if self.budget <= self.least else "")
        if self.other is not None:
            found += f", {'in' if self.unit == 'cost' else 'at'} {self.other:.2f} of the {OTHER[self.unit]},"
        return f"{found} keeps the accuracy within {margin:g} points (95 % interval {low} to {high})"


def curves(rows: Sequence[dict[str, Any]], margin: float, unit: str = "cost") -> list[dict[str, Any]]:
    """One curve per method, and one of plain training, from the rows of a comparison at several budgets.

    Args:
        rows: as compare.json holds them.
        margin: points within which two accuracies count as the same.
        unit: what the budgets are shares of, "cost" or "time".
    """
    full = next((row for row in rows if row["role"] == "baseline"), None)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["budget"] is not None and row["difference_to_full"] is not None:  # else full training is missing yet
            found.setdefault(row["method"], []).append(row)
    made = []
    for method, own in found.items():
        # A run that was resumed has no time of its own; what was asked for stands in for it.
        points = [_point(row) | {unit: row[f"{unit}_ratio"] or row["budget"]} for row in own]
        points.sort(key=itemgetter(unit))
        kept = kept_budget([(p[unit], Difference.from_json(p["difference"])) for p in points], margin)
        kept = kept._replace(unit=unit, other=_at(kept.budget, points, unit, OTHER[unit]))
        ends = [] if full is None or full["accuracy"] is None else [{**_point(full), unit: 1.0}]
        made.append({"method": method, "points": points + ends, "kept": kept._asdict(), "answer": kept.text(margin)})
    return made


def _point(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "cost": row["cost_ratio"],
        "accuracy": row["accuracy"],
        "spread": row["accuracy_spread"],
        "time": row["time_ratio"],
        "difference": row["difference_to_full"],
        "seeds": len(row["seeds"]),
    }


def kept_budget(points: Sequence[tuple[float, Difference]], margin: float) -> Kept:
    """The smallest budget from which on the accuracy is kept, from differences to full training at some costs.

    Args:
        points: costs, as shares of full training's, in rising order, each with its difference to full training.
        margin: points within which two accuracies count as the same.
    """

    def reached(value: Callable[[Difference], float]) -> float | None:
        return _reached([(cost, value(difference)) for cost, difference in points], -margin)

    return Kept(
        budget=reached(lambda difference: difference.mean),
        low=reached(lambda difference: difference.high),
        high=reached(lambda difference: difference.low),
        least=points[0][0],
    )


def _reached(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Where a curve, followed from its right end down, falls below a level; its left end where it never does."""
    if points[-1][1] < level:
        return None
    right = points[-1]
    for left in reversed(points[:-1]):
        if left[1] < level:
            if math.isinf(left[1]):
                return right[0]
            between = left[0] + (right[0] - left[0]) * (level - left[1]) / (right[1] - left[1])
            return min(between, right[0])  # which rounding may pass
        right = left
    return right[0]


def _at(budget: float | None, points: Sequence[dict[str, Any]], unit: str, asked: str) -> float | None:
    """What else the budget takes, between two points of a curve that say what they took."""
    if budget is None:
        return None
    left = max((point for point in points if point[unit] <= budget), key=itemgetter(unit))
    right = min((point for point in points if point[unit] >= budget), key=itemgetter(unit))
    if left[asked] is None or right[asked] is None:
        return None
    between = (budget - left[unit]) / (right[unit] - left[unit]) if right is not left else 0.0
    found: float = left[asked] + between * (right[asked] - left[asked])
    return found

"""The curve: accuracy against cost, and the budget that keeps the accuracy of full training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from leantrain.compare.verdict import Difference


class Kept(NamedTuple):
    """The smallest budget that keeps the accuracy, read off a curve by interpolation.

    Attributes:
        budget: where the mean difference to full training reaches the margin; None where no budget that was tried
            keeps the accuracy.
        low: where the interval's upper end reaches it: the least that the seeds allow.
        high: where the interval's lower end reaches it; None where that is beyond the largest budget.
        least: the smallest budget that was tried.
        time: what share of full training's time it takes, likewise; None where not known.
    """

    budget: float | None
    low: float | None
    high: float | None
    least: float
    time: float | None = None

    def text(self, margin: float) -> str:
        if self.budget is None:
            return f"none of these budgets keeps the accuracy within {margin:g} points"
        low, high = ("more than tried" if end is None else f"{end:.2f}" for end in (self.low, self.high))
        found = f"{self.budget:.2f} of the cost" + (" or less" if self.budget <= self.least else "")
        found += "" if self.time is None else f", in {self.time:.2f} of the time,"
        return f"{found} keeps the accuracy within {margin:g} points (95 % interval {low} to {high})"


def curves(rows: Sequence[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """One curve per method, and one of plain training, from the rows of a comparison at several budgets.

    Args:
        rows: as compare.json holds them.
        margin: points within which two accuracies count as the same.
    """
    full = next((row for row in rows if row["role"] == "baseline"), None)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["budget"] is not None and row["difference_to_full"] is not None:  # else full training is missing yet
            found.setdefault(row["method"], []).append(row)
    made = []
    for method, own in found.items():
        points = [_point(row) for row in sorted(own, key=lambda row: row["cost_ratio"] or row["budget"])]
        kept = kept_budget([(p["cost"], Difference.from_json(p["difference"])) for p in points], margin)
        kept = kept._replace(time=_time_of(kept.budget, points))
        ends = [] if full is None or full["accuracy"] is None else [{**_point(full), "cost": 1.0}]
        made.append({"method": method, "points": points + ends, "kept": kept._asdict(), "answer": kept.text(margin)})
    return made


def _point(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "cost": row["cost_ratio"] or row["budget"],
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


def _time_of(budget: float | None, points: Sequence[dict[str, Any]]) -> float | None:
    """The share of full training's time at a cost between two points of a curve that have one."""
    if budget is None:
        return None
    left = max((point for point in points if point["cost"] <= budget), key=lambda point: point["cost"])
    right = min((point for point in points if point["cost"] >= budget), key=lambda point: point["cost"])
    if left["time"] is None or right["time"] is None:
        return None
    between = (budget - left["cost"]) / (right["cost"] - left["cost"]) if right is not left else 0.0
    time: float = left["time"] + between * (right["time"] - left["time"])
    return time

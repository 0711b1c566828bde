"""What budget keeps the accuracy: read off measured differences by interpolation, and not beyond them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from leantrain.compare.curve import curves, kept_budget
from leantrain.compare.verdict import Difference


def points(*pairs: tuple[float, float], half: float = 0.1) -> list[tuple[float, Difference]]:
    return [(cost, Difference(mean, half, 5)) for cost, mean in pairs]


def test_between_two_budgets_it_is_interpolated() -> None:
    kept = kept_budget(points((0.2, -4.2), (0.4, -0.4), (0.6, 0.0)), margin=0.2)
    assert kept.budget == pytest.approx(0.5)  # half the way from -0.4 to 0.0
    assert kept.low == pytest.approx(0.45) and kept.high == pytest.approx(0.55)
    assert kept.text(0.2) == "0.50 of the cost keeps the accuracy within 0.2 points (95 % interval 0.45 to 0.55)"


def test_none_of_these_is_an_answer() -> None:
    kept = kept_budget(points((0.2, -4.0), (0.5, -1.0)), margin=0.2)
    assert (kept.budget, kept.high) == (None, None)
    assert kept.text(0.2) == "none of these budgets keeps the accuracy within 0.2 points"


def test_nothing_is_claimed_below_the_smallest_budget() -> None:
    kept = kept_budget(points((0.2, 0.3), (0.5, 0.5)), margin=0.2)
    assert kept.budget == kept.low == kept.high == 0.2
    assert kept.text(0.2).startswith("0.20 of the cost or less keeps the accuracy")


def test_a_largest_budget_that_just_keeps_it_is_the_answer_whatever_rounding_does() -> None:
    ends = [(low / 100, high / 100) for low in range(5, 99) for high in range(low + 1, 100)]
    assert all(kept_budget(points((low, -1.0), (high, -0.2)), margin=0.2).budget <= high for low, high in ends)


def test_a_budget_that_keeps_it_by_chance_below_one_that_does_not_is_no_answer() -> None:
    kept = kept_budget(points((0.2, 0.1), (0.3, -1.0), (0.5, 0.6)), margin=0.2)
    assert kept.budget == pytest.approx(0.3 + 0.2 * 0.8 / 1.6)


def test_one_seed_has_no_interval() -> None:
    kept = kept_budget([(0.2, Difference(-3.0, math.inf, 1)), (0.5, Difference(0.1, math.inf, 1))], margin=0.2)
    assert kept.budget is not None and kept.high is None and kept.low == 0.2
    assert "0.20 to more than tried" in kept.text(0.2)


def row(
    method: str, role: str, budget: float | None, accuracy: float, mean: float | None, time: float | None = None
) -> dict[str, Any]:
    """What compare.json says of a row, of it what a curve is made of."""
    return {
        "method": method,
        "role": role,
        "budget": budget,
        "accuracy": accuracy,
        "accuracy_spread": 0.001,
        "difference_to_full": None if mean is None else {"mean": mean, "half": 0.2, "seeds": 3},
        "cost_ratio": budget or 1.0,
        "time_ratio": time,
        "seeds": {"0": {}, "1": {}, "2": {}},
    }


FULL = row("plain", "baseline", None, 0.72, None, time=1.0)


def test_the_answer_says_what_that_budget_takes_of_full_trainings_time() -> None:
    half, third = row("lean", "method", 0.5, 0.725, 0.5, time=0.6), row("lean", "method", 0.3, 0.70, -2.0, time=0.4)
    (lean,) = curves([FULL, half, third], 0.2)
    assert lean["kept"]["other"] == pytest.approx(0.4 + 0.2 * 1.8 / 2.5)
    assert lean["answer"].startswith("0.44 of the cost, in 0.54 of the time, keeps the accuracy within 0.2 points")
    (least,) = curves([FULL, half], 0.2)
    assert least["answer"].startswith("0.50 of the cost or less, in 0.60 of the time, keeps the accuracy")
    for untimed in ((half | {"time_ratio": None}, third), (half, third | {"time_ratio": None})):  # it was resumed
        (lean,) = curves([FULL, *untimed], 0.2)
        assert lean["kept"]["other"] is None and lean["answer"].startswith("0.44 of the cost keeps the accuracy")


def test_where_budgets_are_of_time_the_answer_is_too() -> None:
    half, third = row("lean", "method", 0.5, 0.725, 0.5, time=0.52), row("lean", "method", 0.3, 0.70, -2.0, time=0.32)
    half, third = half | {"cost_ratio": 0.44}, third | {"cost_ratio": 0.24}
    (lean,) = curves([FULL, half, third], 0.2, "time")
    assert [point["time"] for point in lean["points"]] == [0.32, 0.52, 1.0]
    assert (lean["kept"]["unit"], lean["kept"]["budget"]) == ("time", pytest.approx(0.32 + 0.2 * 1.8 / 2.5))
    assert lean["answer"].startswith("0.46 of the time, at 0.38 of the cost, keeps the accuracy within 0.2 points")
    (lean,) = curves([FULL, half | {"time_ratio": None}], 0.2, "time")  # resumed: what was asked for stands in
    assert lean["answer"].startswith("0.50 of the time or less, at 0.44 of the cost, keeps the accuracy")


def test_curves_end_at_full_training_and_plain_training_has_one_too() -> None:
    rows = [
        FULL,
        row("lean", "method", 0.5, 0.725, 0.5),
        row("plain", "equal-budget", 0.5, 0.65, -7.0),
        row("lean", "method", 0.3, 0.70, -2.0),
        row("plain", "equal-budget", 0.3, 0.60, -12.0),
    ]
    lean, plain = curves(rows, 0.2)
    assert (lean["method"], plain["method"]) == ("lean", "plain")
    assert [point["cost"] for point in lean["points"]] == [0.3, 0.5, 1.0]
    assert lean["points"][-1]["accuracy"] == plain["points"][-1]["accuracy"] == 0.72
    assert lean["kept"]["budget"] == pytest.approx(0.3 + 0.2 * 1.8 / 2.5)
    assert plain["kept"]["budget"] is None
    assert curves(rows[:1], 0.2) == []
    cut = [FULL, row("lean", "method", 0.5, 0.725, None)]
    assert curves(cut, 0.2) == []  # full training of the same seed is not there yet

"""A verdict says no more than the seeds allow, and never a saving without its control."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy.stats import ttest_rel

from leantrain.compare.advice import advice
from leantrain.compare.verdict import Difference, Verdict, difference, half_width, spread, verdict

TEN = "10 epochs instead of 16"


def judged(full: Difference | None, control: Difference | None, saving: float = 0.38, margin: float = 0.2) -> Verdict:
    return verdict(full, control, saving, "time", TEN, margin)


def says(full: Difference | None, control: Difference | None, saving: float = 0.38, margin: float = 0.2) -> str:
    return judged(full, control, saving, margin).text


def near(mean: float, half: float = 0.1, seeds: int = 3) -> Difference:
    return Difference(mean, half, seeds)


def test_the_interval_is_student_s_paired_by_seed() -> None:
    ours, theirs = [0.712, 0.705, 0.721, 0.700], [0.700, 0.701, 0.709, 0.699]
    found = difference(ours, theirs, 10_000)
    assert found is not None
    interval = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((100 * interval.low, 100 * interval.high))
    assert found.seeds == 4


def test_one_seed_gives_no_interval() -> None:
    found = difference([0.7], [0.6], 100)
    assert found is not None
    assert math.isinf(found.half)
    assert found.text() == "+10.00"
    unknown = {"deviation": None, "freedom": None}
    assert found.as_json() == {"mean": pytest.approx(10.0), "half": None, "seeds": 1, **unknown}
    assert Difference.from_json(found.as_json()) == found
    assert difference([], [], 100) is None
    assert spread([0.5]) is None


def test_equal_differences_are_not_taken_for_certainty() -> None:
    found = difference([0.9, 0.8], [0.9, 0.8], 360)
    assert found is not None
    assert found.half > 0.5  # two seeds, 360 examples of 0.28 points each


@pytest.mark.parametrize(
    ("full", "control", "words"),
    [
        (near(0.0), near(+1.0), "saves 38% of the time at the same accuracy"),
        (near(+0.9), near(+2.0), "saves 38% of the time at the same accuracy"),
        (near(0.0), near(0.0), f"saves 38% of the time at the same accuracy, no better than training {TEN}"),
        (near(0.0), near(-0.5), f"saves 38% of the time at the same accuracy, worse than training {TEN}"),
        (near(0.0), near(0.3, 0.5), f"at the same accuracy, not enough seeds to tell it from training {TEN}"),
        (near(-1.2), near(+0.5), f"loses 1.2 points for 38% less time; better than training {TEN}"),
        (near(-1.2), near(0.0), f"loses 1.2 points for 38% less time; no better than training {TEN}"),
        (near(-0.3, 0.5), near(+0.5), "not enough seeds to tell whether accuracy is kept"),
        (near(0.0, math.inf, 1), near(0.0, math.inf, 1), "not enough seeds to tell"),
        (near(0.0), None, "no saving is claimed without its equal-budget control"),
        (None, None, "no full training to compare with"),
    ],
)
def test_words(full: Difference | None, control: Difference | None, words: str) -> None:
    assert words in says(full, control)


def test_what_costs_more_saves_nothing() -> None:
    assert says(near(0.0), near(0.0), saving=-0.25) == "saves nothing: it takes 1.25× the time of full training"


def test_the_margin_decides_what_counts_as_the_same() -> None:
    loss = near(-0.5, 0.1)
    assert "loses" in says(loss, near(1.0), margin=0.2)
    assert "at the same accuracy" in says(loss, near(1.0), margin=1.0)


@pytest.mark.parametrize(
    ("full", "control", "saving", "expected"),
    [
        (near(0.0), near(1.0, 0.5), 0.4, "good"),
        (near(0.0), near(0.1, 0.05), 0.4, "good"),  # better, if by less than the margin
        (near(0.0), near(0.1, 0.5), 0.4, "open"),
        (near(0.0), near(1.0, 0.5), -0.1, "bad"),
        (near(-3.0, 0.5), near(1.0, 0.5), 0.4, "bad"),
        (near(-3.0, 0.5), None, 0.4, "bad"),
        (near(0.0), near(-1.0, 0.5), 0.4, "bad"),
        (near(0.0), near(0.0, 0.1), 0.4, "bad"),
        (near(-0.3, 2.0), near(1.0, 0.5), 0.4, "open"),
        (near(-0.3, 2.0), near(-1.0, 0.5), 0.4, "bad"),
        (near(0.0), None, 0.4, "open"),
        (near(0.0, math.inf, 1), near(0.0, math.inf, 1), 0.4, "open"),
        (None, None, 0.4, "open"),
    ],
)
def test_a_method_is_worth_it_only_where_the_intervals_say_so(
    full: Difference | None, control: Difference | None, saving: float, expected: str
) -> None:
    assert judged(full, control, saving).standing == expected


@pytest.mark.parametrize(
    ("ratio", "standing", "words"),
    [
        (0.994, "good", "saves 1% of the time at the same accuracy"),
        (0.997, "bad", "saves nothing: it takes 1.00× the time of full training"),
        (1.003, "bad", "saves nothing: it takes 1.00× the time of full training"),
    ],
)
def test_words_and_standing_agree_where_hardly_anything_is_saved(ratio: float, standing: str, words: str) -> None:
    assert judged(near(0.0), near(1.0), saving=1 - ratio) == Verdict(standing, words)


def test_an_open_question_says_how_many_more_seeds_would_settle_it() -> None:
    """With the deviation that three seeds showed, and more of them."""
    close = Difference(-0.3, 0.5, 3, deviation=0.2, freedom=2)
    needed = close.seeds_to_leave(-0.2)
    assert needed is not None
    assert half_width(0.2, needed - 1, needed) < 0.1 <= half_width(0.2, needed - 2, needed - 1)
    assert f"(about {needed - 3} more would); better than" in says(close, near(+0.5))
    hopeless = Difference(-0.201, 0.5, 3, deviation=0.2, freedom=2)
    assert "(more than 30 would)" in says(hopeless, near(+0.5))
    pooled = Difference(-0.3, 0.5, 3, deviation=0.2, freedom=8)  # rows that spread alike know it better
    assert (pooled.seeds_to_leave(-0.2) or 99) < needed
    assert near(-0.3, 0.5).seeds_to_leave(-0.2) is None
    assert "more would" in says(near(0.0), Difference(0.3, 0.5, 3, deviation=0.2, freedom=2))


def row(
    label: str, standing: str, verdict: str, *, cost: float = 0.5, control: Difference | None = None
) -> dict[str, Any]:
    found = None if control is None else control.as_json()
    common = {"role": "method", "cost_ratio": cost, "time_ratio": None, "accuracy": 0.7, "difference_to_control": found}
    return {"label": label, "standing": standing, "verdict": verdict, **common}


def test_the_advice_is_one_sentence_on_what_to_do() -> None:
    saves = "saves 50% of the cost at the same accuracy"
    good, cheaper = row("lean @ 0.5", "good", saves), row("lean @ 0.33", "good", saves, cost=0.33)
    lost = row("rs2", "bad", "loses 3.0 points for 50% less cost; better than training 8 epochs", control=near(1.0))
    worse = row("el2n", "bad", "loses 5.0 points for 50% less cost; worse than training 8 epochs", control=near(-1.0))
    unclear = row("infobatch", "open", "not enough seeds to tell whether accuracy is kept (about 3 more would)")
    assert advice([good, cheaper, lost, unclear], 3) == f"Use lean @ 0.33: it {saves}."
    assert advice([lost, worse, unclear], 3).startswith("Not settled yet: infobatch is the one to watch")
    assert "about 3 more would" in advice([unclear], 3)
    assert advice([unclear], 1) == "One seed settles nothing: go on with --resume --seeds 3."
    assert "If you must spend less, rs2 is the best way: loses 3.0 points" in advice([lost, worse], 3)
    slow = row("lean @ 0.5", "bad", "saves nothing: it takes 1.06× the time", control=near(1.0)) | {"time_ratio": 1.06}
    assert advice([slow, worse], 3).startswith("lean @ 0.5 does 50% less work and saves no time here")
    assert "If you must spend less, rs2" in advice([slow | {"accuracy": 0.9}, lost], 3)
    assert advice([worse], 3).startswith("Nothing here beats training fewer epochs")
    assert advice([], 3) == ""

"""Schedules read progress alone and decay fully."""

from __future__ import annotations

import pytest

from leantrain.errors import LeanError
from leantrain.schedule import SCHEDULES, parse_schedule


@pytest.mark.parametrize("name", ["linear", "onecycle", "cosine"])
def test_they_rise_to_one_and_end_at_zero(name: str) -> None:
    schedule = parse_schedule(name)
    values = [schedule.at(i / 1000, 10) for i in range(1001)]
    assert max(values) == pytest.approx(1.0, abs=1e-3)
    assert values[-1] == pytest.approx(0.0, abs=1e-12)
    peak = values.index(max(values))
    assert values[:peak] == sorted(values[:peak])
    assert values[peak:] == sorted(values[peak:], reverse=True)


def test_linear_warms_up_over_five_percent() -> None:
    linear = parse_schedule("linear")
    assert [linear.at(p, 1) for p in (0.0, 0.025, 0.05, 0.525)] == pytest.approx([0.0, 0.5, 1.0, 0.5])
    assert parse_schedule("linear[warmup=0]").at(0.0, 1) == 1.0


def test_step_drops_every_so_many_epochs_of_the_run() -> None:
    step = parse_schedule("step[every=30,factor=0.1]")
    assert [step.at(e / 90, 90) for e in (0, 29.9, 30, 60, 89)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])


def test_constant_stays() -> None:
    assert {parse_schedule("constant").at(p / 10, 5) for p in range(11)} == {1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosin", "Did you mean 'cosine'"),
        ("step[every=0]", "every is 0.0, but must be above 0"),
        ("step[every=x]", "must be a number"),
        ("linear[warmup]", "not of the form option=value"),
        ("step[each=3]", "has no option 'each'"),
        ("step[every=3", "cannot be read"),
    ],
)
def test_mistakes_are_told_with_the_value(text: str, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        parse_schedule(text)


def test_every_schedule_is_known_by_its_name() -> None:
    assert set(SCHEDULES) == {"linear", "onecycle", "cosine", "step", "constant"}

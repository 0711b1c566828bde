"""Whatever is in a file that we parse, or behind a flag: a success or our own error, and nothing else.

Longer, and with whole commands: benchmarks/fuzz.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import DAMAGES, FLAGS, TARGETS, TEXTS, attack, make_files, parse, settle, value_of


def quick(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("fuzz") / "whole")


@pytest.mark.parametrize("name", [name for name in TARGETS if "to skip" not in name or "png" in name])
def test_a_damaged_file_is_read_or_refused(name: str, whole: Path, tmp_path: Path) -> None:
    @quick(8)
    @given(damages=DAMAGES)
    def holds(damages: list[Any]) -> None:
        attack(TARGETS[name], whole, tmp_path / "damaged", damages)

    TARGETS[name].read(whole)  # as it is
    holds()


@quick(150)
@given(given=st.sampled_from(FLAGS).flatmap(lambda name: st.tuples(st.just(name), value_of(name))))
def test_a_hostile_flag_is_taken_or_refused(given: tuple[str, Any]) -> None:
    settle(*given)


@quick(60)
@given(text=TEXTS)
def test_a_hostile_list_of_methods_budgets_or_scores_is_taken_or_refused(text: str) -> None:
    parse(text)

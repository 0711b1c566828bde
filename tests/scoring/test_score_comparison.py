"""Scores beside each other, summed up, and counted in a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scoring_helpers import digits, handmade

from leantrain.errors import LeanError
from leantrain.inspect.score_figures import histogram
from leantrain.run import history
from leantrain.run.scores import from_run
from leantrain.scoring import combined, compare_scores, summarise
from leantrain.scoring.compare import spearman


def test_spearman_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([5.0, 6.0, 7.0, 8.0, 7.0])
    assert spearman(x, y) == pytest.approx(0.8207826817)  # ranks 1, 2, 3.5, 5, 3.5
    assert spearman(x, x**3) == pytest.approx(1)
    assert spearman(x, -x) == pytest.approx(-1)
    assert spearman(x, np.ones(5)) is None


def test_the_overlap_counts_what_both_would_prune() -> None:
    a, b = handmade([0.0, 1.0, 2.0, 3.0]), handmade([0.0, 3.0, 1.0, 2.0], kind="grand")
    found = compare_scores(a, b)
    at = dict(zip(found["fractions"], found["overlap"], strict=True))
    assert (at[0.25], at[0.5], at[0.75], at[1.0]) == (1.0, 0.5, pytest.approx(2 / 3), 1.0)
    assert found["spearman"] == pytest.approx(0.4)
    assert (found["a"], found["b"], found["common"]) == ("el2n", "grand", 4)


def test_the_combined_rank_is_lowest_where_both_are_low() -> None:
    a, b = handmade([0.0, 1.0, 2.0, 3.0]), handmade([0.0, 3.0, 1.0, 2.0], kind="grand")
    assert combined(a, b).values.tolist() == pytest.approx([0.25, 0.75, 0.625, 0.875])  # ranks 1 2 3 4 and 1 4 2 3


def test_the_same_scores_agree_wholly_and_unrelated_ones_by_chance() -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = (handmade(torch.rand(4000, generator=rng).tolist()) for _ in range(2))
    assert compare_scores(one, one)["overlap"] == pytest.approx([1.0] * 100)
    found = compare_scores(one, other)
    assert abs(found["spearman"]) < 0.05
    assert found["overlap"] == pytest.approx(found["fractions"], abs=0.06)
    assert found["chance"] == pytest.approx(found["fractions"])


def test_equal_scores_agree_by_chance_only() -> None:
    found = compare_scores(handmade([1.0] * 200), handmade([2.0] * 200))
    assert found["spearman"] is None
    assert found["overlap"] == pytest.approx(found["fractions"])


def test_scores_are_matched_by_id() -> None:
    a, b = handmade([1.0, 2.0, 3.0, 9.0], ["a", "b", "c", "d"]), handmade([3.0, 1.0, 2.0], ["c", "a", "b"])
    found = compare_scores(a, b)
    assert (found["common"], found["only_a"], found["only_b"]) == (3, 1, 0)
    assert found["spearman"] == pytest.approx(1)
    with pytest.raises(LeanError, match="no example in common"):
        compare_scores(a, handmade([1.0], ["z"]))
    with pytest.raises(LeanError, match="no example in common"):
        compare_scores(a, dataclasses.replace(a, classes=("cat", "dog")))


def test_use_is_how_many_epochs_trained_on_an_example(trained: Path) -> None:
    scores = from_run(trained)
    seen = np.stack([~np.isnan(history.read_epoch(trained / "history", epoch)["loss"]) for epoch in range(5)])
    assert scores.values.tolist() == seen.sum(0).tolist()
    assert scores.values.sum() == 5 * 80
    assert scores.kind == "use"
    assert scores.ids == tuple(map(str, digits().train.ids.tolist()))  # type: ignore[union-attr]


def test_a_folder_without_a_run_or_a_history_and_changed_data_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="holds no run"):
        from_run(tmp_path)
    text = (trained / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(LeanError, match="has no history"):
        from_run(tmp_path)
    (tmp_path / "history").symlink_to(trained / "history")
    (tmp_path / "metrics.jsonl").symlink_to(trained / "metrics.jsonl")
    (tmp_path / "config.yaml").write_text(text.replace("train_limit: 160", "train_limit: 150"))
    with pytest.raises(LeanError, match="is not what the run in"):
        from_run(tmp_path)


def test_a_summary_has_each_class_and_both_ends() -> None:
    found = summarise(handmade([float(n) for n in range(40)]))
    assert found["mean"] == 19.5
    assert found["quantiles"]["0.5"] == 19.5
    assert found["classes"]["even"] == {"examples": 20, "mean": 19.0, "median": 19.0, "lowest_quarter": 0.25}
    assert [row["id"] for row in found["lowest"]] == [str(n) for n in range(20)]
    assert [row["id"] for row in found["highest"]] == [str(n) for n in range(39, 19, -1)]
    assert found["cost_epochs"] == 12.5 / 40


def test_constant_scores_can_be_drawn() -> None:
    assert histogram(handmade([1.0] * 8)).texts

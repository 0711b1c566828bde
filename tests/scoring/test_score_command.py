"""The command: leantrain score."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from scoring_helpers import call

from leantrain.cost import FORWARD
from leantrain.errors import LeanError
from leantrain.run.scores import from_run
from leantrain.scoring import load
from program import SMALL


def test_the_command_writes_scores_pictures_and_a_summary(scored: Path) -> None:
    scores = load(scored / "s.npz")
    assert len(scores) == 160
    assert scores.made_with["models"] == 2
    assert scores.made_with["train_limit"] == 160
    assert {p.name for p in (scored / "s").iterdir()} == {"histogram.png", "gallery.png", "classes.png", "summary.json"}
    for picture in (scored / "s").glob("*.png"):
        with Image.open(picture) as opened:
            assert opened.size[0] == 900
    summary = json.loads((scored / "s" / "summary.json").read_text())
    assert summary["cost_epochs"] == pytest.approx(2 * (2 + FORWARD))
    assert len(summary["lowest"]) == len(summary["highest"]) == 20
    assert sum(row["examples"] * row["lowest_quarter"] for row in summary["classes"].values()) == pytest.approx(40)


def test_the_command_prints_a_table_and_says_how_to_use_the_file(scored: Path) -> None:
    table, said = (scored / "stdout").read_text(), (scored / "stderr").read_text()
    assert "EL2N of 160 examples" in table
    assert "in the lowest 25%" in table
    assert "\x1b" not in table + said
    assert "cost 4.67 epochs" in said.splitlines()[0]
    assert "leantrain train --data digits --train-limit 160 --method 'el2n[scores=s.npz]'" in said
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("model ")] == [
        "model 1 of 2",
        "model 2 of 2",
    ]


def test_an_existing_file_is_not_overwritten(scored: Path, tmp_path: Path) -> None:
    before = (scored / "s.npz").read_bytes()
    for taken in (scored / "s.npz", scored / "s.parquet"):  # the second would share the pictures' folder
        with pytest.raises(LeanError, match="is there already; choose another --out"):
            call("score", *SMALL, "--out", taken)
    assert (scored / "s.npz").read_bytes() == before


def test_a_call_that_was_stopped_while_it_drew_is_finished_by_the_next_try(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(scored / "s.npz", tmp_path / "s.npz")  # written first, and the summary last
    words = [*SMALL, "--models", 2, "--score-epochs", 2, "--out", tmp_path / "s.npz"]
    with pytest.raises(LeanError, match="is there already"):
        call("score", *words, "--seed", 1)
    call("score", *words)
    assert "are of such a call that was stopped" in capsys.readouterr().err
    assert (tmp_path / "s" / "summary.json").read_text() == (scored / "s" / "summary.json").read_text()


def test_json_is_all_that_is_printed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("score", "--from-run", trained, "--out", tmp_path / "use.parquet", "--json")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "use" / "summary.json").read_text())
    assert "use is to look at and to compare" in printed.err
    assert torch.equal(load(tmp_path / "use.parquet").values, from_run(trained).values)


def test_two_files_are_compared(
    scored: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_run(trained).save(tmp_path / "use.npz")
    call("score", "--compare", scored / "s.npz", tmp_path / "use.npz", "--out", tmp_path / "out")
    assert "Spearman rank correlation: " in capsys.readouterr().out
    written = {"overlap.png", "compare.json", "combined.npz", "combined.png"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == written
    assert load(tmp_path / "out" / "combined.npz").made_with["of"] == ["el2n", "use"]
    call("score", "--compare", scored / "s.npz", tmp_path / "use.npz", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "compare.json").read_text())
    assert found["common"] == 160


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "mixtrain"), "score 'mixtrain' is not known; there are el2n, forgetting, grand, loss"),
        (("--models", "0"), "models is 0"),
        (("--method", "forgetting", "--score-epochs", "1"), "forgetting takes at least 2"),
        (("--method", "grand", "--gradients", "first"), "must be one of all, last"),
        (("--gradients", "last"), "score 'el2n' has no option 'gradients'"),
        (("--out", "scores.txt"), r"\.npz or \.parquet"),
        (("--train-limit", "1"), "--train-limit is 1"),
        (("--compare", "a.npz", "b.npz", "--models", "2"), "--compare takes no --models"),
        (("--from-run", "here", "--method", "el2n"), "--from-run takes no --method"),
        (("--compare", "a.npz", "b.npz", "--from-run", "here"), "--compare takes no --from-run"),
        (("--compare", "a.npz", "b.npz"), "there is no scores file 'a.npz'"),
        (("--from-run", "here"), "'here' holds no run"),
    ],
)
def test_a_mistake_is_one_sentence(
    flags: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LeanError, match=message):
        call("score", *flags)
    assert not list(tmp_path.iterdir())


def test_without_out_the_file_is_named_after_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("score", *SMALL, "--method", "forgetting", "--models", 1, "--score-epochs", 2, "--seed", 3)
    assert (tmp_path / "scores-digits-forgetting-seed3.npz").exists()
    assert (tmp_path / "scores-digits-forgetting-seed3" / "summary.json").exists()

"""Hostile flags and settings: one line, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import leantrain
from leantrain.errors import LeanError
from program import SMALL, run

LONG = "x" * 300
HUGE = "9" * 400
BOMB = "a: &a [x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]"


def refused(*words: object) -> str:
    """What a command line that cannot work is answered."""
    done = run(*words)
    assert done.returncode == 2, done
    assert done.stderr.startswith("leantrain: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert len(done.stderr) < 2200
    return done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--seed", HUGE), "--seed is 99999"),
        (("--width", HUGE), "must be at most"),
        (("--width", 2147483648), "--width is 2147483648, but must be at most 4096"),
        (("--threads", 32768), "--threads is 32768, but must be at most 1024"),
        (("--workers", 100_000), "--workers is 100000, but must be at most 1024"),
        (("--lr", HUGE), "--lr is inf, but must be a finite number"),
        (("--batch-size", HUGE), "must be at most"),
        (("--data", f"/tmp/{LONG}"), "File name too long"),
        (("--data", LONG), "File name too long"),
        (("--data-root", f"/tmp/{LONG}", "--data", "cifar10"), "File name too long"),
        (("--weights", LONG), "File name too long"),
        (("--config", LONG), "File name too long"),
        (("--out", LONG), "File name too long"),
        (("--method", f"el2n[scores={LONG}.npz]"), "File name too long"),
        (("--model", "a\nb"), "a b"),
        (("--method", "el2n[prune=0.1,prune=0.2]"), "gives 'prune' twice"),
        (("--schedule", "step[every=1,every=2]"), "gives 'every' twice"),
    ],
)
def test_flags_beyond_all_measure(flags: tuple[object, ...], words: str, tmp_path: Path) -> None:
    out = () if "--out" in flags else ("--out", tmp_path / "o")
    assert words in refused("train", *SMALL, "--epochs", 1, *out, *flags)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: " + HUGE, "must be at most"),
        ("lr: 2024-13-45", "is not YAML: month must be in 1..12"),
        ("lr: 2024-01-01", "lr is '2024-01-01', but must be a number"),
        ('data: "a\\0b"', "holds a NUL character"),
        ('data: "a\\nb"', "unknown data set 'a b'"),
        ("lr: 0.1\nlr: 0.2", "gives 'lr' twice"),
        (BOMB, "it holds an alias"),
        ("lr: [" * 5000, "is not YAML"),
        ("lr: [1, 2]", "lr is a list, but must be a single value"),
        ("? [1, 2]\n: 3", "is not YAML"),
        ("? " + "y" * 5000 + "\n: 3", "has no setting 'yyy"),
        ("\ud800", "is not YAML"),
        ("%TAG", "is not YAML"),
        ("1", "must hold 'name: value' lines"),
    ],
)  # fmt: skip
def test_settings_in_a_file_beyond_all_measure(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    for command in ("train", "compare"):
        assert words in refused(command, "--config", tmp_path / "c.yaml", "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_half_a_character_is_no_name() -> None:
    assert "has a character that cannot be written" in refused("train", *SMALL, "--epochs", 1, "--out", "\ud800")


@pytest.mark.parametrize("flag", ["--seeds", "--jobs", "--margin"])
def test_comparisons_without_end_are_refused(flag: str, tmp_path: Path) -> None:
    assert f"{flag} is " in refused("compare", *SMALL, flag, HUGE, "--out", tmp_path / "o")


def test_as_many_threads_as_are_allowed_work(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1024)
        assert float(torch.ones(10).sum()) == 10
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("epochs", [float("inf"), float("nan"), 1.5, 0, 40_000])
def test_a_loop_of_no_length_is_refused(epochs: float) -> None:
    data = TensorDataset(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    with pytest.raises(LeanError, match="must be a whole number"):
        leantrain.attach(model, data, epochs=epochs)  # type: ignore[arg-type]

"""Files that were damaged after they were written: noticed, and resumed from what is whole, to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from program import SMALL, run, same_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("damage") / "whole"
    done = run("train", *SMALL, "--epochs", 3, "--checkpoint-every", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """The run as a kill just before its end would have left it."""
    out = tmp_path / "cut"
    shutil.copytree(whole, out)
    for name in ("result.json", "model.safetensors"):
        (out / name).unlink()
    return out


def resume(out: Path, *more: object) -> tuple[int, str]:
    done = run("train", "--out", out, "--resume", *more)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def flip(file: Path, place: float, bit: int = 3) -> None:
    """Flip one bit of a file, at a share of its length."""
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.parametrize("damage", ["weights", "cut", "emptied", "gone"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_is_gone_on_from(
    cut: Path, whole: Path, damage: str
) -> None:
    file = cut / "checkpoint.pt"
    if damage == "weights":
        flip(file, 0.5)
    elif damage == "gone":  # as a kill between two renames leaves it, which is no damage
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 5000 if damage == "cut" else 0])
    code, said = resume(cut)
    assert code == 0
    assert ("checkpoint.pt' is not a checkpoint that can be used" in said) == (damage != "gone")
    assert ("going back to the checkpoint before it, checkpoint-before.pt" in said) == (damage != "gone")
    assert "resuming at step 14" in said  # of 15
    same_run(whole, cut)


def test_two_damaged_checkpoints_are_one_sentence(cut: Path) -> None:
    for name in ("checkpoint.pt", "checkpoint-before.pt"):
        flip(cut / name, 0.3)
    code, said = resume(cut)
    assert code == 2
    assert "checkpoint-before.pt' is not a checkpoint that can be used (its checksum is wrong" in said
    assert said.rstrip().endswith("delete them to start over.")


def test_damaged_weights_are_not_evaluated(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    assert run("eval", out).returncode == 0
    flip(out / "model.safetensors", 0.5, bit=6)
    done = run("eval", out)
    assert done.returncode == 2
    assert "model.safetensors' cannot be read (its checksum is wrong" in done.stderr


@pytest.mark.parametrize("damage", ["a line", "gone", "no text"])
def test_damaged_metrics_are_written_again_from_the_checkpoint(cut: Path, whole: Path, damage: str) -> None:
    file = cut / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    if damage == "gone":
        file.unlink()
    elif damage == "a line":
        file.write_text(lines[0] + lines[1][10:] + lines[2])
    else:
        file.write_bytes(b"\xff\xfe\x00")
    assert resume(cut)[0] == 0
    same_run(whole, cut)


@pytest.mark.parametrize(("name", "value"), [("lr", 0.5), ("dropout", 0.5), ("seed", 7), ("epochs", 4)])
def test_settings_edited_by_hand_are_refused(cut: Path, name: str, value: Any) -> None:
    file = cut / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    before = settings[name]
    file.write_text(yaml.safe_dump({**settings, name: value}))
    code, said = resume(cut)
    assert code == 2
    assert f"belongs to a run with {name} {before}, not {value}; put that back, in config.yaml" in said


def test_the_checkpoint_still_opens_with_torch_alone(whole: Path) -> None:
    saved = torch.load(whole / "checkpoint.pt", weights_only=True)
    assert [row["epoch"] for row in saved["rows"]] == [0, 1, 2]
    assert saved["rows"] == [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]


def make_images(root: Path) -> Path:
    for part, each in (("train", 16), ("val", 3)):
        for number in range(2 * each):
            folder = root / part / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((16, 16), 50 + number).save(folder / f"{number}.png")
    return root


def test_a_picture_damaged_at_its_end_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    bad = make_images(tmp_path / "images") / "val" / "a" / "2.png"
    bad.write_bytes(bad.read_bytes()[:200])
    done = run("train", "--data", tmp_path / "images", "--width", 4, "--epochs", 1, "--out", tmp_path / "o")
    assert done.returncode == 2
    assert "val/a/2.png' cannot be read" in done.stderr
    assert not (tmp_path / "o").exists()


def test_one_damaged_in_its_middle_can_be_left_out_of_a_run_that_has_begun(tmp_path: Path) -> None:
    flip(make_images(tmp_path / "images") / "val" / "a" / "2.png", 0.5)
    out = tmp_path / "o"
    words = ["--width", 4, "--epochs", 2, "--batch-size", 8, "--threads", 1, "--workers", 0, "--checkpoint-every", 1]
    done = run("train", "--data", tmp_path / "images", *words, "--out", out)
    assert done.returncode == 2
    assert "val/a/2.png' cannot be read" in done.stderr
    assert "--skip-bad-images" in done.stderr
    code, said = resume(out, "--skip-bad-images")
    assert code == 0, said
    assert "resuming at step 4" in said and "1 bad images left out" in said
    assert json.loads((out / "result.json").read_text())["test_examples"] == 5
    assert run("eval", out).returncode == 0
    assert resume(out)[0] == 0

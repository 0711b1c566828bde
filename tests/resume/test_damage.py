"""Files that were damaged after they were written: noticed, and resumed from what is whole, to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from leantrain.run import checkpoint
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


def edited(file: Path, **changes: Any) -> None:
    """Change what a JSON file says; None takes a name out."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def refused(*words: object) -> str:
    done = run(*words)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("leantrain: ")
    return last


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_text("[1, 2]"),
        lambda file: file.write_text("[" * 100_000),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: edited(file, test_accuracy=None),
        lambda file: edited(file, test_accuracy="good"),
        lambda file: edited(file, planned_epochs=True),
    ],
)
def test_a_damaged_result_is_named_and_made_again(whole: Path, tmp_path: Path, damage: Any) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    damage(out / "result.json")
    for command in (("train", "--out", out, "--resume"), ("report", out)):
        said = refused(*command)
        assert "result.json'" in said and said.endswith("remove it and go on with --resume.")
    (out / "result.json").unlink()
    assert resume(out)[0] == 0
    same_run(whole, out)


@pytest.mark.parametrize("damage", ["empty", "no zip", "flipped", "two rows", "words"])
def test_a_damaged_history_is_named(whole: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    file = out / "history" / "epoch-0001.npz"
    with np.load(file) as content:
        arrays = dict(content)
    if damage == "flipped":
        flip(file, 0.3)
    elif damage in ("two rows", "words"):
        arrays["loss"] = arrays["loss"].reshape(2, -1) if damage == "two rows" else arrays["loss"].astype(str)
        np.savez(file, **arrays)
    else:
        file.write_bytes(b"" if damage == "empty" else b"PK no zip")
    (out / "history" / "epoch-notes.npz").write_bytes(b"")  # not one of ours
    said = refused("score", "--from-run", out, "--out", tmp_path / "u.npz")
    assert "the history of epoch 1 " in said and said.endswith("remove the file.")


@pytest.mark.parametrize("line", ["{", "[]", '{"epoch": 1}', "\udcff"])
def test_a_damaged_line_of_the_metrics_is_named_and_written_again(whole: Path, tmp_path: Path, line: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    file = out / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_bytes((lines[0] + line + "\n" + lines[2]).encode("utf-8", "surrogateescape"))
    assert refused("report", out).endswith("go on with --resume, which writes it again from the checkpoint.")
    assert resume(out)[0] == 0
    same_run(whole, out)


@pytest.mark.parametrize("change", ["top", "inside", "kind"])
def test_a_checkpoint_that_lacks_something_is_one_sentence(cut: Path, change: str) -> None:
    for name in ("checkpoint.pt", "checkpoint-before.pt"):
        saved = checkpoint.load(cut / name)
        if change == "top":
            del saved["optimizer"]
        elif change == "inside":
            del saved["lean"]["states"]
        else:
            saved["lean"] = 5
        checkpoint.save(cut / name, saved)
    code, said = resume(cut)
    assert code == 2
    assert ("it has no 'optimizer'" if change == "top" else "does not hold what a checkpoint does") in said


@pytest.mark.parametrize("text", ["a: [", "made_with: 5", "lr: 2024-13-45", "[]", "", "\x00"])
def test_damaged_settings_are_one_sentence_in_every_command(whole: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "config.yaml").write_text(text)
    for command in (("report", out), ("eval", out), ("inspect", out), ("score", "--from-run", out)):
        said = refused(*command)
        assert "config.yaml'" in said or "digits" in said  # whose settings are not those of the run any more
    if text != "made_with: 5":
        assert "config.yaml'" in refused("train", "--out", out, "--resume")


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

"""Files are whole or not there, and a checkpoint never runs code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from leantrain.errors import LeanError
from leantrain.files import write_atomically, write_text
from leantrain.run import checkpoint


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")

    def half(file):  # type: ignore[no-untyped-def]
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def fill(file):  # type: ignore[no-untyped-def]
        with open("/dev/full", "wb") as full:
            full.write(b"x" * 100_000)

    with pytest.raises(LeanError, match=r"a\.pt' cannot be written: No space left on device; free some space"):
        write_atomically(tmp_path / "a.pt", fill)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeanError, match="cannot be written: Not a directory"):
        write_text(tmp_path / "file" / "a", "x")


def test_checkpoints_round_trip(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.pt", {"x": torch.arange(3), "nested": {"y": [1, 2.5, None, "z"]}})
    loaded = checkpoint.load(tmp_path / "c.pt")
    assert loaded["x"].tolist() == [0, 1, 2]
    assert loaded["nested"] == {"y": [1, 2.5, None, "z"]}


class Bomb:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.mkdir, ("bomb",)


@pytest.mark.parametrize("kind", ["torch", "pickle", "text", "empty", "foreign"])
def test_a_file_that_is_no_checkpoint_is_refused_and_not_executed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.pt"
    if kind == "torch":
        torch.save({"format": 1, "x": Bomb()}, path)
    elif kind == "foreign":
        torch.save({"epoch": 3}, path)
    else:
        path.write_bytes({"pickle": pickle.dumps(Bomb()), "text": b"hello", "empty": b""}[kind])
    with pytest.raises(LeanError, match=r"c\.pt' is not a"):
        checkpoint.load(path)
    assert not (tmp_path / "bomb").exists()

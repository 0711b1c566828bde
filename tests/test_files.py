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


def test_a_flipped_bit_of_a_checkpoint_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save(path, {"x": torch.arange(3.0)})
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(LeanError, match="can be used"):
            checkpoint.load(path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    last, before = tmp_path / "c.pt", tmp_path / "before.pt"
    for number in range(3):
        checkpoint.save(last, {"number": number}, keep=before)
    assert [checkpoint.load(path)["number"] for path in (last, before)] == [2, 1]
    last.write_bytes(last.read_bytes()[:-1])
    said: list[str] = []
    assert checkpoint.load(last, before, say=said.append)["number"] == 1
    assert len(said) == 1 and "going back to the checkpoint before it, before.pt." in said[0]


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

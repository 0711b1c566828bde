"""The file of scores can be trusted."""

from __future__ import annotations

import json
import math
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scoring_helpers import handmade

from leantrain.errors import LeanError
from leantrain.inspect.score_figures import histogram
from leantrain.inspect.score_summary import score_table
from leantrain.scoring import load, summarise


@pytest.mark.parametrize("name", ["s.npz", "s.parquet"])
def test_a_file_gives_back_what_was_saved(tmp_path: Path, name: str) -> None:
    saved = handmade([0.1, 2.5, -1.0], ["a/ü.png", "b/2.png", "c, d"])
    saved.save(tmp_path / "new" / name)
    found = load(tmp_path / "new" / name)
    assert torch.equal(found.values, saved.values)
    assert torch.equal(found.targets, saved.targets)
    for field in ("ids", "classes", "kind", "cost", "seconds", "made_with"):
        assert getattr(found, field) == getattr(saved, field), field
    assert [p.name for p in (tmp_path / "new").iterdir()] == [name]


def test_values_come_in_the_order_that_is_asked_for() -> None:
    scores = handmade([1.0, 2.0, 3.0], ["a", "b", "c"])
    assert scores.values_for(["c", "a"]).tolist() == [3, 1]
    assert scores.targets[scores.rows(["b", "a"])].tolist() == [1, 0]
    assert torch.equal(scores.values_for(scores.ids), scores.values)


def test_examples_without_a_score_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(LeanError, match="2 of 3 examples have no score, the first of them 'x'"):
        handmade([1.0, 2.0]).values_for(["0", "x", "y"])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_not_written(tmp_path: Path, bad: float) -> None:
    with pytest.raises(LeanError, match="1 of 2 scores are not finite"):
        handmade([1.0, bad]).save(tmp_path / "s.npz")
    assert not list(tmp_path.iterdir())


def test_file_names_of_any_bytes_are_kept_by_npz_and_refused_by_parquet(tmp_path: Path) -> None:
    odd = handmade([1.0, 2.0], ["a", b"b\xff.png".decode("utf-8", "surrogateescape")])
    odd.save(tmp_path / "s.npz")
    assert load(tmp_path / "s.npz").ids == odd.ids
    with pytest.raises(LeanError, match="save as .npz instead"):
        odd.save(tmp_path / "s.parquet")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match=r"\.npz or \.parquet"):
        handmade([1.0, 2.0]).save(tmp_path / "s.csv")
    with pytest.raises(LeanError, match=r"\.npz or \.parquet"):
        load(tmp_path / "s.pkl")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_missing_cut_and_foreign_files_are_refused_in_one_sentence(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    with pytest.raises(LeanError, match="there is no scores file"):
        load(path)
    handmade([float(n) for n in range(500)]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"not a file of scores", whole[: len(whole) // 2], whole[:200] + b"\0" * 40 + whole[240:]):
        path.write_bytes(content)
        with pytest.raises(LeanError, match="is not a whole file of scores") as refusal:
            load(path)
        assert "\n" not in str(refusal.value)


def test_a_file_of_something_else_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "other.npz", loss=np.zeros(3))
    trapped: Any = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "trap.npz", values=trapped, ids=trapped, targets=trapped, leantrain_scores=trapped)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a"], "score": [1.0], "target": [0]}), tmp_path / "other.parquet")
    for name in ("other.npz", "trap.npz", "array.npz", "other.parquet"):
        with pytest.raises(LeanError, match="is not a whole file of scores"):
            load(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_ids_that_occur_twice_are_refused(tmp_path: Path) -> None:
    handmade([1.0, 2.0], ["a", "a"]).save(tmp_path / "s.npz")
    with pytest.raises(LeanError, match="more than once"):
        load(tmp_path / "s.npz")


@pytest.mark.parametrize(
    ("kind", "options"), [("grand", {"gradients": "last"}), ("el2n", {}), ("not-registered-here", {"power": 2})]
)
def test_the_format_stays(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """What earlier versions wrote, and scores whose kind is registered elsewhere, can be read and shown."""
    made_with = {"data": "digits", "models": 3, "epochs": 2, **options, "seed": 0}
    about = {"classes": ["a", "b"], "kind": kind, "cost": 7.5, "seconds": 1.5, "made_with": made_with}
    np.savez_compressed(
        tmp_path / "s.npz",
        values=np.array([0.5, 1.5], np.float32),
        ids=np.array(["x", "y"]),
        targets=np.array([1, 0]),
        leantrain_scores=np.array(json.dumps(about)),
    )
    scores = load(tmp_path / "s.npz")
    assert (scores.values.tolist(), scores.ids, scores.targets.tolist()) == ([0.5, 1.5], ("x", "y"), [1, 0])
    assert (scores.kind, scores.made_with, scores.classes) == (kind, made_with, ("a", "b"))
    assert score_table(summarise(scores)).title
    assert histogram(scores).texts
    scores.save(tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz") as written:
        assert json.loads(str(written["leantrain_scores"])) == about


def test_parquet_without_pyarrow_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handmade([1.0, 2.0]).save(tmp_path / "s.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # so that importing it fails
    with pytest.raises(LeanError, match=r"pip install 'leantrain\[cli\]', or use .npz"):
        load(tmp_path / "s.parquet")
    with pytest.raises(LeanError, match=r"pip install 'leantrain\[cli\]', or use .npz"):
        handmade([1.0, 2.0]).save(tmp_path / "other.parquet")
    assert not (tmp_path / "other.parquet").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.ones((4, 1), np.float32)},
        {"values": np.ones((2, 2), np.float32)},
        {"ids": np.array([["a", "b"], ["c", "d"]])},
        {"targets": np.zeros((4, 1), np.int64)},
        {"targets": np.array(["a", "b", "c", "d"])},
        {"cost": "much"},
        {"cost": -1.0},
        {"seconds": math.inf},
        {"classes": "ab"},
        {"classes": [1, 2]},
        {"kind": 5},
        {"made_with": []},
        {"more": 1},
    ],
)
def test_columns_that_no_scores_have_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "s.npz"
    handmade([1.0, 2.0, 3.0, 4.0]).save(path)
    with np.load(path) as content:
        arrays: dict[str, Any] = dict(content)
    (name, value), key = next(iter(change.items())), "leantrain_scores"
    if name in arrays:
        arrays[name] = value
    else:
        arrays[key] = np.array(json.dumps({**json.loads(str(arrays[key])), name: value}))
    np.savez(path, **arrays)
    with pytest.raises(LeanError, match="is not a whole file of scores"):
        load(path)


def test_a_file_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    handmade([1.0, 2.0]).save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["values.npy"] = content["values.npy"].replace(b"(2,), }      ", b"(2" + b"0" * 11 + b",), }", 1)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(LeanError, match="is not a whole file of scores"):
        load(path)

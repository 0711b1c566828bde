"""The scores file: the score of every example, who the examples are, and what making the scores cost."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from leantrain.errors import LeanError, shortened
from leantrain.files import BAD_ARCHIVE, write_atomically

SUFFIXES = (".npz", ".parquet")
_KEY = "leantrain_scores"
"""Where a file keeps what is not per example, as JSON; it also distinguishes a scores file from others."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One score per training example; higher is harder, or of more use.

    Attributes:
        values: float32, one per example.
        ids: who each example is, whatever part of the set is trained on; "0", "1", … where a data set does not say.
        targets: int64, their labels.
        classes: the names of the labels.
        kind: the name of a registered score, without its options; or "use" or "combined", which are computed.
        cost: what making them cost, in examples of plain training.
        seconds: how long it took.
        made_with: plain values that say from what: data, model, epochs, seed, the score's own options, ….
    """

    values: Tensor
    ids: tuple[str, ...]
    targets: Tensor
    classes: tuple[str, ...]
    kind: str
    cost: float
    seconds: float
    made_with: dict[str, Any]

    def __post_init__(self) -> None:
        lengths = {len(self.values), len(self.ids), len(self.targets)}
        if lengths != {len(self.values)} or not len(self.values):
            raise LeanError(
                f"there are {len(self.values)} scores for {len(self.ids)} ids and {len(self.targets)} targets; "
                "give one of each per example, and at least one."
            )

    def __len__(self) -> int:
        return len(self.values)

    def save(self, path: Path) -> None:
        """Write them to a `.npz` or `.parquet` file, whole or not at all."""
        path = Path(path)
        check_suffix(path)
        if path.suffix == ".parquet":
            _pyarrow()
        bad = int((~self.values.isfinite()).sum())
        if bad:
            raise LeanError(
                f"{bad} of {len(self)} scores are not finite, so '{path}' was not written; "
                "score with a smaller learning rate, or in fp32."
            )
        write_atomically(path, self._write_npz if path.suffix == ".npz" else self._write_parquet)

    def values_for(self, ids: Sequence[str]) -> Tensor:
        """The scores of these examples, in this order."""
        return self.values[self.rows(ids)]

    def rows(self, ids: Sequence[str]) -> Tensor:
        """Where each of these examples is among the scores."""
        if tuple(ids) == self.ids:
            return torch.arange(len(self))
        place = {name: number for number, name in enumerate(self.ids)}
        missing = [name for name in ids if name not in place]
        if missing:
            raise LeanError(
                f"{len(missing)} of {len(ids)} examples have no score, the first of them '{missing[0]}'; "
                "score the same data, with the same --train-limit or a larger one."
            )
        return torch.tensor([place[name] for name in ids])

    def _about(self) -> str:
        about = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for column in ("values", "ids", "targets"):
            del about[column]
        return json.dumps(about)

    def _write_npz(self, file: IO[bytes]) -> None:
        arrays: dict[str, Any] = {
            "values": self.values.float().numpy(),
            "ids": np.array(self.ids),
            "targets": self.targets.numpy(),
            _KEY: np.array(self._about()),
        }
        np.savez_compressed(file, **arrays)

    def _write_parquet(self, file: IO[bytes]) -> None:
        pa, pq = _pyarrow()
        try:
            names = pa.array(self.ids, pa.string())
        except UnicodeEncodeError:
            raise LeanError("some file names are not UTF-8, which parquet cannot hold; save as .npz instead.") from None
        columns = {"id": names, "score": self.values.float().numpy(), "target": self.targets.numpy()}
        table = pa.table(columns).replace_schema_metadata({_KEY: self._about()})
        pq.write_table(table, file, write_page_checksum=True)


def ids_of(source: Any) -> tuple[str, ...]:
    """Who the examples of a data set are: what it says itself, or their places."""
    ids = getattr(source, "ids", None)
    if ids is None:
        return tuple(map(str, range(len(source))))
    return tuple(map(str, ids.tolist() if isinstance(ids, Tensor) else ids))


def check_suffix(path: Path) -> None:
    """Refuse a file name with neither of the two suffixes."""
    if path.suffix not in SUFFIXES:
        raise LeanError(f"scores are kept in {' or '.join(SUFFIXES)} files, and '{path}' is neither; rename it.")


def _pyarrow() -> tuple[Any, Any]:
    """Only parquet files need it, so the library does without."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise LeanError(
            "scores in a .parquet file need pyarrow, which is not installed; pip install 'leantrain[cli]', or use .npz."
        ) from None
    return pyarrow, pyarrow.parquet


def load(path: Path) -> Scores:
    """Read a scores file; nothing in it is ever executed."""
    path = Path(path)
    check_suffix(path)
    if not path.is_file():
        raise LeanError(f"there is no scores file '{path}'; make one with leantrain score --out '{path}'.")
    if path.suffix == ".parquet":
        _pyarrow()
    try:
        values, ids, targets, about = _read_npz(path) if path.suffix == ".npz" else _read_parquet(path)
        _check_columns(values, targets, about)
        about["classes"] = tuple(about["classes"])
        scores = Scores(torch.from_numpy(values), ids, torch.from_numpy(targets), **about)
    except BAD_ARCHIVE as error:
        why = shortened(str(error)) or type(error).__name__
        raise LeanError(f"'{path}' is not a whole file of scores ({why}); make it again.") from None
    if not bool(scores.values.isfinite().all()):
        raise LeanError(f"some scores in '{path}' are not finite; make it again.")
    if len(set(scores.ids)) != len(scores):
        raise LeanError(f"some ids in '{path}' occur more than once; make it again.")
    return scores


def _check_columns(values: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], about: Any) -> None:
    """Refuse what `Scores` could not have written."""
    if values.ndim != 1 or targets.ndim != 1:
        raise ValueError(f"its columns have {values.ndim} and {targets.ndim} dimensions, not one")
    if not isinstance(about, dict):
        raise TypeError("it does not say what was scored")
    for name, kind in (("kind", str), ("classes", list), ("made_with", dict)):
        if not isinstance(about[name], kind):
            raise TypeError(f"its {name} is {shortened(repr(about[name]))}")
    for name in ("cost", "seconds"):
        if type(about[name]) not in (int, float) or not 0 <= about[name] < math.inf:
            raise TypeError(f"its {name} is {shortened(repr(about[name]))}")
    if not all(isinstance(name, str) for name in about["classes"]):
        raise TypeError("its classes are not names")


_Columns = tuple[np.ndarray[Any, Any], tuple[str, ...], np.ndarray[Any, Any], dict[str, Any]]


def _read_npz(path: Path) -> _Columns:
    content = np.load(path, allow_pickle=False)
    if not isinstance(content, np.lib.npyio.NpzFile):
        raise ValueError("a single array")
    with content as arrays:
        values, targets = arrays["values"].astype(np.float32), arrays["targets"].astype(np.int64)
        if arrays["ids"].ndim != 1:
            raise ValueError(f"its ids have {arrays['ids'].ndim} dimensions, not one")
        return values, tuple(arrays["ids"].astype(str).tolist()), targets, json.loads(str(arrays[_KEY]))


def _read_parquet(path: Path) -> _Columns:
    _, pq = _pyarrow()
    # Alone, or pyarrow would look for partitions in the names of the folders above.
    table = pq.ParquetFile(path, page_checksum_verification=True).read()
    about = json.loads((table.schema.metadata or {})[_KEY.encode()])
    values, targets = table["score"].to_numpy().astype(np.float32), table["target"].to_numpy().astype(np.int64)
    return values, tuple(map(str, table["id"].to_pylist())), targets, about

"""Hugging Face data sets on disk: Arrow files that are mapped into memory, and folders that `datasets` can load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leantrain.data import decode
from leantrain.data.images import check_labels, some
from leantrain.errors import LeanError

PREFIX = "hf:"


@dataclass(frozen=True, eq=False)
class Rows:
    """Encoded images as the rows of a data set whose image column is not decoded."""

    label: str
    source: Any
    column: str
    rows: Tensor  # int32, which at millions of examples saves memory

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, position: int) -> bytes:
        image = self.source[int(self.rows[position])][self.column]
        data: bytes | None = image["bytes"]
        return data if data is not None else Path(image["path"]).read_bytes()

    def ends(self, position: int) -> tuple[bytes, bytes]:
        return decode.ends(self.read(position))

    def name(self, position: int) -> str:
        return f"{self.label}, row {int(self.rows[position])}"

    def ids(self) -> Tensor:
        return self.rows.long()

    def select(self, positions: Tensor) -> Rows:
        return replace(self, rows=self.rows[positions])

    def digest(self, update: Callable[[bytes], object]) -> None:
        update(str(self.source._fingerprint).encode())  # of its content, as `datasets` keeps it
        update(self.rows.numpy().tobytes())


def read(path: Path) -> tuple[tuple[Rows, Tensor], tuple[Rows, Tensor] | None, tuple[str, ...]]:
    """The training part of the set at `path`, its test part if it has one, and the classes."""
    found = _loaded(path)
    parts = dict(found) if isinstance(found, dict) else {"train": found}
    if "train" not in parts:
        if len(parts) != 1:
            raise LeanError(f"{str(path)!r} has the parts {some(parts)}, but none called train; rename one.")
        parts = {"train": next(iter(parts.values()))}
    held = next((parts[name] for name in ("validation", "val", "test") if name in parts), None)
    train, classes = _part(path, parts["train"])
    return train, None if held is None else _part(path, held)[0], classes


def _loaded(path: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise LeanError(f"--data {PREFIX}{path} needs the datasets package: pip install 'leantrain[hf]'.") from None
    if not path.is_dir():
        raise LeanError(f"There is no folder at {str(path)!r}; check the path given to --data {PREFIX}PATH.")
    saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
    try:
        return datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
    except Exception as error:  # whatever its many readers raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise LeanError(f"{str(path)!r} cannot be read as a Hugging Face data set ({why}); write it again.") from None


def _part(path: Path, source: Any) -> tuple[tuple[Rows, Tensor], tuple[str, ...]]:
    import datasets

    features = source.features
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    labels = labels or [name for name in ("label", "labels") if name in features]
    if not images or not labels:
        raise LeanError(
            f"{str(path)!r} has the columns {some(features)}, but needs an image and a label; cast them to Image and "
            "ClassLabel."
        )
    bare = source.select_columns([images[0]]).cast_column(images[0], datasets.Image(decode=False))
    numbers = source.with_format("numpy", columns=[labels[0]])[:][labels[0]]
    if not np.issubdtype(numbers.dtype, np.integer):
        raise LeanError(f"The column '{labels[0]}' of {str(path)!r} is {numbers.dtype}; cast it to ClassLabel.")
    targets = torch.from_numpy(numbers.astype(np.int64))
    named = getattr(features[labels[0]], "names", None)
    classes = tuple(named or (str(number) for number in range(min(int(targets.max()) + 1, len(targets)))))
    check_labels(targets, len(classes), repr(str(path)))
    return (Rows(str(path), bare, images[0], torch.arange(len(targets), dtype=torch.int32)), targets), classes

"""WebDataset shards: tar files of `KEY.jpg` beside `KEY.cls`, read by example through an index made once.

The index (where each image lies, and its class) is a file that is mapped into memory, so that processes share it and it
costs each of them next to nothing. An image is read at its place in its shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from leantrain.data import decode
from leantrain.data.images import some
from leantrain.errors import LeanError
from leantrain.files import write_atomically

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm")
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
ENTRY = np.dtype([("shard", "<u4"), ("size", "<u4"), ("offset", "<u8"), ("label", "<u4")])
"""What the index holds of an image; 20 bytes."""

Entries = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Shards:
    """Encoded images inside tar files: `rows` of an index."""

    paths: tuple[str, ...]
    index: Entries
    rows: Tensor  # int32, which at millions of examples saves memory

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, position: int) -> bytes:
        entry = self.index[int(self.rows[position])]
        with open(self.paths[int(entry["shard"])], "rb", buffering=0) as file:
            return os.pread(file.fileno(), int(entry["size"]), int(entry["offset"]))

    def ends(self, position: int) -> tuple[bytes, bytes]:
        return decode.ends(self.read(position))

    def name(self, position: int) -> str:
        entry = self.index[int(self.rows[position])]
        return f"{self.paths[int(entry['shard'])]}, byte {int(entry['offset'])}"

    def ids(self) -> Tensor:
        return self.rows.long()

    def select(self, positions: Tensor) -> Shards:
        return replace(self, rows=self.rows[positions])

    def digest(self, update: Callable[[bytes], object]) -> None:
        update(self.rows.numpy().tobytes())
        update(self.index["size"][self.rows.numpy()].tobytes())  # nearly as telling as the pixels

    def targets(self) -> Tensor:
        """int64, the class of every row."""
        return torch.from_numpy(self.index["label"][self.rows.numpy()].astype(np.int64))


def is_shards(name: str) -> bool:
    """Whether a name means shards: one tar file, or several by a range or a pattern."""
    return name.endswith(".tar")


def read(name: str, cache: Path) -> tuple[Shards, Shards | None, tuple[str, ...]]:
    """The training shards that a name means, the test shards beside them if there are any, and the classes.

    Args:
        name: a path with ranges or wildcards in its last part: `shards/train-{000000..000099}.tar`, `train-*.tar`.
        cache: where indexes are kept.
    """
    train = _expanded(name)
    held = [sorted(train[0].parent.glob(f"{part}*.tar")) for part in ("val", "test")]
    test = next((files for files in held if files and not set(files) & set(train)), [])
    paths = tuple(str(path.resolve()) for path in (*train, *test))
    entries, names = _index(paths, cache)
    in_test = entries["shard"] >= len(train)
    parts = [torch.from_numpy(np.flatnonzero(mask).astype(np.int32)) for mask in (~in_test, in_test)]
    own, held_out = (Shards(paths, entries, rows) for rows in parts)
    return own, held_out if test else None, names


def _expanded(name: str) -> list[Path]:
    """The files that a name with ranges and wildcards stands for, in order; all must be there."""
    found = RANGE.search(name)
    if found:
        first, last = found.groups()
        numbers = range(int(first), int(last) + 1)
        return [
            path
            for number in numbers
            for path in _expanded(f"{name[: found.start()]}{number:0{len(first)}d}{name[found.end() :]}")
        ]
    path = Path(name).expanduser()
    files = sorted(path.parent.glob(path.name)) if any(sign in path.name for sign in "*?[") else [path]
    missing = [file for file in files if not file.is_file()]
    if missing or not files:
        where = str(missing[0] if missing else path)
        raise LeanError(f"There is no shard at {where!r}; check the path given to --data.")
    return files


def _index(paths: Sequence[str], cache: Path) -> tuple[Entries, tuple[str, ...]]:
    """Every image of some shards and the names of the classes; made once, and again when a shard has changed."""
    stamps = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    key = hashlib.blake2b(repr(stamps).encode(), digest_size=12).hexdigest()
    file, names_file = cache / f"{key}.npy", cache / f"{key}.json"
    if not names_file.exists():
        entries, names = _scanned(paths)
        write_atomically(file, lambda out: np.save(out, entries))
        # Last, so that an index whose names are there is whole.
        write_atomically(names_file, lambda out: out.write(json.dumps(names).encode()))
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False), tuple(json.loads(names_file.read_text()))
    except (OSError, ValueError) as error:
        raise LeanError(
            f"the index '{file}' of the shards cannot be read ({error}); remove it and try again."
        ) from None


def _scanned(paths: Sequence[str]) -> tuple[Entries, list[str]]:
    """Read all headers and labels, shard by shard, so that no more than one shard's names are in memory."""
    numbers: dict[str, int] = {}
    parts = [_scan(number, path, numbers) for number, path in enumerate(paths)]
    entries = np.concatenate(parts)
    if all(name.isdigit() for name in numbers):  # class numbers: they are what they say
        order = {name: int(name) for name in numbers}
        highest = max(order.values())
        if highest >= len(entries):
            raise LeanError(f"{paths[0]!r} has the label {highest}, more than there are images; number classes from 0.")
        names = [str(number) for number in range(highest + 1)]
    else:
        names = sorted(numbers)
        order = {name: place for place, name in enumerate(names)}
    translation = np.array([order[name] for name in numbers], dtype=np.uint32)
    entries["label"] = translation[entries["label"]]
    return entries, names


def _scan(number: int, path: str, numbers: dict[str, int]) -> Entries:
    """The images of one shard; their labels are numbered in the order in which they first occur."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                key = f"{folder}/{stem}"
                if not member.isfile() or not stem:
                    continue
                if f".{extension.lower()}" in EXTENSIONS:
                    images[key] = (member.offset_data, member.size)
                elif dot and extension in ("cls", "json"):
                    label = _label(file, member, extension)
                    if label is not None:
                        labels.setdefault(key, numbers.setdefault(label, len(numbers)))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise LeanError(f"The shard {path!r} cannot be read ({error}); fetch it again.") from None
    without = [key.strip("/") for key in images if key not in labels]
    if without or not images:
        what = f"no label (.cls) for {some(without)}" if without else f"no images ({', '.join(EXTENSIONS)})"
        raise LeanError(f"The shard {path!r} has {what}; write every image as KEY.jpg beside KEY.cls.")
    rows = [(number, size, offset, labels[key]) for key, (offset, size) in images.items()]
    return np.array(rows, dtype=ENTRY)


def _label(file: IO[bytes], member: tarfile.TarInfo, extension: str) -> str | None:
    """A sample's class as text: the whole of its .cls, or the `label` of its .json."""
    text = os.pread(file.fileno(), member.size, member.offset_data).decode()
    if extension == "cls":
        return text.strip()
    content = json.loads(text)
    label = content.get("label", content.get("cls")) if isinstance(content, dict) else None
    return None if label is None else str(label)

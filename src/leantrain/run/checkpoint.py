"""Checkpoints: written whole or not at all, checked by a checksum, and read without executing code from the file."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import torch

from leantrain.errors import LeanError
from leantrain.files import BAD_ARCHIVE, write_atomically

FORMAT = 3
MARK = b"leantrain sha256 "
"""What the checksum at the end of the file starts with; `torch.load` reads the archive before it and stops there."""

TRAILER = len(MARK) + 2 * hashlib.sha256().digest_size
CHUNK = 2**20


def save(path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
    """Write a checkpoint of tensors and plain values atomically.

    Args:
        keep: where the checkpoint that was there before is kept.
    """

    def write(file: IO[bytes]) -> None:
        hashed = _Hashed(file)
        torch.save({"format": FORMAT, **content}, hashed)  # type: ignore[arg-type]
        file.write(MARK + hashed.digest.hexdigest().encode())

    write_atomically(path, write, keep)


def load(*paths: Path, needs: Collection[str] = (), say: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
    """Read the first of these checkpoints that is whole; one that is damaged, or that would run code, is passed over.

    Args:
        paths: from the last that was written to the first.
        needs: what it must hold.
        say: gets a sentence where one was passed over.

    Raises:
        LeanError: none is whole.
    """
    damaged = []
    for path in paths:
        try:
            content = _read(path, needs)
        except _Damaged as reason:
            damaged.append(f"'{path}' is not a checkpoint that can be used ({reason})")
            continue
        if damaged:
            say(f"warning: {', and '.join(damaged)}; going back to the checkpoint before it, {path.name}.")
        return content
    raise LeanError(f"{', and '.join(damaged)}; delete {'it' if len(damaged) == 1 else 'them'} to start over.")


class _Damaged(Exception):
    """Why a file is no checkpoint."""


def _read(path: Path, needs: Collection[str]) -> dict[str, Any]:
    try:
        _check_sum(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (*BAD_ARCHIVE, pickle.UnpicklingError) as error:
        raise _Damaged(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Damaged(f"not of leantrain's format {FORMAT}")
    missing = [name for name in needs if name not in content]
    if missing:
        raise _Damaged(f"it has no '{missing[0]}'")
    return content


def _check_sum(path: Path) -> None:
    """Compare a file's content with the checksum at its end: weights with a flipped bit would train on unnoticed."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - TRAILER
        digest = hashlib.sha256()
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
        written = file.read()
    if left or not written.startswith(MARK):
        raise ValueError("it does not end in a checksum: it was cut, or written by another program")
    if written != MARK + digest.hexdigest().encode():
        raise ValueError("its checksum is wrong: it was damaged after it was written")


class _Hashed:
    """A file that hashes what passes through to another."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

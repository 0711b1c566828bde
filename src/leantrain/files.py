"""Files that are whole or not there: every result and checkpoint is written beside its place, synced and renamed."""

from __future__ import annotations

import contextlib
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from leantrain.errors import LeanError

BAD_ARCHIVE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, NotImplementedError,
    OverflowError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip
"""What numpy raises for a damaged .npz file: its reader parses headers as Python, in an archive that may lie."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any], keep: Path | None = None) -> None:
    """Let `write` fill a file; it appears under its name complete and on disk, or the old one stays.

    Args:
        keep: another name for the old one; a cut between the two renames leaves it under that alone.

    Raises:
        LeanError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with friendly_disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if keep is not None and path.exists():
                os.replace(path, keep)
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Take away what writes left behind that were cut by a kill."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_atomically` for text."""
    write_atomically(path, lambda file: file.write(text.encode()))


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and sync it; a cut leaves at most a part of a line, which readers drop."""
    with friendly_disk_errors(path), open(path, "ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def friendly_disk_errors(path: Path) -> Iterator[None]:
    """Say a full or unwritable disk in one sentence. torch reports some of these as a RuntimeError."""
    try:
        yield
    except OSError as error:
        raise LeanError(
            f"'{path}' cannot be written: {error.strerror or error}; free some space or choose another --out."
        ) from None
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error) or "write" in str(error).lower():
            raise LeanError(
                f"'{path}' cannot be written, perhaps as the disk is full; free some space or choose another --out."
            ) from None
        raise


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets one sync a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

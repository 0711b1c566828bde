"""Locks: a folder that one process writes into is refused to all others, until that process ends, however it does."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from leantrain.errors import LeanError
from leantrain.files import friendly_disk_errors

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder, or to a file with a suffix, while the block runs.

    The kernel holds the lock for this process alone: it ends with it, also by `kill -9`, and loader workers, which may
    outlive it for seconds, do not inherit it. Where a file system has no locks, there is none.

    Raises:
        LeanError: another process holds it.
    """
    if fcntl is None:
        yield
        return
    file = _lock_file(place)
    with friendly_disk_errors(place):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(file)
    if handle is None:
        raise LeanError(
            f"'{place}' is being written to by {_holder(file)}; wait until that has ended, or choose another --out."
        )
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()} {platform.node()} {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)  # which lets go of it


def holder(place: Path) -> str | None:
    """Which process writes to a place, in words; None where none does. Not for a place that this process holds."""
    file = _lock_file(place)
    if fcntl is None or not file.exists():
        return None
    handle = _acquire(file)
    if handle is None:
        return _holder(file)
    os.close(handle)
    return None


def _lock_file(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock") if place.suffix in (".npz", ".parquet") else place / ".lock"


def _acquire(file: Path) -> int | None:
    """The open and locked file; None where another process has it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not `flock`, which a forked worker would go on holding.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(handle)
                return None
            return handle  # no locks on this file system
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(file), os.fstat(handle)):
                return handle
        os.close(handle)  # whoever held it has removed it since it was opened


def _holder(file: Path) -> str:
    try:
        process, host, since = file.read_text(errors="replace").split(" ", 2)
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host} (since {since})"

"""The allocator: what the process does with memory that it has freed. Without torch, as every command starts here."""

from __future__ import annotations

import ctypes
import os
import platform

KEPT = 2**30
"""Bytes that a process which trains on a CPU keeps at hand of what it has freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> bool:
    """Let the process keep memory that it frees, as every step of training asks for the same again.

    By default glibc gives large blocks back to the kernel, which then hands out zeroed pages one by one: a good part of
    a step's time on a CPU (benchmarks/malloc.py). The user's own settings come first.

    Returns:
        Whether it took effect: glibc alone knows these settings.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    set_option = ctypes.CDLL(None).mallopt
    return bool(set_option(_TRIM_THRESHOLD, KEPT)) and bool(set_option(_MMAP_THRESHOLD, KEPT))

"""The allocator: what a process does with memory that it has freed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
import torch
{start}
def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 10**6
before = megabytes()
held = torch.ones(50_000_000)  # 200 MB, the feature maps of a step
del held
print(megabytes() - before)
"""
KEPT = "from leantrain.run.allocator import keep_freed_memory; assert keep_freed_memory()"
LEFT = "from leantrain.run.allocator import keep_freed_memory; assert not keep_freed_memory()"
BY_THE_COMMAND = "from leantrain.cli.program import run; run(['methods', 'plain'])"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")


def _kept(start: str, **environment: str) -> int:
    """How many of 200 megabytes the process still has when it has freed them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    words = [sys.executable, "-c", PROGRAM.format(start=start)]
    done = subprocess.run(words, env={**clean, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_memory_that_a_step_frees_is_there_for_the_next_one() -> None:
    assert _kept("") < 20  # by default it goes back to the kernel
    assert _kept(KEPT) > 180


def test_every_command_keeps_what_it_frees() -> None:
    assert _kept(BY_THE_COMMAND) > 180


def test_the_users_own_settings_come_first() -> None:
    assert _kept(LEFT, MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") < 20
    assert _kept(LEFT, GLIBC_TUNABLES="glibc.malloc.mmap_threshold=131072") < 20

"""Running the command, in this process or as a user starts it, and comparing what runs wrote."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

SMALL = ("--width", "4", "--train-limit", "160", "--batch-size", "32", "--threads", "1")
"""A run on digits that takes a second."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "leantrain", *map(str, arguments)]


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in this process, as `main` runs it; a process of its own takes seconds to start."""
    from leantrain.cli import main

    words, out, errors = list(map(str, arguments)), io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(cwd or before)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())


def run_process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, env=environment, timeout=240)


def rows(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.endswith("seconds")} for line in lines]


def same_run(one: Path, other: Path) -> None:
    """Assert that two runs ended in the same weights, metrics and history, to the bit."""
    assert rows(one) == rows(other)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    for path in sorted((one / "history").iterdir()):
        assert path.read_bytes() == (other / "history" / path.name).read_bytes(), path.name
    saved = [torch.load(folder / "checkpoint.pt", weights_only=True)["lean"]["ledger"] for folder in (one, other)]
    for name, field in saved[0].items():
        assert torch.equal(field.nan_to_num(-1), saved[1][name].nan_to_num(-1)), name

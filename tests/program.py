"""Running the command as a user does, in a process of its own."""

from __future__ import annotations

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

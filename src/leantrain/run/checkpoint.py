"""Checkpoints: written whole or not at all, and read without executing code from the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from leantrain.errors import LeanError
from leantrain.files import write_atomically

FORMAT = 2


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint of tensors and plain values atomically."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; a file that is not one, or that would run code, is refused."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LeanError(
            f"'{path}' is not a checkpoint that can be read safely ({reason}); delete it to start over."
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise LeanError(f"'{path}' is not a leantrain checkpoint of format {FORMAT}; delete it to start over.")
    return content

"""The history: every example's loss, correctness, constituents and size of every epoch, and why it was treated so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from leantrain.errors import LeanError, shortened
from leantrain.files import BAD_ARCHIVE, write_atomically
from leantrain.ledger import Ledger

FIELDS = ("loss", "correct", "constituents", "size")
"""What every epoch's file holds."""


def write_epoch(folder: Path, ledger: Ledger, epoch: int) -> None:
    """Save what one epoch recorded: fp16 loss, correct, constituents and size, and the fields that methods keep.

    Where an example was not trained, its loss is NaN, and constituents and size are 0.
    """
    seen = ledger.seen_in(epoch)
    arrays: dict[str, Any] = {
        "loss": torch.where(seen, ledger["loss"], float("nan")).clamp(max=65504).half().cpu().numpy(),
        "correct": (ledger["correct"] & seen).cpu().numpy(),
        "constituents": torch.where(seen, ledger["constituents"], 0).cpu().numpy(),
        "size": torch.where(seen, ledger["size"], 0).cpu().numpy(),
        **{name: ledger[name].cpu().numpy() for name in ledger.kept},
    }
    write_atomically(_path(folder, epoch), lambda file: np.savez(file, **arrays))


def read_epoch(folder: Path, epoch: int) -> dict[str, np.ndarray[Any, Any]]:
    """What `write_epoch` saved, by name."""
    path = _path(folder, epoch)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except BAD_ARCHIVE as error:
        raise LeanError(
            f"the history of epoch {epoch} cannot be read from '{path}' ({shortened(str(error))}); remove the file."
        ) from None
    missing = [name for name in FIELDS if name not in found]
    if missing:
        raise LeanError(
            f"the history of epoch {epoch} in '{path}' has no {missing[0]}, as another version of leantrain wrote it; "
            "train again, or look at it with that version."
        )
    if len({array.shape for array in found.values()}) > 1 or found["loss"].ndim != 1 or not _plain(found):
        raise LeanError(
            f"the history of epoch {epoch} in '{path}' does not hold one number of each kind per example; "
            "remove the file."
        )
    return found


def _plain(found: dict[str, np.ndarray[Any, Any]]) -> bool:
    return found["loss"].dtype.kind == "f" and all(array.dtype.kind in "fiub" for array in found.values())


def epochs_in(folder: Path) -> list[int]:
    """The epochs that a history holds, in order."""
    names = (path.stem.removeprefix("epoch-") for path in folder.glob("epoch-*.npz"))
    return sorted(int(name) for name in names if name.isdecimal())


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:04d}.npz"

"""The history: every example's loss, correctness, form and region of every epoch, written beside the run."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leantrain.errors import LeanError
from leantrain.files import write_atomically
from leantrain.ledger import NEVER, Ledger

REGION = "region"
"""The ledger field in which a method may say why it treated an example as it did."""


def write_epoch(folder: Path, ledger: Ledger, epoch: int) -> None:
    """Save what one epoch recorded: fp16 loss (NaN where not trained), correct, form (0 where not trained), region."""
    seen = ledger.seen_in(epoch)
    arrays: dict[str, Any] = {
        "loss": torch.where(seen, ledger["loss"], float("nan")).clamp(max=65504).half().cpu().numpy(),
        "correct": (ledger["correct"] & seen).cpu().numpy(),
        "form": torch.where(seen, ledger["form"], NEVER).cpu().numpy(),
    }
    if REGION in ledger:
        arrays[REGION] = ledger[REGION].cpu().numpy()
    write_atomically(_path(folder, epoch), lambda file: np.savez(file, **arrays))


def read_epoch(folder: Path, epoch: int) -> dict[str, np.ndarray[Any, Any]]:
    """What `write_epoch` saved, by name."""
    path = _path(folder, epoch)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise LeanError(f"the history of epoch {epoch} cannot be read from '{path}': {error}.") from None


def epochs_in(folder: Path) -> list[int]:
    """The epochs that a history holds, in order."""
    return sorted(int(path.stem.removeprefix("epoch-")) for path in folder.glob("epoch-*.npz"))


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:04d}.npz"

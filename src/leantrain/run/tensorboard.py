"""TensorBoard logs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def log_epoch(folder: Path, row: dict[str, Any]) -> None:
    """An epoch's metrics as TensorBoard scalars; one that was logged before a cut is replaced."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=row["epoch"]) as writer:  # type: ignore[no-untyped-call]
        for name, value in row.items():
            if isinstance(value, int | float) and name != "epoch":
                writer.add_scalar(name, value, row["epoch"])  # type: ignore[no-untyped-call]

"""The past of a run: what its history says about every example, read epoch by epoch so that memory stays small."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leantrain import history
from leantrain.errors import LeanError
from leantrain.history import REGION
from leantrain.ledger import COMPOSITE, NEVER, SHRUNK, WHOLE

Array = np.ndarray[Any, Any]
BINS = 40
SMALLEST = 1e-4  # losses below are counted as this one: fp16 holds little of them
STATES = {"untrained": ".", "whole": "w", "shrunk": "s", "mixed": "m", "region1": "1", "region3": "3", "skipped": "x"}
"""What happened to an example in an epoch, a letter each."""


@dataclass(frozen=True, eq=False)
class Past:
    """Sums over a run's history.

    Attributes:
        epochs: those it holds, in order.
        used: per example, in how many of them it was trained on.
        mixed: per example, in how many it was part of a composite.
        loss: per example, its mean loss; NaN where it was never trained on.
    """

    folder: Path
    epochs: list[int]
    used: Array
    mixed: Array
    loss: Array

    def __len__(self) -> int:
        return len(self.used)


def read_past(folder: Path, written: Sequence[int]) -> Past | None:
    """Sum up the history in a run's folder; None where there is none.

    Args:
        written: the epochs that the metrics hold; others were cut.
    """
    place = folder / "history"
    epochs = [epoch for epoch in history.epochs_in(place) if epoch in set(written)]
    if not epochs:
        return None
    used: Array = np.zeros(0)
    mixed: Array = np.zeros(0)
    total: Array = np.zeros(0)
    for recorded in _read(place, epochs):
        if not len(used):
            length = len(recorded["form"])
            used, mixed, total = np.zeros(length, np.int32), np.zeros(length, np.int32), np.zeros(length)
        loss = recorded["loss"].astype(np.float64)
        used += recorded["form"] != NEVER
        mixed += recorded["form"] == COMPOSITE
        total += np.nan_to_num(loss)
    with np.errstate(invalid="ignore"):
        return Past(place, epochs, used, mixed, total / np.where(used > 0, used, np.nan))


def _read(place: Path, epochs: Sequence[int]) -> Iterator[dict[str, Array]]:
    for epoch in epochs:
        try:
            yield history.read_epoch(place, epoch)
        except (zipfile.BadZipFile, KeyError) as error:
            raise LeanError(f"the history of epoch {epoch} in '{place}' cannot be read: {error}.") from None


def histories(past: Past, index: Array, epochs: Sequence[int]) -> dict[str, Any]:
    """Some examples' own histories.

    Returns:
        `loss`: a list per example, None where it was not trained on; `state`: a string per example, see `STATES`;
        `correct`: a string per example, 1 where it was recognised.
    """
    losses, states, right = [], [], []
    for recorded in _read(past.folder, epochs):
        picked = {name: values[index] for name, values in recorded.items()}
        losses.append(picked["loss"].astype(np.float64))
        states.append(_states(picked))
        right.append(np.where(picked["correct"], "1", "0"))
    return {
        "epochs": list(epochs),
        "loss": [[None if np.isnan(x) else float(f"{x:.3g}") for x in row] for row in np.stack(losses, 1)],
        "state": ["".join(row) for row in np.stack(states, 1)],
        "correct": ["".join(row) for row in np.stack(right, 1)],
    }


def _states(recorded: dict[str, Array]) -> Array:
    form = recorded["form"]
    region = recorded.get(REGION, np.zeros_like(form))
    cases = {
        "region1": (form == COMPOSITE) & (region == 1),
        "region3": (form == COMPOSITE) & (region == 3),
        "mixed": form == COMPOSITE,
        "shrunk": form == SHRUNK,
        "whole": form == WHOLE,
        "skipped": region == 3,  # not trained on, and the method says why
    }
    return np.select(list(cases.values()), [STATES[name] for name in cases], STATES["untrained"])


def histograms(past: Past, epochs: Sequence[int]) -> dict[str, Any]:
    """How the losses of each epoch are spread, over bins that grow by a constant factor.

    A mixed loss cannot be compared with an unmixed one, so these are counted apart.
    """
    low, high = np.inf, SMALLEST
    for recorded in _read(past.folder, epochs):
        loss = recorded["loss"].astype(np.float64)
        loss = loss[np.isfinite(loss)]
        if len(loss):
            some = np.quantile(loss, (0.005, 0.999))
            low, high = min(low, some[0]), max(high, some[1])
    low = max(SMALLEST, min(low, high / 10))
    edges = np.geomspace(low, high, BINS + 1)
    counts: dict[str, list[list[int]]] = {"right": [], "wrong": [], "mixed": []}
    for recorded in _read(past.folder, epochs):
        loss = np.clip(recorded["loss"].astype(np.float64), low, high)  # NaN stays NaN
        place = np.searchsorted(edges, loss, side="right") - 1
        whole, right = (recorded["form"] == WHOLE) | (recorded["form"] == SHRUNK), recorded["correct"]
        kinds = {"right": whole & right, "wrong": whole & ~right, "mixed": recorded["form"] == COMPOSITE}
        for name, which in kinds.items():
            found = np.minimum(place[which & np.isfinite(loss)], BINS - 1)
            counts[name].append(np.bincount(found, minlength=BINS).tolist())
    return {"epochs": list(epochs), "edges": [float(f"{x:.4g}") for x in edges], **counts}


def evenly(values: Sequence[int], most: int) -> list[int]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    places = np.linspace(0, len(values) - 1, most).round().astype(int)
    return [values[place] for place in places]

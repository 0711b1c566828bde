"""The past of a run: what its history says about every example, read epoch by epoch so that memory stays small."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leantrain.methods import Method, chain
from leantrain.run.folder import RunFolder

Array = np.ndarray[Any, Any]
BINS = 40
SMALLEST = 1e-4  # losses below are counted as this one: fp16 holds little of them
LETTERS = string.ascii_uppercase + string.digits + "".join(map(chr, range(0x100, 0x200)))
"""What stands for the reasons of methods, besides the letters of plain treatments."""
COLOURS = ("reason1", "reason2", "reason2", "c1", "c4", "c5", "c6")
"""What the page paints the reasons of methods in, by name in its style sheet."""


@dataclass(frozen=True)
class Treatment:
    """What a method did to an example in an epoch.

    Attributes:
        letter: stands for it in the page's data.
        label: says it.
        look: how it is drawn: "whole", "mixed", "skipped" or "none".
        colour: what it is painted in.
        field, value: the ledger field that gives a method's reason, and its value; "" where there is none.
    """

    letter: str
    label: str
    look: str
    colour: str
    field: str = ""
    value: int = 0


PLAIN_TREATMENTS = (
    Treatment("m", "mixed", "mixed", "reason1"),
    Treatment("s", "trained at a smaller size", "whole", "whole"),
    Treatment("w", "trained whole", "whole", "whole"),
    Treatment(".", "not trained on", "none", "none"),
)


def treatments(method: Method) -> list[Treatment]:
    """All that may happen to an example, the methods' own reasons first."""
    found: list[Treatment] = []
    for place, part in enumerate(chain(method).methods):
        for value, reason in part.reasons.items():
            look = "skipped" if reason.skipped else "mixed"
            letter, colour = LETTERS[len(found)], COLOURS[len(found) % len(COLOURS)]
            found.append(Treatment(letter, reason.label, look, colour, f"{place}.reason", value))
    return found + list(PLAIN_TREATMENTS)


@dataclass(frozen=True, eq=False)
class Past:
    """Sums over a run's history.

    Attributes:
        epochs: those it holds, in order.
        used: per example, in how many of them it was trained on.
        mixed: per example, in how many it was part of a composite.
        loss: per example, its mean loss; NaN where it was never trained on.
    """

    folder: RunFolder
    epochs: list[int]
    used: Array
    mixed: Array
    loss: Array

    def __len__(self) -> int:
        return len(self.used)


def read_past(folder: RunFolder) -> Past | None:
    """Sum up a run's history; None where there is none."""
    epochs = folder.epochs()
    if not epochs:
        return None
    used: Array = np.zeros(0)
    mixed: Array = np.zeros(0)
    total: Array = np.zeros(0)
    for recorded in map(folder.epoch, epochs):
        if not len(used):
            length = len(recorded["loss"])
            used, mixed, total = np.zeros(length, np.int32), np.zeros(length, np.int32), np.zeros(length)
        loss = recorded["loss"].astype(np.float64)
        used += recorded["constituents"] > 0
        mixed += recorded["constituents"] > 1
        total += np.nan_to_num(loss)
    with np.errstate(invalid="ignore"):
        return Past(folder, epochs, used, mixed, total / np.where(used > 0, used, np.nan))


def histories(past: Past, index: Array, epochs: Sequence[int], possible: Sequence[Treatment]) -> dict[str, Any]:
    """Some examples' own histories.

    Returns:
        `loss`: a list per example, None where it was not trained on; `state`: a string per example, the letter of a
        treatment for every epoch; `states`: the treatments that occur, by letter; `correct`: a string per example, 1
        where it was recognised.
    """
    losses, states, right = [], [], []
    for recorded in map(past.folder.epoch, epochs):
        picked = {name: values[index] for name, values in recorded.items()}
        losses.append(picked["loss"].astype(np.float64))
        states.append(_states(picked, possible))
        right.append(np.where(picked["correct"], "1", "0"))
    found = set(np.unique(np.stack(states)).tolist())
    return {
        "epochs": list(epochs),
        "loss": [[None if np.isnan(x) else float(f"{x:.3g}") for x in row] for row in np.stack(losses, 1)],
        "state": ["".join(row) for row in np.stack(states, 1)],
        "states": {
            one.letter: {"label": one.label, "look": one.look, "colour": one.colour}
            for one in possible
            if one.letter in found
        },
        "correct": ["".join(row) for row in np.stack(right, 1)],
    }


def _states(recorded: dict[str, Array], possible: Sequence[Treatment]) -> Array:
    constituents, size = recorded["constituents"], recorded["size"]
    nothing = np.zeros_like(constituents)
    shown = {
        "m": constituents > 1,
        "s": (constituents == 1) & (size < 100),
        "w": constituents == 1,
        ".": constituents == 0,
    }
    cases = []
    for one in possible:
        looks = shown["m"] if one.look == "mixed" else shown["."]  # not trained on, and a method says why
        cases.append(looks & (recorded.get(one.field, nothing) == one.value) if one.field else shown[one.letter])
    return np.select(cases, [one.letter for one in possible], ".")


def histograms(past: Past, epochs: Sequence[int]) -> dict[str, Any]:
    """How the losses of each epoch are spread, over bins that grow by a constant factor.

    A mixed loss cannot be compared with an unmixed one, so these are counted apart.
    """
    low, high = np.inf, SMALLEST
    for recorded in map(past.folder.epoch, epochs):
        loss = recorded["loss"].astype(np.float64)
        loss = loss[np.isfinite(loss)]
        if len(loss):
            some = np.quantile(loss, (0.005, 0.999))
            low, high = min(low, some[0]), max(high, some[1])
    low = max(SMALLEST, min(low, high / 10))
    edges = np.geomspace(low, high, BINS + 1)
    counts: dict[str, list[list[int]]] = {"right": [], "wrong": [], "mixed": []}
    for recorded in map(past.folder.epoch, epochs):
        loss = np.clip(recorded["loss"].astype(np.float64), low, high)  # NaN stays NaN
        place = np.searchsorted(edges, loss, side="right") - 1
        alone, right = recorded["constituents"] == 1, recorded["correct"]
        kinds = {"right": alone & right, "wrong": alone & ~right, "mixed": recorded["constituents"] > 1}
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

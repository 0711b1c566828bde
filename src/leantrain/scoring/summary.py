"""Scores in numbers: what summary.json holds and what the command prints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from leantrain.display import Display, Lines, TableBar
from leantrain.scoring.scores import Scores

SHOWN = 20
"""Examples that are named, or pictured, from either end."""
PRUNED = 0.25
"""The share of the examples at which figures and tables say what pruning the lowest would take away."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
NAMES = {
    "el2n": "EL2N",
    "grand": "GraNd",
    "forgetting": "forgetting",
    "loss": "loss",
    "use": "use",
    "combined": "combined rank",
}


def order(scores: Scores) -> Tensor:
    """The examples from the lowest score to the highest; equal ones as they come."""
    return scores.values.argsort(stable=True)


def summarise(scores: Scores) -> dict[str, Any]:
    """What there is to know of scores without looking at each of them."""
    ranked = order(scores)
    lowest = torch.zeros(len(scores), dtype=torch.bool)
    lowest[ranked[: round(PRUNED * len(scores))]] = True
    levels = quantiles(scores.values, QUANTILES)
    return {
        "kind": scores.kind,
        "examples": len(scores),
        "cost": scores.cost,
        "cost_epochs": scores.cost / len(scores),
        "seconds": scores.seconds,
        "mean": float(scores.values.double().mean()),
        "quantiles": dict(zip(map(str, QUANTILES), levels, strict=True)),
        "classes": {
            scores.classes[number]: {
                "examples": len(mine),
                "mean": float(scores.values[mine].double().mean()),
                "median": quantiles(scores.values[mine], (0.5,))[0],
                "lowest_quarter": float(lowest[mine].double().mean()),
            }
            for number, mine in by_class(scores).items()
        },
        "lowest": _named(scores, ranked[:SHOWN]),
        "highest": _named(scores, ranked.flip(0)[:SHOWN]),
        "made_with": scores.made_with,
    }


def by_class(scores: Scores) -> dict[int, Tensor]:
    """The examples of each class that has any."""
    ends = torch.bincount(scores.targets, minlength=len(scores.classes)).cumsum(0)
    parts = scores.targets.argsort(stable=True).tensor_split(ends[:-1])
    return {number: part for number, part in enumerate(parts) if len(part)}


def quantiles(values: Tensor, shares: tuple[float, ...]) -> list[float]:
    """By numpy: torch's own takes sixteen million values at most."""
    levels: list[float] = np.quantile(values.double().numpy(), shares).tolist()
    return levels


def _named(scores: Scores, which: Tensor) -> list[dict[str, Any]]:
    return [
        {"id": scores.ids[i], "class": scores.classes[int(scores.targets[i])], "score": float(scores.values[i])}
        for i in which.tolist()
    ]


def score_table(summary: dict[str, Any]) -> Table:
    """The classes of a summary, for a person."""
    title = f"{NAMES[summary['kind']]} of {summary['examples']:,} examples"
    table = Table(title=Text(title), title_justify="left")
    for name in ("class", "examples", "mean", "median", f"in the lowest {PRUNED:.0%}"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for name, row in summary["classes"].items():
        numbers = (f"{row['examples']:,}", f"{row['mean']:.4g}", f"{row['median']:.4g}", f"{row['lowest_quarter']:.1%}")
        table.add_row(Text(name), *numbers)
    return table


def advice(scores: Scores, path: Path) -> str:
    """What to do with the file."""
    name = scores.kind if scores.kind in ("el2n", "grand") else "el2n"
    same = {key: scores.made_with.get(key) for key in ("data", "train_limit", "validation")}
    words = [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in same.items() if value]
    command = " ".join(["leantrain train", *words, "--method", shlex.quote(f"{name}[scores={path}]")])
    if name == scores.kind:
        return f"train without the lowest: {command}"
    return f"{NAMES[scores.kind]} is to look at and to compare; to train without the lowest all the same: {command}"


class ScoreBar(TableBar):
    """One bar for all models, with the time left."""

    def start(self, epochs: int, done: float) -> None:
        self._bars.start()
        self._run = self._bars.add_task("scoring, %", total=100, completed=int(100 * done), speed="")


def make_score_display() -> Display:
    """A bar where standard error is a terminal, a line per model where it is piped."""
    console = Console(stderr=True)
    return ScoreBar(console) if console.is_terminal else Lines()

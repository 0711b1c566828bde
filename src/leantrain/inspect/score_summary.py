"""Scores as the command prints them: a table of classes, what to do with the file, and a bar while they are made."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leantrain.methods import METHODS
from leantrain.run.display import Display, Lines, TableBar
from leantrain.scoring.kinds import words_for
from leantrain.scoring.scores import Scores
from leantrain.scoring.summary import PRUNED


def score_table(summary: dict[str, Any]) -> Table:
    """The classes of a summary, for a person."""
    title = f"{words_for(summary['kind']).title} of {summary['examples']:,} examples"
    table = Table(title=Text(title), title_justify="left")
    for name in ("class", "examples", "mean", "median", f"in the lowest {PRUNED:.0%}"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for name, row in summary["classes"].items():
        numbers = (f"{row['examples']:,}", f"{row['mean']:.4g}", f"{row['median']:.4g}", f"{row['lowest_quarter']:.1%}")
        table.add_row(Text(name), *numbers)
    return table


def advice(scores: Scores, path: Path) -> str:
    """What to do with the file."""
    # A method that prunes by a score is called like it; any of them takes a file of any kind.
    name = scores.kind if hasattr(METHODS.get(scores.kind), "scores") else "el2n"
    same = {key: scores.made_with.get(key) for key in ("data", "train_limit", "validation")}
    words = [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in same.items() if value]
    command = " ".join(["leantrain train", *words, "--method", shlex.quote(f"{name}[scores={path}]")])
    if name == scores.kind:
        return f"train without the lowest: {command}"
    title = words_for(scores.kind).title
    return f"{title} is to look at and to compare; to train without the lowest all the same: {command}"


class ScoreBar(TableBar):
    """One bar for all models, with the time left."""

    def start(self, epochs: int, done: float) -> None:
        self._bars.start()
        self._run = self._bars.add_task("scoring, %", total=100, completed=int(100 * done), speed="")


def make_score_display() -> Display:
    """A bar where standard error is a terminal, a line per model where it is piped."""
    console = Console(stderr=True)
    return ScoreBar(console) if console.is_terminal else Lines()

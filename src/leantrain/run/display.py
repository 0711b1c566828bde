"""What a person sees while a run works: live bars in a terminal, plain lines when piped."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


class Display(Protocol):
    """How a run shows what it does."""

    def start(self, epochs: int, done: float) -> None: ...
    def scoring(self, progress: float) -> None: ...
    def epoch(self, number: int, batches: int, done: int) -> None: ...
    def step(self, examples: int, progress: float) -> None: ...
    def row(self, row: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Quiet:
    """Shows nothing; for a run inside something that has its own display."""

    def start(self, epochs: int, done: float) -> None: ...
    def scoring(self, progress: float) -> None: ...
    def epoch(self, number: int, batches: int, done: int) -> None: ...
    def step(self, examples: int, progress: float) -> None: ...
    def row(self, row: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Notes(Quiet):
    """Passes notes on and leaves the bars of another display alone."""

    def __init__(self, display: Display) -> None:
        self.note = display.note  # type: ignore[method-assign]


class Lines(Quiet):
    """One line per epoch, for logs."""

    def row(self, row: dict[str, Any]) -> None:
        print(row_text(row), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bars:
    """A bar for the run and one for the epoch, with throughput and time left."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._run: TaskID | None = None
        self._epoch: TaskID | None = None
        self._epochs = 1

    def start(self, epochs: int, done: float) -> None:
        self._epochs = epochs
        self._bars.start()
        # The run's bar moves with progress, not with whole epochs, so that time left is known within the first one.
        self._run = self._bars.add_task("run, %", total=100, completed=int(100 * done), speed="")
        self._epoch = self._bars.add_task("epoch", total=1, speed="")

    def scoring(self, progress: float) -> None:
        """How far the models are that a method's scores come from, before the first epoch."""
        assert self._epoch is not None
        self._bars.update(self._epoch, total=100, completed=round(100 * progress, 1), description="scoring, %")

    def epoch(self, number: int, batches: int, done: int) -> None:
        assert self._epoch is not None
        self._bars.reset(self._epoch, total=batches, completed=done, description=f"epoch {number + 1}/{self._epochs}")
        self._seen = 0

    def step(self, examples: int, progress: float) -> None:
        assert self._run is not None and self._epoch is not None
        self._seen += examples
        elapsed = self._bars.tasks[self._epoch].elapsed
        speed = f"{self._seen / elapsed:,.0f} examples/s" if elapsed else ""
        self._bars.update(self._epoch, advance=1, speed=speed)
        self._bars.update(self._run, completed=round(100 * progress, 1))

    def row(self, row: dict[str, Any]) -> None:
        self._bars.console.print(row_text(row), highlight=False, markup=False)

    def note(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        self._bars.stop()


class TableBar(Bars):
    """One bar for a whole comparison, with the time left."""

    def start(self, epochs: int, done: float) -> None:
        self._bars.start()
        self._run = self._bars.add_task("comparing, %", total=100, completed=int(100 * done), speed="")

    def scoring(self, progress: float) -> None:
        """A comparison's bar moves with its runs."""

    def step(self, examples: int, progress: float) -> None:
        assert self._run is not None
        self._bars.update(self._run, completed=round(100 * progress, 1))


@contextlib.contextmanager
def file_bar(files: int) -> Iterator[Callable[[int], None]]:
    """A bar for a look at many files, shown in a terminal when it takes more than a second; gives what moves it."""
    console, began = Console(stderr=True), time.monotonic()
    bar = Progress(TextColumn("looking at the files"), BarColumn(), MofNCompleteColumn(), console=console)
    task = bar.add_task("", total=files)

    def step(done: int) -> None:
        bar.advance(task, done)
        if console.is_terminal and time.monotonic() - began > 1:
            bar.start()

    try:
        yield step
    finally:
        if bar.live.is_started:
            bar.stop()


def make_table_display() -> Display:
    """As `make_display`, for a comparison."""
    console = Console(stderr=True)
    return TableBar(console) if console.is_terminal else Lines()


def make_display() -> Display:
    """Bars where standard error is a terminal, lines where it is piped."""
    console = Console(stderr=True)
    return Bars(console) if console.is_terminal else Lines()


def row_text(row: dict[str, Any]) -> str:
    """An epoch in one line."""
    test = "" if row["test_accuracy"] is None else f"  test {row['test_accuracy']:.2%}"
    return (
        f"epoch {row['epoch'] + 1:>3}  loss {row['train_loss']:.4f}  train {row['train_accuracy']:.2%}{test}"
        f"  lr {row['lr']:.4f}  cost {row['cost']:,.0f}  {row['seconds']:.1f} s"
    )


def result_table(result: dict[str, Any]) -> Table:
    """The outcome of a run, for a person."""
    title = Text(f"{result['method']} on {result['data']}")  # not a string: brackets would be read as markup
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    where = result["evaluated_on"]
    for name, text in (
        ("model", result["model"]),
        (f"{where} accuracy", f"{result['test_accuracy']:.2%}"),
        (f"best {where} accuracy", f"{result['best_test_accuracy']:.2%}"),
        ("macro F1", f"{result['macro_f1']:.4f}"),
        ("worst class accuracy", f"{result['worst_class_accuracy']:.2%}"),
        ("calibration error", f"{result['calibration_error']:.4f}"),
        ("cost", f"{result['cost']:,.0f} examples = {result['cost_epochs']:.2f} epochs of plain training"),
        ("training time", f"{result['train_seconds']:.1f} s"),
        ("peak memory", "—" if result["peak_memory_mb"] is None else f"{result['peak_memory_mb']:,.0f} MB"),
    ):
        table.add_row(name, text)
    return table

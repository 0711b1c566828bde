"""The table of a comparison, for a person."""

from __future__ import annotations

from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE
from rich.table import Table
from rich.text import Text

from leantrain.compare.verdict import Difference

COMPARISON_COLUMNS = (
    "accuracy",
    "n",
    "Δ to full",
    "Δ to equal budget",
    "cost",
    "time",
    "to accuracy",
    "overhead",
    "verdict",
)


WIDE = 140
"""Characters from which the whole table is readable on a terminal; narrower ones get the `FIRST` columns."""
FIRST = ("accuracy", "Δ to full", "Δ to equal budget", "cost", "time")


def comparison_table(summary: dict[str, Any], width: int = WIDE) -> Table:
    """A comparison, for a person: what each method costs, keeps and saves, and what can be said about it.

    Args:
        width: of the terminal; where it is narrow, verdicts are left for `verdict_lines` to say below.
    """
    seeds = len(summary["seeds"])
    title = f"accuracy in %, mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}"
    is_wide = width >= WIDE
    shown = COMPARISON_COLUMNS if is_wide else FIRST
    table = Table(title=title, title_justify="left", box=HEAVY_HEAD if is_wide else SIMPLE, pad_edge=is_wide)
    for name in ("", *shown):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right", overflow="fold")
    for row in summary["rows"]:
        label = Text(("  " if row["control_of"] else "") + row["label"], style="dim" if row["control_of"] else "")
        cells = dict(zip(COMPARISON_COLUMNS, comparison_cells(row), strict=True))
        if not is_wide:
            cells["time"] = cells["time"].partition(" ")[0]  # without its spread
        table.add_row(label, *(Text(cells[name]) for name in shown))
    return table


def verdict_lines(summary: dict[str, Any], width: int) -> list[str]:
    """What can be said about each method, where the table has no room for it."""
    methods = [row for row in summary["rows"] if row["role"] == "method" and row["verdict"]]
    return [] if width >= WIDE else [f"{row['label']}: {row['verdict']}" for row in methods]


def comparison_cells(row: dict[str, Any]) -> list[str]:
    """A row of the comparison as text; what is not known is a dash."""

    def known(value: Any, text: str) -> str:
        return "—" if value is None else text

    def points(value: dict[str, Any] | None) -> str:
        return "—" if value is None else Difference.from_json(value).text()

    accuracy, spread, reached = row["accuracy"], row["accuracy_spread"], row["time_to_accuracy"]
    return [
        known(accuracy, f"{100 * (accuracy or 0):.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")),
        str(len(row["seeds"])),
        points(row["difference_to_full"]),
        points(row["difference_to_control"]),
        known(row["cost_ratio"], f"{row['cost_ratio'] or 0:.2f}×"),
        known(row["time_ratio"], f"{row['time_ratio'] or 0:.2f}×")
        + ("" if row["time_ratio_spread"] is None else f" ± {row['time_ratio_spread']:.2f}"),
        "—" if reached is None else _reached(reached),
        known(row["overhead"], f"{row['overhead'] or 0:+.1%}"),
        row["verdict"],
    ]


def _reached(reached: dict[str, Any]) -> str:
    """When the baseline's accuracy was reached, as a share of the baseline's time."""
    if not reached["reached"]:
        return "never"
    some = "" if reached["reached"] == reached["seeds"] else f" ({reached['reached']} of {reached['seeds']})"
    return f"{reached['share']:.2f}×{some}"

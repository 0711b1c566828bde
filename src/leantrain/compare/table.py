"""The table of a comparison, for a person."""

from __future__ import annotations

from typing import Any

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


def comparison_table(summary: dict[str, Any]) -> Table:
    """A comparison, for a person: what each method costs, keeps and saves, and what can be said about it."""
    seeds = len(summary["seeds"])
    title = f"accuracy in %, mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}"
    table = Table(title=title, title_justify="left")
    for name in ("", *COMPARISON_COLUMNS):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right", overflow="fold")
    for row in summary["rows"]:
        label = Text(("  " if row["control_of"] else "") + row["label"], style="dim" if row["control_of"] else "")
        table.add_row(label, *(Text(cell) for cell in comparison_cells(row)))
    return table


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

"""The advice: one sentence on what to do, from the rows of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leantrain.compare.verdict import BAD, GOOD, LEAST_SAVING, OPEN, Difference


def advice(rows: Sequence[dict[str, Any]], seeds: int) -> str:
    """What a person should do after this comparison; nothing where no method was measured.

    Args:
        rows: as compare.json holds them.
        seeds: how many were asked for.
    """
    methods = [row for row in rows if row["role"] == "method" and row["cost_ratio"] is not None]
    if not methods:
        return ""
    if good := [row for row in methods if row["standing"] == GOOD]:
        best = min(good, key=_share)
        return f"Use {best['label']}: it {best['verdict']}."
    ahead = [row for row in methods if row["standing"] == BAD and _beats_control(row)]
    if opened := [row for row in methods if row["standing"] == OPEN]:
        if seeds < 2:
            return "One seed settles nothing: go on with --resume --seeds 3."
        best = max(opened, key=lambda row: row["accuracy"])
        return f"Not settled yet: {best['label']} is the one to watch, {best['verdict']}."
    if faster := [row for row in ahead if _share(row) <= 1 - LEAST_SAVING]:
        best = max(faster, key=lambda row: row["accuracy"])
        return (
            "Nothing here keeps the accuracy of full training. If you must spend less, "
            f"{best['label']} is the best way: {best['verdict']}."
        )
    if ahead:
        best = max(ahead, key=lambda row: row["accuracy"])
        return (
            f"{best['label']} does {1 - best['cost_ratio']:.0%} less work and saves no time here: tiny images and "
            "networks, or a busy machine, keep time from following cost."
        )
    return "Nothing here beats training fewer epochs: do that, with the learning rate decayed over what is left."


def _share(row: dict[str, Any]) -> float:
    """What a row takes of full training's time, or of its cost where no time was measured."""
    ratio: float = row["cost_ratio"] if row["time_ratio"] is None else row["time_ratio"]
    return ratio


def _beats_control(row: dict[str, Any]) -> bool:
    found = row["difference_to_control"]
    return found is not None and Difference.from_json(found).low > 0

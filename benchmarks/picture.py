"""Draws README's first picture, accuracy against time, from what `lean.py --epochs 40 --time-budgets 0.33,0.5` wrote.

    python benchmarks/picture.py

Nothing is trained. A point is the mean over the seeds, its bar their standard deviation; time is what the runs took.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from _common import RESULTS

matplotlib.use("Agg")
from matplotlib import pyplot

SETS = {"cifar10": "CIFAR-10", "eurosat10k": "EuroSAT", "fashion-mnist": "Fashion-MNIST"}
OUT = Path(__file__).parent.parent / "docs" / "images" / "lean-time.png"
LEAN, PLAIN = "#0072b2", "#52525b"


def main() -> None:
    pyplot.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False})
    figure, panels = pyplot.subplots(1, len(SETS), figsize=(11, 3.6), layout="constrained")
    for panel, (name, title) in zip(panels, SETS.items(), strict=True):
        content = json.loads((RESULTS / f"lean-{name}-main-40-time-0.33,0.5.json").read_text())
        draw(panel, content["result"]["rows"], f"{title}, {content['n']} seeds")
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(loc="lower right", frameon=False)
    figure.savefig(OUT, dpi=110)
    print(f"written to {OUT.relative_to(OUT.parents[2])}")


def draw(panel: Any, rows: list[dict[str, Any]], title: str) -> None:
    """One data set's panel: lean and plain training at each share of the time, and full training."""
    full = next(row for row in rows if row["label"] == "plain")
    for prefix, label, colour, style in (
        ("lean", "lean", LEAN, "o-"),
        ("plain, equal", "plain training, fewer epochs", PLAIN, "s--"),
    ):
        own = sorted((row for row in rows if row["label"].startswith(prefix)), key=lambda row: row["time_ratio"])
        line = [*own, full] if colour == PLAIN else own
        panel.errorbar(
            [row["time_ratio"] for row in line],
            [100 * row["accuracy"] for row in line],
            [100 * row["accuracy_spread"] for row in line],
            fmt=style,
            color=colour,
            capsize=3,
            label=label,
        )
    panel.axhline(100 * full["accuracy"], color=PLAIN, linewidth=0.8, linestyle=":")
    panel.annotate("full training", (1, 100 * full["accuracy"]), (0, 5), textcoords="offset points", ha="right")
    panel.set(title=title, xlabel="share of full training's time", xlim=(0.2, 1.05))
    panel.spines["right"].set_visible(False)
    panel.grid(axis="y", alpha=0.3)


if __name__ == "__main__":
    main()

"""docs/results.md: every table that was trained, on one page with pictures."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from leantrain.bench.papers import SCALES
from leantrain.compare.folder import ComparisonFolder
from leantrain.errors import LeanError
from leantrain.files import write_text

HEAD = """# Results
The papers' tables beside ours, made by `make results` from what `leantrain bench tables` and
`leantrain bench accelerators` trained. The scale stands in every heading; every row has plain training of the same cost
beside it; speed-ups are of runs that took turns.
"""


def write_results(folder: Path, page: Path) -> Path:
    """Write the page, and its pictures into `images` beside it."""
    found = [path for scale in SCALES[::-1] for path in sorted((folder / scale).glob("*/table.md"))]
    found += sorted((folder / "accelerators").glob("*/table.md"))
    if not found:
        raise LeanError(f"nothing has been trained in '{folder}'; run `leantrain bench tables --table NAME` first.")
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    if panels := _panels(folder):
        _tradeoff(panels).savefig(images / "results-tradeoff.png", dpi=100)
        parts.append("![Accuracy against speed-up; plain training is the line to beat](images/results-tradeoff.png)\n")
    parts += [_with_pictures(path, images).rstrip() + "\n" for path in found]
    write_text(page, "\n".join(parts))
    return page


def _with_pictures(file: Path, images: Path) -> str:
    """A table's text; its pictures are copied to where the page finds them."""

    def copied(match: re.Match[str]) -> str:
        name = f"results-{file.parent.name}-{match[1]}"
        shutil.copyfile(file.parent / match[1], images / name)
        return f"](images/{name})"

    return re.sub(r"\]\((\w+\.png)\)", copied, file.read_text())


def _panels(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """The comparisons of all tables, by name, with the rows that were trained."""
    found = []
    for file in sorted(path for scale in SCALES for path in (folder / scale).glob("*/*/compare.json")):
        summary = ComparisonFolder(file.parent).summary()
        rows = [row for row in (summary or {"rows": []})["rows"] if row["accuracy"] is not None and row["cost_ratio"]]
        if any(row["role"] == "method" for row in rows):
            found.append((f"{file.parents[1].name}, {file.parent.name} ({file.parents[2].name})", rows))
    return found


def _tradeoff(panels: list[tuple[str, list[dict[str, Any]]]]) -> Figure:
    """Accuracy against speed-up (000 Fig. 11A, 002 Fig. 15), a panel per network."""
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6.5 * columns, 4.0 * lines), layout="constrained")
    for place, (name, rows) in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, place)
        plain = [row for row in rows if row["role"] in ("baseline", "equal-budget")]
        line = sorted((1 / row["cost_ratio"], 100 * row["accuracy"]) for row in plain)
        axes.plot([x for x, _ in line], [y for _, y in line], "k.--", label="plain training of that cost")
        for row in (row for row in rows if row["role"] == "method"):
            speed = 1 / (row["time_ratio"] or row["cost_ratio"])
            axes.plot([speed], [100 * row["accuracy"]], "o", label=row["label"][:40])
        axes.set(title=name, xlabel="speed-up", ylabel="accuracy, %")
        axes.legend(fontsize=6)
    return figure

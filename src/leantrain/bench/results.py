"""docs/results.md: every table that was trained, on one page with pictures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from leantrain.bench.papers import SCALES, TABLES
from leantrain.bench.tables import Tables, described
from leantrain.compare.folder import ComparisonFolder
from leantrain.errors import LeanError
from leantrain.files import write_text
from leantrain.run.display import Quiet

HEAD = """# Results
The papers' tables beside ours, made by `make results` from what `leantrain bench tables` and
`leantrain bench accelerators` trained. The scale stands in every heading; every row has plain training of the same cost
beside it; speed-ups are of runs that took turns.
"""
MARKERS = "osD^vP*X<>hd"


def write_results(folder: Path, page: Path) -> Path:
    """Write the page, and its pictures into `images` beside it."""
    tables = [
        (run.markdown(one), run.out / one.name)  # anew: another table may have trained more of what they share
        for run in (Tables((), scale, folder, Quiet()) for scale in SCALES[::-1])
        for one in filter(run.is_begun, TABLES.values())
    ]
    tables += [(file.read_text(), file.parent) for file in sorted((folder / "accelerators").glob("*/table.md"))]
    if not tables:
        raise LeanError(f"nothing has been trained in '{folder}'; run `leantrain bench tables --table NAME` first.")
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for name, summary in _comparisons(folder).items():
        _tradeoff(summary).savefig(images / f"results-{name}.png", dpi=100)
        parts.append(f"![{name}: accuracy against speed-up, plain training as a line](images/results-{name}.png)\n")
    parts += [_with_pictures(text, place, images).rstrip() + "\n" for text, place in tables]
    write_text(page, "\n".join(parts))
    return page


def _with_pictures(text: str, place: Path, images: Path) -> str:
    """A table's text; its pictures are copied to where the page finds them."""

    def copied(match: re.Match[str]) -> str:
        name = f"results-{place.name}-{match[1]}"
        shutil.copyfile(place / match[1], images / name)
        return f"](images/{name})"

    return re.sub(r"\]\((\w+\.png)\)", copied, text)


def _comparisons(folder: Path) -> dict[str, dict[str, Any]]:
    """The comparisons with a method that was trained, by scale and name; the one of most rows first."""
    found = {}
    for file in sorted(path for scale in SCALES for path in (folder / scale).glob("*/compare.json")):
        summary = ComparisonFolder(file.parent).summary()
        if summary is not None and any(row["role"] == "method" and row["cost_ratio"] for row in summary["rows"]):
            found[f"{file.parents[1].name}-{file.parent.name}"] = summary
    return dict(sorted(found.items(), key=lambda item: -len(item[1]["rows"])))


def _tradeoff(summary: dict[str, Any]) -> Figure:
    """Accuracy against speed-up (000 Fig. 11A, 002 Fig. 15); a method keeps its sign whatever its options.

    Plain training is where its cost puts it, as it does nothing else; a row that has no time is left out.
    """
    rows = [row for row in summary["rows"] if row["accuracy"] is not None and row["cost_ratio"]]
    methods: dict[str, list[tuple[float, float]]] = {}
    for row in (row for row in rows if row["role"] == "method" and row["time_ratio"]):
        methods.setdefault(row["method"].split("[")[0], []).append((1 / row["time_ratio"], 100 * row["accuracy"]))
    plain = [row for row in rows if row["role"] in ("baseline", "equal-budget")]
    line = sorted((1 / row["cost_ratio"], 100 * row["accuracy"]) for row in plain)
    figure = Figure(figsize=(9.5, max(4.0, 0.24 * len(methods))), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([x for x, _ in line], [y for _, y in line], "k.--", lw=1, label="plain training of that cost")
    for place, (method, points) in enumerate(methods.items()):
        marker = MARKERS[place % len(MARKERS)]
        axes.plot([x for x, _ in points], [y for _, y in points], marker, color=f"C{place % 10}", label=method)
    axes.set(title=described(summary), xlabel="speed-up", ylabel="accuracy, %", xscale="log")
    ticks = [tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    figure.legend(loc="outside right upper", fontsize=8)
    return figure

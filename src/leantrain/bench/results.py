"""docs/results.md: every table that was trained, on one page with pictures."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from leantrain.bench.markdown import UNKNOWN
from leantrain.bench.papers import SCALES, TABLES
from leantrain.bench.tables import NOT_TRAINED, OURS, Tables, described
from leantrain.compare.folder import ComparisonFolder
from leantrain.errors import LeanError
from leantrain.files import write_text
from leantrain.run.display import Quiet

HEAD = """# Results
The papers' tables beside ours, made by `make results` from what `leantrain bench tables` and
`leantrain bench accelerators` trained. The scale stands in every heading; every row has plain training of the same cost
beside it; speed-ups are of runs that took turns. Networks that were not trained again are shown as they were.
"""
MARKERS = "osD^vP*X<>hd"


def write_results(folder: Path, page: Path) -> Path:
    """Write the page, and its pictures into `images` beside it.

    What the page has already and the folder does not, from another day or machine, stays.
    """
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
    before = Page.read(page)
    pictures = list(before.pictures)
    for name, summary in _comparisons(folder).items():
        _tradeoff(summary).savefig(images / f"results-{name}.png", dpi=100)
        pictures.append(f"![{name}: accuracy against speed-up, plain training as a line](images/results-{name}.png)")
    made = [_with_pictures(text, place, images).rstrip() + "\n" for text, place in tables]
    write_text(page, Page(list(dict.fromkeys(pictures)), sections_of("".join(made))).over(before).text())
    return page


class Page(NamedTuple):
    """docs/results.md in its parts.

    Attributes:
        pictures: the lines of its own pictures, before the first table.
        sections: a table's text by its heading.
    """

    pictures: list[str]
    sections: dict[str, str]

    @staticmethod
    def read(file: Path) -> Page:
        """The page as it is; empty where there is none."""
        head, *sections = re.split(SECTION, file.read_text()) if file.exists() else [""]
        return Page([line for line in head.splitlines() if line.startswith("![")], sections_of("".join(sections)))

    def over(self, before: Page) -> Page:
        """This page, with the tables, and the networks of tables, that only the one before has."""
        sections = {**before.sections, **{name: _filled(text, before, name) for name, text in self.sections.items()}}
        places = {name: place for place, name in enumerate(TABLES)}
        order = sorted(sections, key=lambda heading: places.get(heading[3:].split(":")[0], len(places)))
        return Page(self.pictures, {name: sections[name] for name in order})

    def text(self) -> str:
        return "\n".join([HEAD, *(f"{line}\n" for line in self.pictures), *self.sections.values()])


UNTRAINED_ROW = " | ".join([UNKNOWN] * len(OURS))
SECTION, NETWORK = re.compile(r"(?m)^(?=## )"), re.compile(r"(?m)^(?=\*\*)")


def sections_of(text: str) -> dict[str, str]:
    """Tables by their headings."""
    return {one.split("\n", 1)[0]: one.rstrip() + "\n" for one in re.split(SECTION, text) if one.strip()}


def _filled(text: str, before: Page, heading: str) -> str:
    """A table's text; of a network of which the page had more rows, what it had."""
    known = {_network(block): block for block in re.split(NETWORK, before.sections.get(heading, ""))}
    blocks = [
        min(block, known.get(_network(block), block), key=lambda one: (NOT_TRAINED in one, one.count(UNTRAINED_ROW)))
        for block in re.split(NETWORK, text)
    ]
    return "".join(block.rstrip() + "\n\n" for block in blocks).rstrip() + "\n"


def _network(block: str) -> str:
    return block.split("**")[1] if block.startswith("**") else ""


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
    axes.set(xlabel="speed-up", ylabel="accuracy, %", xscale="log")
    axes.set_title(textwrap.fill(described(summary), 90), fontsize=9)
    steps = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 4, 6, 8)
    ticks = [tick for tick in steps if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    figure.legend(loc="outside right upper", fontsize=8)
    return figure

"""The report: one page that shows runs and comparisons, opens from disk and needs no network.

Rooms: `runs.py` reads folders and `past.py` their histories; `collect.py` gathers what a page says, and `examples.py`
what it says of single examples; `pictures.py` makes sheets of pictures; `page.html`, `page.css` and `page.js` draw.
Text from outside reaches the page as JSON only, and is shown as text only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from leantrain.files import write_text
from leantrain.report.collect import collect

__all__ = ["render", "write_report"]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of these runs and comparisons; returns where it is.

    Args:
        folders: of `leantrain train` or `leantrain compare`, finished or cut; at least one.
        out: the file, or a folder for `report.html`; default: `report.html` in the first of the folders.

    Raises:
        LeanError: a folder holds neither, or the page cannot be written.
    """
    studies = collect(folders)
    place = folders[0] if out is None else out
    if place.is_dir():
        place = place / "report.html"
    write_text(place, render({"studies": studies}))
    return place


def render(content: dict[str, Any]) -> str:
    """The page as text; `content` is what page.js reads."""
    here = files("leantrain.report")
    page = here.joinpath("page.html").read_text(encoding="utf-8")
    for mark, text in (
        ("/*page.css*/", here.joinpath("page.css").read_text(encoding="utf-8")),
        ("/*page.js*/", here.joinpath("page.js").read_text(encoding="utf-8")),
        ("/*page.json*/", embed(content)),  # last: what it holds is never searched for marks
    ):
        before, found, after = page.partition(mark)
        assert found, mark
        page = before + text + after
    return page


def embed(content: Any) -> str:
    """JSON that may stand inside a script element: no character that HTML or a line of JavaScript would read."""
    text = json.dumps(_finite(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same with null for what JSON cannot say: infinities and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value

"""Tables as Markdown, for standard output and docs/results.md alike."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "—"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; its first columns hold words, the others numbers."""
    lines = [header, [*["---"] * words, *["---:"] * (len(header) - words)], *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def mean(values: Sequence[float | None], digits: int = 2) -> str:
    """A mean with its sample standard deviation where there are two values or more; a dash where one is missing."""
    from statistics import fmean, stdev

    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return UNKNOWN
    spread = f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{fmean(known):.{digits}f}{spread}"

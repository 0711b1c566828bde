"""What a user did that cannot work, said in one sentence that names the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LeanError(ValueError):
    """A mistake the user can fix. The command prints its sentence alone and exits with 2; a loop sees a ValueError."""


class LeanWarning(UserWarning):
    """Something that works and is not worth it, with the arithmetic."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the known name closest to a mistyped one, or nothing when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def shortened(text: str, most: int = 100) -> str:
    """A text on one line, and without its middle where it is long: it may come from anywhere."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-(most // 2) :]}"


def check_type(name: str, value: object, kind: Any, words: str) -> None:
    """Refuse an argument of another type, which a loop would otherwise learn of from somewhere inside."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        what = f"{value!r:.60}" if isinstance(value, str | int | float) else f"a {type(value).__name__}"
        raise LeanError(f"{name} is {what}, but must be {words}.")

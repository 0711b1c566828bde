"""What the documentation's site needs beyond mkdocs: a section of all method cards, and links that leave docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:benchmarks|examples|src|tests)(/[^)#]*)?(?:#[^)]*)?\)")
"""Links to the repository around docs/: on the site their words stay, as there is nothing there to link to."""


def on_config(config: Any) -> Any:
    """List every card, so that a new method is on the site without another line here."""
    cards = sorted(path.name for path in (Path(config.docs_dir) / "methods").glob("*.md"))
    config.nav = [
        {"Methods": [f"methods/{name}" for name in cards]} if entry == {"Methods": "methods/"} else entry
        for entry in config.nav
    ]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(r"\1", markdown)

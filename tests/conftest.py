"""What all tests share: one torch thread, as `make test` runs two processes at once, one seed; and what is slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

SLOW = (
    "browser",
    "cli",
    "compare/test_compare.py",
    "compare/test_ray.py",
    "data/test_shards.py",
    "distributed",
    "integrations",
    "models",
    "resume",
    "run/test_loop.py",
    "scoring/test_score_command.py",
    "scoring/test_score_images.py",
    "scoring/test_score_registry.py",
    "test_examples.py",
    "test_inspect.py",
    "test_library_half.py",
    "test_report.py",
    "test_split.py",
    "test_torchvision.py",
)
"""Files and folders with tests that start programs, browsers and several processes, or build many models.

`make test-fast` leaves them out.
"""


FIRST = ("test_examples.py", "test_compare.py", "test_kill.py", "test_split.py", "test_inspect.py", "test_page.py")
"""The files that take longest, in that order."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Equal random numbers in every test, whichever tests its process ran before."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix()
        if place.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    # The slow ones first, so that no worker is left with the longest file at the end.
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))

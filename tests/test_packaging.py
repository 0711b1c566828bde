"""What is installed: the library needs torch and numpy, the command declares all that it imports, one version."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leantrain

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}
DISTRIBUTIONS["mlflow"] = "mlflow-skinny"
NOT_OURS = {"leantrain", "torch", "numpy"}
tomllib: Any = pytest.importorskip("tomllib")  # Python 3.11


def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return content


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", text)[0].lower() for text in requirements}


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_everything_that_is_imported_is_declared() -> None:
    extras = project()["project"]["optional-dependencies"]
    own = {extra: requirements for extra, requirements in extras.items() if extra not in ("dev", "long")}
    declared = {name for requirements in own.values() for name in names(requirements)}
    used = {name for file in (ROOT / "src").rglob("*.py") for name in imported(file)}
    used = used - NOT_OURS - set(sys.stdlib_module_names) | {"tensorboard"}  # which torch imports for its SummaryWriter
    assert {DISTRIBUTIONS.get(name, name) for name in used} == declared


def test_the_library_alone_brings_torch_and_numpy() -> None:
    assert names(project()["project"]["dependencies"]) == {"torch", "numpy"}


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in project()["project"]
    text = (ROOT / "src" / "leantrain" / "__init__.py").read_text()
    assert f'__version__ = "{leantrain.__version__}"' in text  # a literal, which setuptools reads without importing

"""The command starts fast, and says what it lacks where only the library is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LACKING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
sys.meta_path.insert(0, Missing())
from leantrain.cli import main
main({arguments!r})
"""


def without(names: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = LACKING.format(names=names, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["train", "--no-such"], ["train", "--lr", "0"]])
def test_help_and_wrong_flags_need_no_torch(arguments: list[str]) -> None:
    done = without({"torch", "rich", "matplotlib"}, *arguments)
    assert "missing" not in done.stderr
    assert done.returncode == (0 if "--help" in arguments else 2), done.stderr


@pytest.mark.parametrize("package", ["click", "yaml", "safetensors", "rich"])
def test_a_missing_package_is_one_sentence_that_names_it_and_the_remedy(package: str, tmp_path: Path) -> None:
    done = without({package}, "train", "--epochs", "1", "--train-limit", "32", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    said = f"leantrain: the command needs more packages ({package} is missing): pip install 'leantrain[cli]'"
    assert done.stderr.strip() == said
    assert not any(tmp_path.iterdir())


def test_the_loop_asks_for_no_package_that_it_does_not_need() -> None:
    """Torchmetrics imports transformers, for example: five seconds of every start."""
    unwanted = {"torchmetrics", "transformers", "torchvision", "timm", "lightning", "matplotlib"}
    code = f"import sys, leantrain.run.loop; print(*{unwanted} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == ""

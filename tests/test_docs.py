"""The code in the documentation runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from leantrain.cli import cli
from program import SMALL, run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def test_the_code_of_extending_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    assert len(blocks[0].strip().splitlines()) <= 42, "a method in 40 lines"
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert re.search(r"epoch 5: [1-9]\d*% known well, cost so far 0\.\d+", last), done.stdout


START = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import torch, leantrain
from torch import nn
from torch.utils.data import TensorDataset
def make_model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
model = make_model()
data = train_set = plain_set = TensorDataset(torch.randn(64, 3, 16, 16), torch.arange(64) % 3)
images = composites = torch.randn(4, 3, 16, 16)
owner = torch.zeros(4, 16, 16, dtype=torch.uint8)
owner[:, 8:] = 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR
lean = leantrain.attach(model, train_set, epochs=2)
"""
"""What a reader has already where a page does not say it: a model and data."""


def blocks(page: Path, *languages: str) -> list[str]:
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_code_of_every_other_page_runs(tmp_path: Path) -> None:
    """All in one process, as starting one takes longer than the code; each page in a namespace of its own."""
    pages = {page.name: blocks(page, "python") for page in PAGES if page.name != "extending.md"}
    pages = {name: code for name, code in pages.items() if code}
    assert {"index.md", "combining.md", "scoring.md"} <= pages.keys()
    image = tmp_path / "photo.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)
    assert run("train", *SMALL, "--epochs", 1, "--out", tmp_path / "runs" / "half").returncode == 0
    program = "".join(f"print({name!r})\nexec({START + chr(10).join(code)!r}, {{}})\n" for name, code in pages.items())
    program += f"space = {{}}\nexec({START + pages['combining.md'][0]!r}, space)\nprint(space['method'])\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
    assert done.stdout.splitlines()[-1] == "random-backprop + mixtrain-cutmix[until=0.8]"


def commands() -> list[tuple[str, str]]:
    """Every command that a page shows."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("leantrain ") and "…" not in line:
                    found.append((page.name, line))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_shown_has_the_options_that_it_names(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    with click.Context(cli, info_name="leantrain") as context:
        name, command, arguments = cli.resolve_command(context, words)
        assert command is not None
        command.make_context(name, list(arguments), parent=context)  # raises where an option is not known


def test_the_site_lists_every_page() -> None:
    """`make docs` builds it strictly, with every card; here only that every other page has its place."""
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name in listed, f"{page.name} is not in mkdocs.yml"

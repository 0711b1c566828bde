"""The code in the documentation runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_code_of_extending_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    assert len(blocks[0].strip().splitlines()) <= 42, "a method in 40 lines"
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert re.search(r"epoch 5: [1-9]\d*% known well, cost so far 0\.\d+", last), done.stdout


def test_the_code_of_combining_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "combining.md").read_text(), re.DOTALL)
    start = (
        "import torch, leantrain\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
        "data = TensorDataset(torch.randn(64, 3, 16, 16), torch.arange(64) % 3)\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))\n"
    )
    end = "print(method)"
    code = start + "\n".join(blocks) + end
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "random-backprop[keep=0.5] + mixtrain-cutmix[until=0.8]".replace("[keep=0.5]", "")

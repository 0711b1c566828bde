"""The library half needs torch and numpy and nothing else, and nothing of the program half."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BLOCKED = (
    "rich", "click", "yaml", "timm", "torchvision", "sklearn", "PIL", "simplejpeg", "pyarrow", "matplotlib",
    "safetensors", "lightning_fabric", "scipy", "tensorboard", "pandas", "lightning",
    "transformers", "accelerate", "mlflow",
)  # fmt: skip
ROOMS = ("run", "cli", "compare", "data", "models", "report", "inspect", "bench", "integrations")
PROGRAM = tuple(f"leantrain.{room}" for room in ROOMS)

START = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):  # torch asks for some of them too, and does without
        return None if name.partition(".")[0] in {BLOCKED!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(12, 1, 8, 8), torch.arange(12) % 3)

def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""
END = f"""
program = [name for name in sys.modules if ".".join(name.split(".")[:2]) in {PROGRAM!r}]
assert not program, program
blocked = [name for name in sys.modules if name.partition(".")[0] in {BLOCKED!r}]
assert not blocked, blocked
"""


def runs(code: str) -> None:
    """In a fresh process, for which what only the program needs is not installed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", START + code + END], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_used() -> None:
    runs("""
import leantrain, leantrain.methods, leantrain.scoring
for package in (leantrain, leantrain.methods, leantrain.scoring):
    for name in package.__all__:
        assert getattr(package, name) is not None
for kind in leantrain.methods.METHODS.values():
    assert str(kind())
for kind in leantrain.scoring.SCORES.values():
    assert str(kind())
""")


def test_every_module_can_be_imported() -> None:
    others = (*PROGRAM, "leantrain.__main__")
    runs(f"""
import importlib, pkgutil
import leantrain
for found in pkgutil.iter_modules(leantrain.__path__, "leantrain."):
    if found.name not in {others!r}:
        module = importlib.import_module(found.name)
        for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), found.name + "."):
            importlib.import_module(inner.name)
""")


def test_a_loop_trains() -> None:
    runs("""
import leantrain
model = network()
lean = leantrain.attach(model, data, leantrain.MixTrain("cutmix"), epochs=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
for batch in lean.loader(batch_size=6):
    lean.loss(batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
assert steps == 2 and lean.finished, (steps, lean.progress)
""")


def test_examples_are_scored_and_pruned() -> None:
    runs("""
import tempfile
from pathlib import Path
import leantrain, leantrain.scoring
for kind in leantrain.scoring.SCORES:
    scores = leantrain.score(network, data, kind, models=1, epochs=2, batch_size=6, device="cpu")
assert leantrain.scoring.summarise(scores)["examples"] == 12
assert leantrain.scoring.compare_scores(scores, scores)["common"] == 12
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "s.npz"
    scores.save(file)
    lean = leantrain.attach(network(), data, f"el2n[scores={file}]", epochs=1)
    assert sum(len(batch) for batch in lean.loader(batch_size=6)) == 9
    try:
        scores.save(file.with_suffix(".parquet"))
    except leantrain.LeanError as error:
        assert "leantrain[cli]" in str(error)
    else:
        raise AssertionError("there is no pyarrow, and parquet was written")
""")


@pytest.mark.parametrize("room", ["rich", "leantrain.run.machine"])
def test_what_belongs_to_the_program_is_noticed(room: str) -> None:
    with pytest.raises(AssertionError, match=room):
        runs(f"import {room}")

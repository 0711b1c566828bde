"""What the frameworks are compared with: the same training in a plain loop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import TensorDataset

import leantrain

EPOCHS, BATCH, LR = 5, 8, 0.1
PATIENCE = 120  # seconds; two processes that wait for each other must not wait for ever
METHODS = ("infobatch[prune=0.9]", "mixtrain-cutmix[select=all]", "selective-backprop")
"""Epochs that get shorter, composites, candidates that are looked at."""


def images(n: int = 90) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, 12, 12, generator=rng)
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(4, 2))


def plain_steps(epochs: int = EPOCHS) -> int:
    """How many steps plain training takes, which is what a framework tells a scheduler."""
    return epochs * -(-90 // BATCH)


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Fetches the next batch before it hands one out, as frameworks do to know which is the last."""
    source = iter(batches)
    for held in source:
        for following in source:
            yield held
            held = following
        yield held


def two_processes(script: str, folder: Path) -> None:
    """Run a test file's `__main__` part in two processes that torchrun starts.

    Started anew: a fork of a process that has trained already has waited for ever, and a port that is looked for
    beforehand may be somebody else's by then.
    """
    together = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended = subprocess.run([*together, script, str(folder)], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


class Trained(NamedTuple):
    losses: list[float]
    rates: list[float]
    lean: leantrain.Lean


def one_cycle(optimizer: Any) -> LRScheduler:
    return OneCycleLR(optimizer, LR, total_steps=plain_steps(), cycle_momentum=False)


def plain_loop(
    method: str,
    budget: float | None = None,
    ahead: bool = False,
    model: nn.Module | None = None,
    schedule: Callable[[Any], LRScheduler] = one_cycle,
) -> Trained:
    model = model or network()
    lean = leantrain.attach(model, images(), method, epochs=EPOCHS, budget=budget)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scheduler = lean.drive(schedule(optimizer), None if schedule is one_cycle else plain_steps())
    loader, losses, rates = lean.loader(BATCH), [], []
    model.train()
    while not lean.finished:
        for batch in one_ahead(loader) if ahead else loader:
            loss = lean.loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(float(loss.detach()))
            rates.append(optimizer.param_groups[0]["lr"])
    return Trained(losses, rates, lean)


def same_run(one: leantrain.Lean, other: leantrain.Lean) -> bool:
    """Whether two runs have the same ledger, cost, number of examples and steps."""
    mine, yours = one.state_dict(), other.state_dict()
    ledgers: list[tuple[Tensor, Tensor]] = [(mine["ledger"][name], yours["ledger"][name]) for name in mine["ledger"]]
    numbers = ("done", "done_cost", "done_steps", "cost", "examples", "span")
    return all(mine[name] == yours[name] for name in numbers) and all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True) for a, b in ledgers
    )

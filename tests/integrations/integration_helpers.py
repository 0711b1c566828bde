"""What the frameworks are compared with: the same training in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import TensorDataset

import leantrain

EPOCHS, BATCH, LR = 5, 8, 0.1
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

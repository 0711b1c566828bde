"""Schedulers in the shape of torch's own, for loops that step these; they follow the run's progress."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.utils.data import TensorDataset

import leantrain
from leantrain.errors import LeanError

METHOD = "infobatch[prune=0.9]"  # leaves out so much that counting steps goes wrong


def attached(epochs: int = 4) -> tuple[leantrain.Lean, SGD]:
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    model = nn.Linear(4, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
    return leantrain.attach(model, TensorDataset(x, (x[:, 0] > 0).long()), METHOD, epochs=epochs), SGD(groups, lr=0.1)


def train(lean: leantrain.Lean, optimizer: SGD, scheduler: Any, stop: int = 10**6) -> list[list[float]]:
    """The learning rates of every step, by group."""
    loader, rates = lean.loader(8), []
    while not lean.finished:
        for batch in loader:
            rates.append([group["lr"] for group in optimizer.param_groups])
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if len(rates) == stop:
                return rates
    return rates


@pytest.mark.parametrize("schedule", ["linear", "cosine", "onecycle"])
def test_every_group_comes_down_fully_from_its_own_rate(schedule: str) -> None:
    lean, optimizer = attached()
    scheduler = lean.scheduler(optimizer, schedule)
    assert isinstance(scheduler, LRScheduler)
    rates = train(lean, optimizer, scheduler)
    assert len(rates) < 4 * 15, "the method is to leave steps out"
    assert max(rate for rate, _ in rates) == pytest.approx(0.1, rel=0.02)
    assert all(second == pytest.approx(5 * first) for first, second in rates)
    assert scheduler.get_last_lr() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_steps_are_those_of_epochs_and_stepping_twice_does_no_harm() -> None:
    lean, optimizer = attached()
    scheduler = lean.scheduler(optimizer, "step[every=2,factor=0.1]")
    for _ in range(4):
        for batch in lean.loader(8):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 if lean.epoch < 2 else 0.01)
            lean.loss(batch)
            optimizer.step()
            scheduler.step()
            scheduler.step()


def test_one_that_counts_steps_is_driven_from_its_first_to_its_last() -> None:
    counted, driven = [], []
    for collected, drive in ((counted, False), (driven, True)):
        lean, optimizer = attached()
        scheduler: Any = OneCycleLR(optimizer, max_lr=[0.1, 0.5], total_steps=4 * len(lean.loader(8)))
        if drive:
            scheduler = lean.drive(scheduler)
            assert isinstance(scheduler, LRScheduler)
        collected += train(lean, optimizer, scheduler)
        collected.append([group["lr"] for group in optimizer.param_groups])
    assert counted[-1][0] > 0.01 * 0.1, "by itself it is far from its end"
    assert driven[-1] == pytest.approx([0.1 / 25 / 1e4, 0.5 / 25 / 1e4])
    assert max(rate for rate, _ in driven) == pytest.approx(0.1, rel=0.02)


def test_epochs_that_a_scheduler_counts_are_those_of_the_run() -> None:
    lean, optimizer = attached()
    rates = train(lean, optimizer, lean.drive(MultiStepLR(optimizer, [1, 3]), steps=4))
    assert sorted({round(rate, 6) for rate, _ in rates}) == [0.001, 0.01, 0.1]
    lean, optimizer = attached()
    train(lean, optimizer, lean.drive(CosineAnnealingLR(optimizer, T_max=200)))
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("drive", [False, True])
def test_a_run_saved_in_mid_epoch_goes_on_with_the_same_rates(drive: bool) -> None:
    def made() -> tuple[leantrain.Lean, SGD, LRScheduler]:
        lean, optimizer = attached()
        if drive:
            return lean, optimizer, lean.drive(OneCycleLR(optimizer, max_lr=0.1, total_steps=500))
        return lean, optimizer, lean.scheduler(optimizer, "cosine")

    expected = train(*made())
    lean, optimizer, scheduler = made()
    rates = train(lean, optimizer, scheduler, stop=20)
    states = [one.state_dict() for one in (lean, lean.model, optimizer, scheduler)]
    lean, optimizer, scheduler = made()
    for one, state in zip((lean, lean.model, optimizer, scheduler), states, strict=True):
        one.load_state_dict(state)
    assert rates + train(lean, optimizer, scheduler) == expected


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda lean, optimizer: lean.drive(ReduceLROnPlateau(optimizer)), "ReduceLROnPlateau counts no steps"),
        (lambda lean, optimizer: lean.drive(StepLR(optimizer, 3)), "StepLR does not say how many steps"),
        (lambda lean, optimizer: lean.drive(LambdaLR(optimizer, lambda step: 1.0), steps=0), "steps is 0"),
        (lambda lean, optimizer: lean.drive(optimizer), "SGD counts no steps"),
        (lambda lean, optimizer: lean.scheduler(lean.model, "linear"), "the optimizer is a Linear"),
        (lambda lean, optimizer: lean.scheduler(optimizer, "cosin"), "Did you mean 'cosine'"),
    ],
)
def test_what_cannot_be_driven_is_refused(make: Any, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        make(*attached())

"""Estimates: what a run will cost and how long it will take, before it has trained."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from leantrain import estimate
from leantrain.cost import scoring_cost
from leantrain.methods import choose_method
from leantrain.pools import FittingPools
from leantrain.run.config import TrainConfig
from leantrain.run.tuning import fitted_examples
from leantrain.shrinking import Shrunk

if TYPE_CHECKING:
    from leantrain.run.loop import Run

LONG = 2.0
"""Seconds of a pass from which on it need not be tried twice: what a first one takes longer is little beside it."""


def expected_cost(config: TrainConfig, length: int, side: int = 0) -> float:
    """What a run of these settings costs at most, in epochs of plain training."""
    assert config.epochs is not None
    fit = scoring_cost(fitted_examples(config, length, classes=1)) / length if config.budget is None else 0.0
    return fit + _expected(config.method, config.budget, length, config.epochs, config.step_size, side)


@functools.lru_cache(1024)  # a control costs what its method does, and tables have rows in common
def _expected(name: str | None, share: float | None, examples: int, epochs: int, batch_size: int, side: int) -> float:
    method, budget = choose_method(name, share)
    return estimate.expected_cost(
        method, examples=examples, epochs=epochs, batch_size=batch_size, side=side, budget=budget
    )


def warm_up(run: Run) -> float:
    """Seconds per example of one forward and backward pass, tried on a copy of the model; it also warms the caches."""
    return _seconds_per_example(run, copy.deepcopy(run.module).train())


def _seconds_per_example(run: Run, model: nn.Module, scale: float = 1.0) -> float:
    """The same of images whose side is that share of the whole one."""
    size = min(run.batch_size, len(run.images.train), 64)
    index = torch.arange(size)
    inputs, targets = (x.to(run.device) for x in run.images.train.batch(index, 0))
    seconds = math.inf
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        for _ in range(2):
            started = time.perf_counter()
            shown = run.augment.train(inputs, index, 0)
            with FittingPools() if scale < 1 else contextlib.nullcontext(), run.precision.autocast():
                side = round(scale * run.images.image_size)
                small = shown if scale == 1 else F.interpolate(shown, (side, side), mode="bilinear")
                loss = F.cross_entropy(model(small), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
            seconds = min(seconds, time.perf_counter() - started)
            if seconds > LONG:
                break
    return seconds / size


class ExpectedTime(NamedTuple):
    """About how long the rest of a training takes.

    Attributes:
        share: of the time that plain training takes for as much of a run.
    """

    seconds: float
    share: float


def expected_time(run: Run) -> ExpectedTime:
    """About how long the rest of the training takes.

    Small images take longer than their share of the cost where networks or batches are small, so every size is tried.
    """
    assert run.config.epochs is not None
    length, model = len(run.images.train), copy.deepcopy(run.module).train()
    whole = _seconds_per_example(run, model)
    by_form = run.lean.expected_costs(run.batch_size)
    longer = 0.0  # than cost says
    for form, cost in by_form.items():
        if (scale := form.value(Shrunk.name)) < 1:
            longer += cost * (_seconds_per_example(run, model, scale) / scale**2 - whole)
    left = 1.0 - run.lean.progress
    seconds = left * expected_cost(run.config, length, run.images.image_size) * whole + longer
    return ExpectedTime(length * seconds, seconds / max(1e-9, left * run.config.epochs * whole))

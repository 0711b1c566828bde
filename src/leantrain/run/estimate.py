"""Estimates: what a run will cost and how long it will take, before it has trained."""

from __future__ import annotations

import copy
import functools
import math
import time
from typing import TYPE_CHECKING

import torch

from leantrain import estimate
from leantrain.cost import scoring_cost
from leantrain.methods import choose_method
from leantrain.run.config import TrainConfig
from leantrain.run.tuning import fitted_examples

if TYPE_CHECKING:
    from leantrain.run.loop import Run


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
    model = copy.deepcopy(run.module).train()
    size = min(run.batch_size, len(run.images.train), 64)
    index = torch.arange(size)
    inputs, targets = (x.to(run.device) for x in run.images.train.batch(index, 0))
    seconds = math.inf
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        for _ in range(2):
            started = time.perf_counter()
            with run.fabric.autocast():
                loss = torch.nn.functional.cross_entropy(model(run.augment.train(inputs, index, 0)), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
            seconds = min(seconds, time.perf_counter() - started)
    return seconds / size


def expected_seconds(run: Run) -> float:
    """About how long the rest of the training takes."""
    examples = expected_cost(run.config, len(run.images.train), run.images.image_size) * len(run.images.train)
    return (1.0 - run.lean.progress) * examples * warm_up(run)

"""Estimates: what a run will cost and how long it will take, before it has trained."""

from __future__ import annotations

import copy
import functools
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from leantrain import estimate
from leantrain.cost import scoring_cost
from leantrain.forms import WHOLE, Form
from leantrain.ledger import Ledger
from leantrain.loader import PlannedDataset
from leantrain.methods import choose_method
from leantrain.plan import PlannedBatch
from leantrain.run import machine
from leantrain.run.config import TrainConfig
from leantrain.run.optimizers import build_optimizer
from leantrain.run.tuning import fitted_examples
from leantrain.shrinking import Shrunk
from leantrain.tuning import keep_statistics

if TYPE_CHECKING:
    from leantrain.run.loop import Run

LONG, ENOUGH, TRIES = 2.0, 0.3, 40
"""Seconds of a trial from which on it need not be repeated, as what a first one takes longer is little beside it;
seconds that are enough for each form; and how often each is tried at most."""

PIXELS = 64 * 224**2
"""Of the images that a step is tried with, in all."""

MOST_COST_PER_TIME = 1.25
"""How much less time than plain training of its cost a method may take."""


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
    """Seconds per example of a step, tried on a copy of the model; it also warms the caches."""
    return Pace(run).seconds()


class Pace:
    """How long a step takes per input in every form, tried on a copy of the model when it is asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._model = copy.deepcopy(run.module).train()
        if run.config.keep_statistics:
            keep_statistics(self._model)
        self.optimizer = build_optimizer(run.config, self._model, run.device)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for module in self._model.modules():
            if isinstance(module, nn.SyncBatchNorm):  # which waits for other processes, and they may try fewer steps
                module.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
        self.presenter = run.lean.presenter(run.precision.wrapped(self._model))
        self.loader = PlannedDataset(run.images.train, None, (0, 1))
        self._known: dict[Form, float] = {}

    def seconds(self, form: Form = WHOLE) -> float:
        """Per input."""
        self._learn((form,))
        return self._known[form]

    def _learn(self, forms: Iterable[Form]) -> None:
        missing = [form for form in dict.fromkeys((WHOLE, *forms)) if form not in self._known]
        self._known |= self._tried(missing) if missing else {}

    def _tried(self, forms: Sequence[Form]) -> dict[Form, float]:
        """Seconds per input. Forms take turns, so that a slow moment of the machine falls on all alike."""
        trials = {form: _Trial(self, form) for form in forms}
        taken: dict[Form, list[float]] = {form: [] for form in forms}
        cuda = [self.run.device] if self.run.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            for _ in range(TRIES):
                for form in (form for form in forms if max(taken[form], default=0.0) < LONG):
                    started = time.perf_counter()
                    trials[form].steps()
                    taken[form].append(time.perf_counter() - started)
                if all(max(times) >= LONG or (len(times) > 1 and sum(times) > ENOUGH) for times in taken.values()):
                    break
        return {form: statistics.median_low(taken[form]) / trials[form].inputs for form in forms}

    def of(self, by_form: dict[Form, float]) -> float:
        """Seconds of so much training in each form, in passes over one example at full cost.

        Small images take longer than their share of the cost where networks or batches are small.
        """
        self._learn(by_form)
        return math.fsum(cost * self._known[form] / form.size for form, cost in by_form.items())


class _Trial:
    """What the run does in some steps of one form, with a ledger of its own few examples."""

    def __init__(self, pace: Pace, form: Form) -> None:
        self._pace, run = pace, pace.run
        side = round(form.value(Shrunk.name) * run.images.image_size)
        part = run.batch_size // (run.config.step_parts * run.ranks)  # what this process computes at once
        in_step = max(1, min(part, len(run.images.train) // form.constituents, PIXELS // side**2))
        at_once = run.augment.at_once if run.ranks == form.constituents == 1 else 1
        steps = max(1, min(at_once, len(run.images.train)) // in_step)  # that are loaded and prepared together
        self.inputs = in_step * steps
        self._sizes = [in_step * form.constituents] * steps
        self._planned = PlannedBatch(0, 0, torch.arange(self.inputs * form.constituents), None, form)
        self._loaded = pace.loader[self._planned].to(run.device)
        self._ledger = Ledger(len(self._loaded), run.device)

    def steps(self) -> None:
        run = self._pace.run
        # Workers load beside the steps.
        loaded = self._loaded if run.config.workers else self._pace.loader[self._planned].to(run.device)
        prepared = run.augment(loaded)
        for batch in [prepared] if len(self._sizes) == 1 else prepared.parts(self._sizes):
            logits = self._pace.presenter.answer(batch).logits.float()
            losses = F.cross_entropy(logits, batch.targets, reduction="none")
            self._ledger.record(batch.index, losses, logits.argmax(1) == batch.targets, batch.form, 0)
            losses.mean().backward()  # type: ignore[no-untyped-call]
            self._pace.optimizer.step()
            self._pace.optimizer.zero_grad(set_to_none=True)
        machine.wait_for(run.device)


class ExpectedTime(NamedTuple):
    """About how long the rest of a training takes.

    Attributes:
        share: of the time that plain training takes for as much of a run.
    """

    seconds: float
    share: float


def expected_time(run: Run, pace: Pace | None = None) -> ExpectedTime:
    """About how long the rest of the training takes.

    Args:
        pace: of the same network and images, where it is known.
    """
    assert run.config.epochs is not None
    length, pace = len(run.images.train), pace or Pace(run)
    by_form = run.lean.expected_costs(run.batch_size)
    left = 1.0 - run.lean.progress
    # With what is paid for besides steps, such as scores.
    more = left * expected_cost(run.config, length, run.images.image_size) - math.fsum(by_form.values())
    seconds = pace.of(by_form) + more * pace.seconds()
    return ExpectedTime(length / run.ranks * seconds, seconds / max(1e-9, left * run.config.epochs * pace.seconds()))


def budget_for_time(share: float, pace: Pace) -> float:
    """The share of plain training's cost with which a run takes about that share of its time.

    So seconds follow the budget also where networks or batches are so small that small images take longer than they
    cost.
    """
    run, low, high = pace.run, 0.0, MOST_COST_PER_TIME * share
    while high - low > 0.002 * share:
        budget = (low + high) / 2
        by_form = run.lean.expected_costs(run.batch_size, budget)  # of next to no budget nothing
        cost = math.fsum(by_form.values())
        taken = budget * pace.of(by_form) / (cost * pace.seconds()) if cost else 0.0
        low, high = (low, budget) if taken > share else (budget, high)
    return float(f"{(low + high) / 2:.4g}")

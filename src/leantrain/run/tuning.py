"""Starting from published weights: a run's new classifier is fitted before its first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from leantrain.cost import scoring_cost
from leantrain.data import ImageSet
from leantrain.errors import LeanError
from leantrain.head import FittedHead, find_linear_head, fit_head
from leantrain.ranks import of_the_first
from leantrain.rng import generator
from leantrain.run.config import TrainConfig
from leantrain.run.setup import build_model, evaluation_batches

if TYPE_CHECKING:
    from leantrain.run.loop import Run

MOST, PER_CLASS = 4096, 10
"""How many examples a classifier is fitted to at most, or that many of each class if these are more."""

LEAST = 5
"""Of each class; fewer say too little."""

SHARE = 0.1
"""What of a run's cost its fit may take at most."""


def fitted_examples(config: TrainConfig, examples: int, classes: int) -> int:
    """How many examples a run fits its classifier to; 0 where it does not, or its budget pays for too few."""
    assert config.epochs is not None
    if not config.fit_head:
        return 0
    affordable = int(SHARE * (config.budget or 1.0) * config.epochs * examples / scoring_cost(1))
    number = min(max(MOST, PER_CLASS * classes), examples, affordable)
    return number if number >= LEAST * classes else 0


def has_new_head(config: TrainConfig, images: ImageSet, model: nn.Module, example: Tensor) -> bool:
    """Whether the classifier is linear and as it was before any weights were loaded, so that it has nothing to lose."""
    try:
        head = find_linear_head(model, example)
    except LeanError:
        return False
    if config.pretrained:  # whose random numbers are drawn in another order
        published: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        return published.get("num_classes") != len(images.classes)
    name = next(name for name, module in model.named_modules() if module is head)
    before = build_model(config, images, fresh=False).get_parameter(f"{name}.weight")
    return torch.equal(head.weight.cpu(), before)


def fit(run: Run, examples: int) -> FittedHead:
    """Fit the classifier of a run to so many of its training images, as a test set would be shown; on every rank."""
    order = torch.randperm(len(run.images.train), generator=generator(run.config.seed, "head"))
    part = run.images.train.select(order[:examples].sort().values)

    def shown() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in evaluation_batches(part, run.config):
            batch = batch.to(run.device)
            yield run.augment.evaluate(batch.inputs), batch.targets

    with run.precision.autocast():
        found = fit_head(run.module, shown())
    head = find_linear_head(run.module, run.example_inputs())
    with torch.no_grad():
        for parameter in head.parameters():  # equal but for rounding, where ranks have CPUs of several kinds
            parameter.copy_(of_the_first(parameter.detach(), run.device))
    return found

"""Coresets: parts of the training set that stand for all of it, chosen by what the last layer sees and would learn.

The gradient of a linear last layer is the outer product of its error, softmax − one-hot, and its features with a one
for the bias. So products of gradients are products of errors times products of features, and none is ever stored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CANDIDATES = 8
"""How many of the most promising examples a step of the greedy search looks at first."""


class Looked(NamedTuple):
    """What a model says about every training example, in order, without having trained on it.

    Attributes:
        targets: int64 (N,), the classes.
        features: float32 (N, d), what the last layer is given.
        logits: float32 (N, classes).
    """

    targets: Tensor
    features: Tensor
    logits: Tensor

    @property
    def errors(self) -> Tensor:
        """softmax − one-hot: the gradient of each loss by the logits."""
        errors = self.logits.softmax(1)
        errors[torch.arange(len(errors)), self.targets] -= 1.0
        return errors

    @property
    def gradient_norms(self) -> Tensor:
        """The norm of each example's gradient of the last layer."""
        errors: Tensor = torch.linalg.vector_norm(self.errors, dim=1)
        return errors * (self.features.square().sum(1) + 1.0).sqrt()


def quotas(targets: Tensor, keep: float) -> Tensor:
    """How many examples of every class are kept: that share of it, and of a class that is there at least one."""
    there = torch.bincount(targets)
    return torch.where(there > 0, (there * keep).round().long().clamp(min=1), 0)


def similarity(errors: Tensor | None, features: Tensor) -> Tensor:
    """How near examples are to each other, 0 for the farthest two: by gradients, or without errors by features."""
    product = features @ features.T
    if errors is not None:
        product.add_(1.0).mul_(errors @ errors.T)
    length = product.diagonal().clone()
    distance = product.mul_(-2.0).add_(length).add_(length.unsqueeze(1)).clamp_(min=0.0).sqrt_()
    distance.fill_diagonal_(0.0)  # which rounding leaves a little above
    return distance.neg_().add_(-distance.min())


def facility_location(near: Tensor, count: int) -> Tensor:
    """The examples, in the order in which they are found, that greedily raise Σ_i max_j near[i, j] the most.

    Lazy: a gain only falls as others are chosen, so the one known last bounds it. A step looks again at the examples of
    the highest bounds, and is done when the best of these is no worse than any other's bound. So it finds what plain
    greedy finds, or something as good.
    """
    covered, bounds = torch.zeros(len(near)), near.sum(1)
    chosen = torch.empty(count, dtype=torch.int64)
    for step in range(count):
        width = CANDIDATES
        while True:
            values, places = bounds.topk(min(width + 1, len(bounds)))
            others = float(values[width]) if width < len(values) else -1.0
            places = places[:width]
            gains = (near[places] - covered).clamp_(min=0.0).sum(1)
            gains[values[:width] < 0.0] = -1.0  # chosen before
            bounds[places] = gains
            best = int(gains.argmax())
            if float(gains[best]) >= others:
                break
            width *= 2
        found = int(places[best])
        chosen[step] = found
        bounds[found] = -1.0
        torch.maximum(covered, near[found], out=covered)
    return chosen


def stands_for(near: Tensor, chosen: Tensor) -> Tensor:
    """How many examples each chosen one is the nearest of, itself included."""
    return torch.bincount(near[:, chosen].argmax(1), minlength=len(chosen))


def validation_gains(looked: Looked, held: Tensor, added: Tensor, rate: float) -> Tensor:
    """What a step on each example would take off the held-out loss, to first order and per unit of the rate (GLISTER).

    Args:
        held: which examples are held out, as a mask.
        added: those chosen so far; the last layer is first moved one step along their mean gradient.
        rate: of that step.
    """
    ones = torch.ones(len(looked.features), 1)
    features, errors = torch.cat([looked.features, ones], 1), looked.errors
    moved = looked.logits[held]
    if len(added):
        step = features[added].T @ errors[added] / len(added)
        moved = moved - rate * features[held] @ step
    error = Looked(looked.targets[held], features[held], moved).errors
    slope = features[held].T @ error / int(held.sum())  # of the held-out loss, by the last layer
    return (features @ slope * errors).sum(1)


def glister(looked: Looked, held: Tensor, keep: Tensor, rounds: int, rate: float) -> Tensor:
    """The examples whose gradients agree most with the held-out part's, class by class, in a few rounds.

    Args:
        held: which examples are held out and so not chosen, as a mask.
        keep: how many to choose of every class.
        rounds: after each of which the held-out gradient is computed anew.
        rate: of the step that it is computed after.
    """
    free = ~held
    chosen = torch.empty(0, dtype=torch.int64)
    done = torch.zeros_like(keep)
    for number in range(1, rounds + 1):
        gains = validation_gains(looked, held, chosen, rate)
        due = keep * number // rounds
        found = [chosen]
        for label in (due > done).nonzero().squeeze(1).tolist():
            members = (free & (looked.targets == label)).nonzero().squeeze(1)
            best = members[gains[members].topk(min(len(members), int(due[label] - done[label]))).indices]
            free[best] = False
            found.append(best)
        chosen, done = torch.cat(found), due
    return chosen

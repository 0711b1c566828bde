"""The head of a model: the layer that gives its answer, what that layer is given, and how a new one starts well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode, first_look
from leantrain.wrappers import unwrapped

RIDGES = torch.logspace(-5, 1, 19, dtype=torch.float64).tolist()
"""What may be added to the spectrum of the features, as shares of its largest value."""

STEEPNESS = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32)
"""By what least squares' answers, which lie between 0 and 1, may be multiplied to become logits."""


def find_head(model: nn.Module, example: Any) -> nn.Module:
    """The classifier: the last layer with a matrix that is called."""
    bare, called = unwrapped(model), list[nn.Module]()

    def note(layer: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        called.append(layer)

    layers = [module for module in bare.modules() if getattr(getattr(module, "weight", None), "ndim", 0) > 1]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        with first_look(model, type(bare).__name__):
            model(example.to(next(bare.parameters()).device) if isinstance(example, Tensor) and layers else example)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise LeanError(f"{type(bare).__name__} has no layer that could be its classifier; use a model that has one.")
    return called[-1]


def find_linear_head(model: nn.Module, example: Any) -> nn.Linear:
    """The classifier, refused where it is not linear in one row of features per input."""
    head = find_head(model, example)
    if not isinstance(head, nn.Linear):
        raise LeanError(
            f"the last layer of {type(unwrapped(model)).__name__} is a {type(head).__name__}, and its gradients are "
            "known in closed form for a linear one only; choose another model, or another method."
        )
    return head


@contextlib.contextmanager
def features_of(head: nn.Linear) -> Iterator[list[Tensor]]:
    """What the head is given inside, call by call."""
    given = list[Tensor]()
    handle = head.register_forward_pre_hook(lambda layer, args: given.append(args[0].detach()))
    try:
        yield given
    finally:
        handle.remove()


class FittedHead(NamedTuple):
    """What a head that was fitted promises.

    Attributes:
        examples: how many it was fitted to, at the cost of a forward pass each.
        accuracy: of each by a head fitted to all the others, so what features and a new head are worth by themselves.
    """

    examples: int
    accuracy: float


def fit_head(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> FittedHead:
    """Let a new classifier on a model with published weights start from least squares, for one forward pass.

    A head that starts at random sends large gradients through all layers until it has learnt, which undo some of what
    the weights knew (Kumar et al., *Fine-tuning can distort pretrained features*, ICLR 2022). What remains is fitted
    without a choice: how much the solution is damped, and how steep its answers are, by leaving each example out in
    turn, which least squares can say in closed form. The model is in evaluation mode and keeps all but its head.

    Args:
        model: whose last layer is linear, in one row of features per input.
        batches: inputs as the model sees them, with class indices; a few thousand examples suffice.
    """
    head, features, targets = None, list[Tensor](), list[Tensor]()
    for inputs, labels in batches:
        head = head or find_linear_head(model, inputs[:2])
        with torch.no_grad(), eval_mode(model), features_of(head) as given:
            model(inputs.to(head.weight.device))
        features.append(given[-1].double())
        targets.append(labels.to(head.weight.device))
    if head is None:
        raise LeanError("there are no examples to fit a classifier to; give at least one batch.")
    labels, rows = torch.cat(targets), torch.cat(features)
    if not bool(rows.isfinite().all()):
        raise LeanError(
            f"features of {type(unwrapped(model)).__name__} are not finite; check the weights it starts from."
        )
    found = least_squares(rows, F.one_hot(labels, head.out_features).double())
    logits = found.left_out
    steepness = min(STEEPNESS, key=lambda times: float(F.cross_entropy(times * logits, labels)))
    with torch.no_grad():
        head.weight.copy_(steepness * found.weight.T)
        if head.bias is not None:
            head.bias.copy_(steepness * found.bias)
    return FittedHead(len(labels), float((logits.argmax(1) == labels).double().mean()))


class Fit(NamedTuple):
    """Least squares' answer.

    Attributes:
        weight: (features, outputs).
        bias: one per output.
        left_out: for every row, what a fit to all other rows would answer.
    """

    weight: Tensor
    bias: Tensor
    left_out: Tensor


def least_squares(rows: Tensor, wanted: Tensor) -> Fit:
    """Ridge regression, damped so that rows which are left out are answered best; all of it from one decomposition."""
    middle, level = rows.mean(0), wanted.mean(0)
    rows, wanted = rows - middle, wanted - level
    values, vectors = torch.linalg.eigh(rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T)
    values = values.clamp(min=1e-12)  # also where all rows are the same
    if rows.shape[0] > rows.shape[1]:
        turned = rows @ vectors  # the rows along the features' own axes
    else:
        turned = vectors * values.sqrt()
    along = turned.T @ wanted

    def left_out(ridge: float) -> Tensor:
        damped = 1.0 / (values + ridge * values[-1])
        own = turned.square() @ damped + 1.0 / len(rows)  # what each row has to say in its own answer
        others = (1.0 - own).clamp(min=1e-6).unsqueeze(1)
        missed: Tensor = (wanted - turned @ (damped.unsqueeze(1) * along)) / others
        return wanted - missed

    ridge = min(RIDGES, key=lambda ridge: float((wanted - left_out(ridge)).square().mean()))
    damped = (1.0 / (values + ridge * values[-1])).unsqueeze(1) * along
    if rows.shape[0] > rows.shape[1]:
        weight = vectors @ damped
    else:
        weight = rows.T @ (vectors @ (damped / values.sqrt().unsqueeze(1)))
    return Fit(weight, level - middle @ weight, left_out(ridge) + level)

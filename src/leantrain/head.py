"""The head of a model: the layer that gives its answer, and what that layer is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.eval_mode import first_look
from leantrain.split import unwrapped


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

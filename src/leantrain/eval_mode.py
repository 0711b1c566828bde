"""Looking at a model without touching it: for every pass that scores examples and trains nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from leantrain.errors import LeanError


@contextlib.contextmanager
def trial(model: nn.Module) -> Iterator[None]:
    """For trying whether a model takes something: no gradients, evaluation mode, and nothing compiled for it."""
    with torch.no_grad(), eval_mode(model), torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def first_look(model: nn.Module, name: str) -> Iterator[None]:
    """A trial with the model's own images, which fails where only the loop makes them what the model takes.

    Args:
        name: of the model as its user knows it, without wrappers.
    """
    try:
        with trial(model):
            yield
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise LeanError(
            f"{name} cannot be shown its own images ({str(error).splitlines()[0]}); where the loop converts them, show "
            "attach a converted batch as example=…"
        ) from None


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode inside, and each back in its own mode after.

    So BatchNorm keeps its statistics and nothing is dropped out. A model that draws random numbers in evaluation mode
    too draws them from generators that are put back.
    """
    training = [module for module in model.modules() if module.training]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

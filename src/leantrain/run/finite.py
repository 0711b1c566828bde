"""Runs gone wrong: losses, weights and statistics that are infinite or not a number."""

from __future__ import annotations

import math

import torch
from torch import nn

from leantrain.errors import LeanError


class NotFinite(LeanError):
    """The loss became infinite or not a number."""


def not_finite_in(module: nn.Module) -> set[str]:
    """The parameters and buffers that hold an infinity or NaN; one synchronisation with the device."""
    held = {
        name: tensor.detach()
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if tensor.is_floating_point() and tensor.numel()
    }
    if not held:
        return set()
    largest = torch._foreach_norm(list(held.values()), ord=math.inf)
    finite = torch.stack([value.float() for value in largest]).isfinite().tolist()
    return {name for name, good in zip(held, finite, strict=True) if not good}

"""Wrappers: the model inside what compiles it, spreads it over processes or casts for it."""

from __future__ import annotations

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, out of whatever wraps it."""
    inside = inner(model)
    return model if inside is None else unwrapped(inside)


def inner(model: nn.Module) -> nn.Module | None:
    """What a wrapper wraps; its classes are told by name, so that nothing is imported for their sake."""
    attribute = {
        "OptimizedModule": "_orig_mod",
        "DistributedDataParallel": "module",
        "FullyShardedDataParallel": "module",
        "_FabricModule": "_forward_module",
        "InPrecision": "module",
    }.get(type(model).__name__)
    return getattr(model, attribute, None) if attribute else None

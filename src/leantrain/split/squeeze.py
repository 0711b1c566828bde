"""Squeeze-and-excite by region, and what else in a model sees the whole map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leantrain.split.layout import Layout, regional_means, shares
from leantrain.split.regions import Regions
from leantrain.split.trial import Trial

_SEES_ALL = {  # what mixes the whole map, by words in class names
    "squeeze-and-excite": ("squeezeexc", "semodule", "eca", "gatherexcite", "globalcontext", "cbam", "globalresponse"),
    "attention": ("attention",),
}


@dataclass
class Squeeze:
    """A layer that gives `x * gate(mean of x)`: it squeezes each region by itself, and gates each cell by its owner's.

    Its mean need not be a module, so the layer is taken at the first inner module that is given the mean and at the
    last one, which gives the gate.
    """

    module: nn.Module
    first: nn.Module
    last: nn.Module

    @classmethod
    def find_all(cls, trial: Trial) -> list[Squeeze]:
        """Those squeeze-and-excites, by name, that compute just that in one forward."""
        found = [_Excitement(module) for module in trial.model.modules() if sees_all(module) == "squeeze-and-excite"]
        handles = [handle for one in found for handle in one.watch()]
        try:
            trial.run(trial.images)
        finally:
            for handle in handles:
                handle.remove()
        return [cls(one.module, one.first, one.last) for one in found if one.first is not None and one.last is not None]

    def install(self, regions: Regions) -> list[RemovableHandle]:
        hooks = _SqueezeHooks(regions)
        return [
            self.module.register_forward_pre_hook(hooks.enter),
            self.first.register_forward_pre_hook(hooks.squeeze),
            self.last.register_forward_hook(hooks.excite),
        ]


class _Excitement:
    """Watches one squeeze-and-excite: what inside was given the mean of its map, and what gave the gate."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.first: nn.Module | None = None
        self.last: nn.Module | None = None
        self._mean: Tensor | None = None
        self._gate: Tensor | None = None

    def watch(self) -> list[RemovableHandle]:
        return [
            self.module.register_forward_pre_hook(self._enter),
            *(child.register_forward_hook(self._inside) for child in self.module.children()),
            self.module.register_forward_hook(self._leave),
        ]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0]
        self._mean = x.mean((2, 3), keepdim=True) if isinstance(x, Tensor) and x.ndim == 4 else None

    def _inside(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._mean is None or not isinstance(output, Tensor):
            return
        if self.first is None and inputs[0].shape == self._mean.shape and torch.allclose(inputs[0], self._mean):
            self.first = module
        if self.first is not None and output.shape == self._mean.shape:
            self.last, self._gate = module, output

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._gate is None or not torch.allclose(output, inputs[0] * self._gate, rtol=1e-4):
            self.first = None  # more than a gate: it is left alone


class _SqueezeHooks:
    """The mean becomes one row per region, and the gates of the rows become one map."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.map: Tensor | None = None

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.map = inputs[0] if self.regions.owner is not None else None

    def squeeze(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        owner = self.regions.owner
        if self.map is None or owner is None:
            return None
        means = regional_means(self.map, Layout("NCHW"), owner, self.regions.constituents)
        return means[:, :, None, None], *inputs[1:]

    def excite(self, module: nn.Module, inputs: tuple[Any, ...], gate: Tensor) -> Tensor | None:
        x, owner, k = self.map, self.regions.owner, self.regions.constituents
        if x is None or owner is None:
            return None
        self.map = None
        share = shares(owner, k, (x.shape[2], x.shape[3]), gate.dtype).flatten(2)
        each = gate.flatten(1).view(k, len(x), -1).permute(1, 2, 0)  # (B, C, k)
        return torch.bmm(each, share).view_as(x)


def leaks(model: nn.Module, regional: set[nn.Module]) -> str:
    """What of `_SEES_ALL` is in a model, besides the modules that act by region and what is inside these."""
    inside = {part for module in regional for part in module.modules()}
    return next(filter(None, (sees_all(module) for module in model.modules() if module not in inside)), "")


def sees_all(module: nn.Module) -> str:
    name = type(module).__name__.lower()
    return next((what for what, words in _SEES_ALL.items() if any(word in name for word in words)), "")

"""Pools: the global average pool of a network, module or function, which pools each region by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from leantrain.split.layout import Layout, is_mean, layouts
from leantrain.split.regions import Regions, timed_means
from leantrain.split.trial import Trial


@dataclass
class Pool:
    """A global average pool, or the last feature map before one that is no module."""

    layer: str
    module: nn.Module
    layout: Layout
    map_size: tuple[int, int]
    way: str  # "pool": replace its output; "cell", "constant": replace the map by maps of one cell, by constant maps
    call: int = 0
    calls: int = 1  # a module may run several times; only one of them is the last
    kind = "pool"

    def install(self, regions: Regions) -> list[RemovableHandle]:
        call = self.call if self.calls > 1 else None
        return [self.module.register_forward_hook(_PoolHook(regions, self.layout, self.way, call))]

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> None:
        regions.owner, regions.constituents = owner, constituents

    def acting(self, regions: Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class _PoolHook:
    """A forward hook; a class of its own, so that a model that carries it can be copied and pickled."""

    def __init__(self, regions: Regions, layout: Layout, way: str, call: int | None) -> None:
        self.regions, self.layout, self.way, self.call = regions, layout, way, call

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        regions = self.regions
        if regions.owner is None:
            return None
        if self.call is not None:
            regions.calls += 1
            if regions.calls != self.call + 1:
                return None
        regions.acted = True
        source = inputs[0] if self.way == "pool" else output
        means = timed_means(source, self.layout, regions)
        if self.way == "pool":
            return means.reshape(-1, *output.shape[1:]).to(output.dtype)
        return self.layout.like(means, output, constant=self.way == "constant")


_POOLS = (F.adaptive_avg_pool2d, F.avg_pool2d, torch.mean, torch.Tensor.mean)


class _PoolCalls(TorchFunctionMode):
    """Shows every call of a pooling function inside to `found`, which may give another result for it."""

    def __init__(self, found: Callable[[int, str, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.found = found
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _POOLS:
            return output
        source = args[0] if args else (kwargs or {})["input"]
        self.calls += 1
        return self.found(self.calls, func.__name__, source, output)


@dataclass
class CalledPool:
    """A global average pool that is a function in a model's forward, such as `F.avg_pool2d(F.relu(x), 4)`."""

    layer: str
    layout: Layout
    map_size: tuple[int, int]
    call: int  # which of the forward's calls of pooling functions it is
    kind = "pool"

    def install(self, regions: Regions) -> list[RemovableHandle]:
        return []

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> None:
        regions.owner, regions.constituents = owner, constituents

    def acting(self, regions: Regions) -> contextlib.AbstractContextManager[Any]:
        def pool(call: int, name: str, source: Tensor, output: Tensor) -> Tensor:
            if call != self.call:
                return output
            regions.acted = True
            means = timed_means(source, self.layout, regions)
            return means.reshape(-1, *output.shape[1:]).to(output.dtype)

        return _PoolCalls(pool)


def called_pools(trial: Trial) -> Iterator[CalledPool]:
    """The functions that pool a whole map in one forward, the last one first.

    None where a forward in train mode calls other ones, as they are told by their number.
    """
    points: dict[bool, list[CalledPool]] = {False: [], True: []}
    rows, _, height, width = trial.images.shape

    def found(call: int, name: str, source: Tensor, output: Tensor) -> Tensor:
        if len(source) == rows:
            for layout, size in layouts(source, height, width, {0}):
                if is_mean(layout, source, output):
                    points[trial.model.training].append(CalledPool(f"{name}()", layout, size, call))
        return output

    for training in (True, False):
        trial.model.train(training)
        with _PoolCalls(found):
            trial.run(trial.images)
    if points[False] == points[True]:
        yield from reversed(points[False])

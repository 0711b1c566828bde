"""Regions: what is in force while a forward is of composites, and where in a model it acts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from leantrain.clock import Stopwatch
from leantrain.errors import LeanError
from leantrain.split.layout import Layout, regional_means


class Regions:
    """What is in force during a forward; all hooks of a split share one."""

    def __init__(self) -> None:
        self.clock: Stopwatch | None = None
        self.clear()

    def clear(self) -> None:
        self.owner: Tensor | None = None
        self.constituents = 0
        self.mask: Tensor | None = None
        self.calls = 0
        self.acted = False


class Point(Protocol):
    """Somewhere in a model where constituents can be told apart."""

    @property
    def layer(self) -> str: ...

    @property
    def map_size(self) -> tuple[int, int]: ...

    @property
    def kind(self) -> str: ...

    def install(self, regions: Regions) -> list[RemovableHandle]: ...

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> None: ...

    def acting(self, regions: Regions) -> contextlib.AbstractContextManager[Any]: ...


@contextlib.contextmanager
def divided(point: Point, regions: Regions, owner: Tensor, constituents: int) -> Iterator[None]:
    """The forward inside is of composites, split at that point."""
    if owner.ndim != 3 or constituents < 1:
        raise LeanError(
            f"owner has shape {tuple(owner.shape)} and there are {constituents} constituents; "
            "give one owner per pixel (B, H, W) and at least 1 constituent"
        )
    point.prepare(regions, owner, constituents)
    try:
        with point.acting(regions):
            yield
        if not regions.acted:
            raise LeanError(
                f"split propagation was not reached: no forward inside regions() ran '{point.layer}' with "
                "its hook; a model that was compiled and run before needs torch.compiler.reset() first"
            )
    finally:
        regions.clear()


def timed_means(source: Tensor, layout: Layout, regions: Regions) -> Tensor:
    assert regions.owner is not None
    if regions.clock is None or torch.compiler.is_compiling():
        return regional_means(source, layout, regions.owner, regions.constituents)
    with regions.clock.measure("split", source.device):
        return regional_means(source, layout, regions.owner, regions.constituents)

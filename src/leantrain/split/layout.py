"""Layouts: where a tensor keeps its grid of cells, and the means of its regions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leantrain.errors import LeanError


@dataclass(frozen=True)
class Layout:
    """Where a tensor keeps its spatial grid: NCHW, NHWC, or NLC after some prefix tokens."""

    name: str
    prefix: int = 0

    def grid(self, x: Tensor, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the grid; a sequence of tokens has the image's aspect."""
        if self.name == "NCHW":
            return x.shape[2], x.shape[3]
        if self.name == "NHWC":
            return x.shape[1], x.shape[2]
        tokens = x.shape[1] - self.prefix
        rows = max(1, round((tokens * height / width) ** 0.5))
        return rows, tokens // rows

    def cells(self, x: Tensor) -> Tensor:
        """As (B, cells, C), without a copy."""
        if self.name == "NCHW":
            x = x.permute(0, 2, 3, 1)
        return x.flatten(1, 2) if x.ndim == 4 else x[:, self.prefix :]

    def like(self, means: Tensor, x: Tensor, constant: bool) -> Tensor:
        """Regional means (k·B, C) as maps of one cell, or as constant maps of x's size."""
        if self.name == "NLC":
            cells = x.shape[1] - self.prefix if constant else 1
            prefix = x[:, : self.prefix].repeat(len(means) // len(x), 1, 1)
            return torch.cat([prefix, means[:, None].expand(-1, cells, -1)], dim=1)
        if self.name == "NHWC":
            return means[:, None, None].expand(-1, *(x.shape[1:3] if constant else (1, 1)), -1)
        return means[:, :, None, None].expand(-1, -1, *(x.shape[2:] if constant else (1, 1)))


def regional_means(x: Tensor, layout: Layout, owner: Tensor, constituents: int) -> Tensor:
    """The mean of a map over each constituent's region, (k·B, C), constituent-major, accumulated in fp32 at least.

    A cell on a border counts for both sides, in proportion. A region that vanished gives zeros.
    """
    if len(owner) != len(x):
        raise LeanError(f"owner is for {len(owner)} composites, but the model got {len(x)}; give one map per composite")
    with torch.autocast(x.device.type, enabled=False):
        precise = torch.promote_types(x.dtype, torch.float32)
        share = shares(owner, constituents, layout.grid(x, *owner.shape[1:]), precise).flatten(2)
        weight = share / share.sum(2, keepdim=True).clamp_min(1e-12)
        means = torch.bmm(weight, layout.cells(x).to(precise))
    return means.transpose(0, 1).flatten(0, 1).to(x.dtype)


def shares(owner: Tensor, constituents: int, grid: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Which share of each cell belongs to each constituent: (B, k, h, w).

    By `interpolate`, as the model's calls of pooling functions are counted (`_PoolCalls`) and this is none of them.
    """
    each = torch.arange(constituents, device=owner.device, dtype=owner.dtype).view(1, -1, 1, 1)
    return F.interpolate((owner[:, None] == each).to(dtype), grid, mode="area")


def layouts(x: Tensor, height: int, width: int, prefixes: set[int]) -> Iterator[tuple[Layout, tuple[int, int]]]:
    """Every way to read a tensor as a grid of more than one cell with the image's aspect."""
    if not x.is_floating_point() or x.ndim not in (3, 4):
        return
    readings = [Layout("NCHW"), Layout("NHWC")] if x.ndim == 4 else [Layout("NLC", p) for p in sorted(prefixes)]
    for layout in readings:
        if x.ndim == 3 and x.shape[1] <= layout.prefix:
            continue
        h, w = layout.grid(x, height, width)
        exact = x.ndim == 4 or h * w == x.shape[1] - layout.prefix
        if exact and 1 < h * w <= height * width and abs(h * width - w * height) <= max(height, width):
            yield layout, (h, w)


def is_mean(layout: Layout, x: Tensor, output: Tensor) -> bool:
    """Whether a module gave the mean over its input's grid, in whatever shape."""
    means = layout.cells(x).float().mean(1)
    if output.numel() != means.numel():
        return False
    slack = 1e-4 + 8 * torch.finfo(output.dtype).eps
    return bool((output.float().reshape(means.shape) - means).abs().max() <= slack * means.abs().max())

"""Cutting a set into parts that no seed changes, so that two runs are always measured on the same examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leantrain import rng


def stratified(targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Positions kept and held out: ⌈share · N⌉ examples, the same share of every class to within one.

    A class never loses its last example, so a set of very small classes holds out fewer.
    """
    sizes = torch.bincount(targets)
    wanted = math.ceil(share * len(targets) - 1e-9)  # 0.07 * 100 is 7.000000000000001
    quota = sizes.double() * share
    held = quota.floor().long()
    # Largest remainders first, so that the total is right and no class is off by more than one.
    order = torch.argsort(quota - held, descending=True, stable=True)
    held[order[: max(0, wanted - int(held.sum()))]] += 1
    held = torch.minimum(held, (sizes - 1).clamp(min=0))
    out = _rank_in_class(targets) < held[targets]
    return (~out).nonzero().squeeze(1), out.nonzero().squeeze(1)


def balanced_order(targets: Tensor) -> Tensor:
    """All positions, one of each class in turn, in a fixed shuffle: every prefix is as class-balanced as can be."""
    rank = _rank_in_class(targets)
    return torch.argsort(rank * (int(targets.max()) + 1) + targets)


def _rank_in_class(targets: Tensor) -> Tensor:
    """Each example's place in a fixed shuffle of its own class.

    From the counter-based generator, not from torch's, whose numbers may change between versions.
    """
    number = len(targets)
    shuffled = torch.argsort(rng.uniform(0, 0, torch.arange(number), 1, purpose="parts").squeeze(1), stable=True)
    by_class = shuffled[torch.argsort(targets[shuffled], stable=True)]
    sizes = torch.bincount(targets)
    start = sizes.cumsum(0) - sizes
    rank = torch.empty(number, dtype=torch.int64)
    rank[by_class] = torch.arange(number) - start[targets[by_class]]
    return rank

"""Every random choice of a run, derived from its seed and from what the choice is for.

Nothing here touches torch's global generators: a user's own random numbers stay as they were, and a choice made in a
worker, after a resume or on another rank is the same choice.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed that depends on every word of `purpose`; the same on every machine."""
    text = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator of its own for one purpose, for example `generator(seed, "plan", epoch)`."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def uniform(seed: int, epoch: int, index: Tensor, draws: int, purpose: str = "augment") -> Tensor:
    """`draws` numbers in [0, 1) for every example index, a function of (seed, epoch, index) and nothing else.

    A counter-based generator (splitmix64): an example gets the same numbers in whatever batch, worker or order it is
    seen. Integer arithmetic on the index's own device, so that CPU and GPU agree to the bit.
    """
    counter = index.long().unsqueeze(1) * draws + torch.arange(draws, device=index.device)
    x = counter * _GAMMA + derive(seed, purpose, epoch)
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    x = x ^ _shift(x, 31)
    return _shift(x, 40).to(torch.float32) * (1.0 / (1 << 24))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

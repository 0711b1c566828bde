"""Pools that fit: a network made for one image size shown a smaller one.

Many networks end in a pool of the whole feature map, written as a number: `avg_pool2d(x, 4)`. A smaller image makes a
smaller map, and the number is then too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

ADAPTIVE: dict[Any, Callable[[Tensor, int], Tensor]] = {
    F.avg_pool2d: F.adaptive_avg_pool2d,
    F.max_pool2d: F.adaptive_max_pool2d,
    torch.max_pool2d: F.adaptive_max_pool2d,
}


class FittingPools(TorchFunctionMode):
    """Inside, a pool larger than its input takes all of it. Any other is as it was; this one would be an error."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        adaptive = ADAPTIVE.get(func)
        if adaptive is not None and _too_large(*args, **kwargs):
            return adaptive(args[0] if args else kwargs["input"], 1)
        return func(*args, **kwargs)


def _too_large(
    input: Tensor, kernel_size: int | tuple[int, int], stride: Any = None, padding: Any = 0, *_: Any, **__: Any
) -> bool:
    kernel, padded = (x if isinstance(x, tuple | list) else (x, x) for x in (kernel_size, padding))
    return any(side + 2 * around < size for side, around, size in zip(input.shape[-2:], padded, kernel, strict=True))

"""Shrinking: the form that shows images at fewer pixels."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.eval_mode import trial
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.pools import FittingPools
from leantrain.wrappers import unwrapped

BY_PRODUCTS = 64
"""Pixels a side up to which a CPU shrinks images by matrix products, in about half of the time for three channels
that lie side by side; larger matrices would be mostly zeros."""


@register_form
class Shrunk(FormKind):
    """Images at fewer pixels; its value is the side as a share of the full one, and an input costs by its pixels."""

    name = "shrunk"

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._example = attached.images("shrunk")
        self._side = min(self._example.shape[-2:])
        self._step = size_step(unwrapped(attached.model))
        self._tried: set[float] = set()
        self._pools = False  # whether the model's pools must be made to fit
        if self._step >= self._side:
            name = type(unwrapped(attached.model)).__name__
            raise LeanError(
                f"{name} takes images of {self._step} pixels only, so none can be shown smaller; choose another "
                "model, or a method that skips examples instead."
            )

    @classmethod
    def size(cls, value: float) -> float:
        return value * value

    def fit(self, value: float) -> float:
        """The nearest scale that the model takes; it is tried once, before the epoch that needs it."""
        if value >= 1.0:
            return 1.0
        side = max(self._step, round(value * self._side / self._step) * self._step)
        fitted = min(1.0, side / self._side)
        if fitted < 1.0 and fitted not in self._tried:
            self._try(fitted)
        return fitted

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        if batch.given.value(self.name) == value:  # by the data set, as it decoded fewer pixels
            small = inputs
        else:
            with self.attached.clock.measure("shrinking", inputs.device):
                small = self._shrink(inputs, value)
        with FittingPools() if self._pools else contextlib.nullcontext():
            return ask(small)

    def _shrink(self, inputs: Tensor, scale: float) -> Tensor:
        """The same pictures at a smaller size, filtered so that fine patterns do not fold into false ones."""
        height, width = self._sides(inputs, scale)
        plain = inputs.dtype == torch.float32 and inputs.is_contiguous(memory_format=torch.channels_last)
        if not (_suits_products(inputs) and plain and inputs.shape[1] > 1):
            return resized(inputs, height, width)
        number, channels, rows, columns = inputs.shape
        lines = inputs.permute(0, 2, 3, 1).reshape(number, rows, columns * channels)
        with torch.autocast("cpu", enabled=False):
            lines = _line_filter(rows, height) @ lines
            lines = lines.view(-1, columns * channels) @ _line_filter(columns, width, channels).T
        return lines.view(number, height, width, channels).permute(0, 3, 1, 2)

    def _sides(self, inputs: Tensor, scale: float) -> tuple[int, int]:
        """Of what is given, which another form may have made smaller already."""
        sides = inputs.shape[-2:]
        height, width = (max(self._step, round(side * scale / self._step) * self._step) for side in sides)
        return height, width

    def _try(self, scale: float) -> None:
        model, small = self.attached.model, self._shrink(self._example, scale)
        with trial(model):
            try:
                with FittingPools() if self._pools else contextlib.nullcontext():
                    model(small)
            except (RuntimeError, ValueError, AssertionError) as error:
                if not self._pools and self._takes_with_pools(small):
                    self._pools = True
                else:
                    height, width = small.shape[-2:]
                    raise LeanError(
                        f"{type(unwrapped(model)).__name__} cannot be shown {height}×{width} pixels "
                        f"({str(error).splitlines()[0]}); choose a larger size."
                    ) from None
        self._tried.add(scale)

    def _takes_with_pools(self, small: Tensor) -> bool:
        try:
            with FittingPools():
                self.attached.model(small)
        except (RuntimeError, ValueError, AssertionError):
            return False
        return True


def _suits_products(inputs: Tensor) -> bool:
    """Whether matrix products are the faster way to shrink: small pictures of few channels, on a CPU."""
    return inputs.device.type == "cpu" and inputs.shape[1] <= 4 and max(inputs.shape[-2:]) <= BY_PRODUCTS


@functools.cache
def _line_filter(size: int, smaller: int, channels: int = 1) -> Tensor:
    """How a line of so many pixels becomes a shorter one: a matrix, for channels that lie side by side."""
    weights = resized(torch.eye(size).view(1, 1, size, size), smaller, size).view(smaller, size)
    return torch.kron(weights, torch.eye(channels))


def resized(inputs: Tensor, height: int, width: int) -> Tensor:
    """The same pictures at another size, filtered so that fine patterns do not fold into false ones."""
    return F.interpolate(inputs, size=(height, width), mode="bilinear", antialias=True)


def size_step(model: nn.Module) -> int:
    """What an input's side must be a multiple of: 1 for CNNs, the patch for transformers.

    A model that takes its one size only (fixed position biases) answers with that size.
    """
    fixed = getattr(model, "lean_fixed_size", None) or getattr(model, "image_size", None)
    if isinstance(fixed, int):
        return fixed
    embed = getattr(model, "patch_embed", None)
    project = getattr(embed, "proj", None)
    if not isinstance(project, nn.Conv2d) or project.kernel_size != project.stride:  # overlapping patches are padded
        return 1
    strict, side = getattr(embed, "strict_img_size", False), getattr(embed, "img_size", None)
    return max(side) if strict and side else max(project.stride)

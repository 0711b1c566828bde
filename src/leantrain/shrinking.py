"""Shrinking: showing a batch at fewer pixels, which is what a form of scale below 1 asks for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.frozen import frozen
from leantrain.models import size_step
from leantrain.plan import Form
from leantrain.split import unwrapped


class Shrinker:
    """Which sizes a model takes, and the way to them.

    Args:
        model: the model to be shown smaller images.
        example: a small batch of inputs as the model sees them, at full size.
    """

    def __init__(self, model: nn.Module, example: Any) -> None:
        if not isinstance(example, Tensor) or example.ndim != 4 or not example.is_floating_point():
            what = f"{tuple(example.shape)} {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
            raise LeanError(
                f"the inputs of a batch are {what}, but only float images (n, channels, height, width) can be shrunk; "
                "convert them in the data set, or show attach a converted batch as example=…"
            )
        self.side = min(example.shape[-2:])
        self._full = (int(example.shape[-2]), int(example.shape[-1]))
        self._step = size_step(unwrapped(model))
        self._model, self._example = model, example
        self._tried: set[float] = set()
        if self._step >= self.side:
            raise LeanError(
                f"{type(unwrapped(model)).__name__} takes images of {self._step} pixels only, so none can be shown "
                "smaller; choose another model, or a method that skips examples instead."
            )

    def fit(self, form: Form) -> Form:
        """The nearest form of a size that the model takes; it is tried once, before the epoch that needs it."""
        if form.scale >= 1.0:
            return form._replace(scale=1.0)
        side = max(self._step, round(form.scale * self.side / self._step) * self._step)
        fitted = form._replace(scale=min(1.0, side / self.side))
        if fitted.scale < 1.0 and fitted.scale not in self._tried:
            self._try(fitted.scale)
        return fitted

    def shrink(self, inputs: Tensor, scale: float) -> Tensor:
        """The same pictures at a smaller size, filtered so that fine patterns do not fold into false ones."""
        return F.interpolate(inputs, size=self._size(scale), mode="bilinear", antialias=True)

    def _size(self, scale: float) -> tuple[int, int]:
        height, width = (max(self._step, round(side * scale / self._step) * self._step) for side in self._full)
        return height, width

    def _try(self, scale: float) -> None:
        try:
            with torch.no_grad(), frozen(self._model):
                model = next(self._model.parameters(), self._example)
                self._model(self.shrink(self._example.to(model.device, model.dtype), scale))
        except (RuntimeError, ValueError, AssertionError) as error:
            height, width = self._size(scale)
            raise LeanError(
                f"{type(unwrapped(self._model)).__name__} cannot be shown {height}×{width} pixels "
                f"({str(error).splitlines()[0]}); choose a larger size."
            ) from None
        self._tried.add(scale)

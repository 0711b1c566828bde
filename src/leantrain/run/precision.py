"""Precision: what the network computes in, and what a step in fp16 needs beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, or bf16 or fp16 by autocast: weights and losses stay in float32.

    In fp16 losses are scaled, so that small gradients do not become zero.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device.type
        self._dtype = DTYPES[name]
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Where the network computes in this precision."""
        return contextlib.nullcontext() if self._dtype is None else torch.autocast(self._device, self._dtype)

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model as the loop asks it."""
        return model if self._dtype is None else InPrecision(model, self)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None, parameters: Iterable[Tensor]) -> None:
        """Make a step with the gradients, which are no longer than `clip`, taken as one vector.

        In fp16 none is made where a gradient is not finite; what losses are scaled by is halved then.
        """
        if clip:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scaler is not None:
            self._scaler.load_state_dict(state)


class InPrecision(nn.Module):
    """A model that computes in this precision, whoever asks it."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module = module
        self._precision = precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision.autocast():
            return self.module(*args, **kwargs)

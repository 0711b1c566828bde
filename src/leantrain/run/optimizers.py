"""The optimiser of a run: torch's own, which are given weights as they lie in memory.

torch's fused kernels for CPUs copy every weight in channels_last, which took 12 of the 16 ms of an optimiser step of a
ResNet-18 (timed by hand, one thread, AVX-512) and so weighed most where images are small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from leantrain.run.config import TrainConfig


def build_optimizer(config: TrainConfig, module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Weight decay on matrices and kernels only; fused where the device has it."""
    assert config.lr is not None
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    kernel: dict[str, Any] = {"fused": True} if device.type in ("cpu", "cuda") else {"foreach": True}
    if config.optimizer == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, **kernel)
    kind = Adam if config.optimizer == "adam" else AdamW
    return kind(groups, lr=config.lr, **kernel)


class SGD(torch.optim.SGD):
    """torch's SGD, to the bit.

    Its momentum starts as zeros, which come to the same: where fp16 overflows in the first step, torch's fused kernel
    would leave memory that nobody has written.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Make a step with the gradients that there are."""
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in held]
            momentum: list[Any] = [self._momentum(p) for p in held] if group["momentum"] else []
            _as_they_lie(held, gradients, momentum)
            sgd(
                held,
                gradients,
                momentum,
                grad_scale=getattr(self, "grad_scale", None),  # given by a GradScaler
                found_inf=getattr(self, "found_inf", None),
                **{name: group[name] for name in _SGD_OPTIONS},
            )

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


_SGD_OPTIONS = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused")


class _AsTheyLie:
    """Adam and AdamW collect what they work on in lists, the weights themselves in the first."""

    def _init_group(self, group: dict[str, Any], parameters: list[Tensor], *others: Any) -> Any:
        found = super()._init_group(group, parameters, *others)  # type: ignore[misc]
        each = [tensors for tensors in others if isinstance(tensors, list) and tensors and tensors[0].ndim]
        _as_they_lie(parameters, *each)
        return found


class Adam(_AsTheyLie, torch.optim.Adam):
    """torch's Adam, to the bit."""


class AdamW(_AsTheyLie, torch.optim.AdamW):
    """torch's AdamW, to the bit."""


def _as_they_lie(weights: list[Tensor], *others: list[Tensor]) -> None:
    """Put the channels last of weights in channels_last, and of what belongs to these, which may be nothing at all."""
    places = [place for place, one in enumerate(weights) if one.ndim == 4 and not one.is_contiguous()]
    for tensors in (weights, *others):
        if tensors:
            for place in places:
                tensors[place] = tensors[place].permute(0, 2, 3, 1)

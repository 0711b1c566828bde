"""GraNd: the norm of each example's own gradient, with the model left exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leantrain.cost import BACKWARD, FORWARD
from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode
from leantrain.options import option
from leantrain.scoring.kinds.base import Score, logits_of, register_score
from leantrain.scoring.kinds.el2n import el2n

GRADIENTS = ("all", "last")
_GRADIENT_VALUES = 2**26
"""Gradient values held at once by default, a quarter of a gigabyte: a whole gradient per example is large."""


@register_score
@dataclass(frozen=True)
class GraNd(Score):
    """The norm of an example's own gradient of the loss, in float32."""

    name: ClassVar[str] = "grand"
    title: ClassVar[str] = "GraNd"
    meaning: ClassVar[str] = "GraNd: norm of the example's own gradient"
    needs_gradients: ClassVar[bool] = True

    gradients: str = option(
        "all", "whose gradients are measured: all parameters', or the last layer's in closed form", choices=GRADIENTS
    )

    @property
    def pass_cost(self) -> float:
        return FORWARD + BACKWARD if self.gradients == "all" else FORWARD

    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        return gradient_norms(model, inputs, targets, self.gradients)


def gradient_norms(
    model: nn.Module, inputs: Tensor, targets: Tensor, layers: str = "all", chunk: int | None = None
) -> Tensor:
    """The norm of each example's own gradient of the cross-entropy, in evaluation mode and float32.

    Args:
        layers: "all": exact, over all parameters that are trained. "last": over the last linear layer only, in closed
            form from one forward pass; an approximation that leaves out what the layers before it would learn.
        chunk: examples whose gradients are held at once; default: as many as fit a quarter of a gigabyte.
    """
    if layers not in GRADIENTS:
        raise LeanError(f"gradients is '{layers}', but must be {' or '.join(GRADIENTS)}.")
    # A compiled model cannot be differentiated by torch.func; the one inside it is the same function.
    plain: nn.Module = getattr(model, "_orig_mod", model)
    with eval_mode(plain), torch.autocast(inputs.device.type, enabled=False):
        return _last_layer(plain, inputs, targets) if layers == "last" else _all_layers(plain, inputs, targets, chunk)


def _all_layers(model: nn.Module, inputs: Tensor, targets: Tensor, chunk: int | None) -> Tensor:
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise LeanError("no parameter of the model requires a gradient, so there is none to measure; unfreeze some.")
    fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    fixed.update(model.named_buffers())
    size = sum(p.numel() for p in trained.values())

    def loss_of(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model, {**fixed, **parameters}, (example.unsqueeze(0),))
        return F.cross_entropy(logits_of(output), target.unsqueeze(0))

    gradient: Callable[..., dict[str, Tensor]] = torch.func.grad(loss_of)

    def squared(example: Tensor, target: Tensor) -> Tensor:
        parts = gradient(trained, example, target).values()
        return torch.stack([part.float().square().sum() for part in parts]).sum()

    chunk = chunk or max(1, min(64, _GRADIENT_VALUES // size))
    try:
        with sdpa_kernel(SDPBackend.MATH):  # torch.func goes through the fused kernels of attention one by one
            norms: Tensor = torch.func.vmap(squared, chunk_size=chunk)(inputs, targets)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise LeanError(
            f"{type(model).__name__} cannot be differentiated for each example by itself "
            f"({str(error).splitlines()[0].rstrip('.')}); use gradients=last."
        ) from None
    return norms.sqrt()


@torch.no_grad()
def _last_layer(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """‖softmax − one-hot‖ · √(‖features‖² + 1): the gradient of a linear layer is an outer product."""
    called: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        called[:] = [(layer, given[0], answer)]  # the last one that is called is the classifier

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        logits = logits_of(model(inputs))
    finally:
        for hook in hooks:
            hook.remove()
    if not called or called[0][1].ndim != 2 or not torch.equal(called[0][2].float(), logits):
        raise LeanError(
            f"the answer of {type(model).__name__} does not come straight out of a linear layer, so gradients=last "
            "cannot be computed; use gradients=all."
        )
    layer, features, _ = called[0]
    inside = features.float().square().sum(1) + (layer.bias is not None)
    return el2n(logits, targets) * inside.sqrt()

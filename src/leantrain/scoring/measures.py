"""What is measured on a model: EL2N, GraNd and loss of every example, with the model left exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leantrain.errors import LeanError
from leantrain.frozen import frozen

PASSES = ("el2n", "grand", "loss")
"""The kinds that one pass over a trained model gives."""
GRADIENTS = ("all", "last")
_GRADIENT_VALUES = 2**26
"""Gradient values held at once by default, a quarter of a gigabyte: a whole gradient per example is large."""

ScoringBatch = tuple[Any, Tensor, Tensor]
"""Inputs, targets and example indices."""


def el2n(logits: Tensor, targets: Tensor) -> Tensor:
    """The length of the error vector, ‖softmax − one-hot‖₂, per example."""
    error = logits.float().softmax(1) - F.one_hot(targets, logits.shape[1])
    length: Tensor = torch.linalg.vector_norm(error, dim=1)
    return length


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy per example, without smoothing."""
    return F.cross_entropy(logits.float(), targets, reduction="none")


def forgetting(correct: Tensor) -> Tensor:
    """How often each example went from right to wrong, over the rows (epochs, N) of whether it was right.

    One that was never right has the number of epochs, which no count of changes reaches.
    """
    forgotten = (correct[:-1] & ~correct[1:]).sum(0)
    return torch.where(correct.any(0), forgotten, len(correct)).float()


def gradient_norms(
    model: nn.Module, inputs: Tensor, targets: Tensor, layers: str = "all", chunk: int | None = None
) -> Tensor:
    """The norm of each example's own gradient of the cross-entropy, in evaluation mode and float32.

    Args:
        layers: "all": exact, over all parameters that are trained. "last": over the last linear layer only, in closed
            form from one forward pass; an approximation that leaves out what the layers before it would learn.
        chunk: examples whose gradients are held at once; default: as many as fit a quarter of a gigabyte.
    """
    check_gradients(layers)
    # A compiled model cannot be differentiated by torch.func; the one inside it is the same function.
    plain: nn.Module = getattr(model, "_orig_mod", model)
    with frozen(plain), torch.autocast(inputs.device.type, enabled=False):
        return _last_layer(plain, inputs, targets) if layers == "last" else _all_layers(plain, inputs, targets, chunk)


def check_gradients(layers: str) -> None:
    """Refuse a choice of layers that there is not."""
    if layers not in GRADIENTS:
        raise LeanError(f"gradients is '{layers}', but must be {' or '.join(GRADIENTS)}.")


def score_pass(
    model: nn.Module, batches: Iterable[ScoringBatch], kind: str, length: int, gradients: str = "all"
) -> Tensor:
    """Go through (inputs, targets, index) batches once and give every example's score: float32 (length,), on the CPU.

    An example that no batch holds is NaN.
    """
    if kind not in PASSES:
        raise LeanError(f"kind is '{kind}', but a pass over a model gives {', '.join(PASSES)}.")
    indices, scores = [], []
    with frozen(model):
        for inputs, targets, index in batches:
            indices.append(index)
            scores.append(_measure(model, inputs, targets, kind, gradients))
    values = torch.full((length,), float("nan"))
    if scores:  # read at the end: asking after every batch would make the host wait for the device
        values[torch.cat(indices).cpu()] = torch.cat(scores).float().cpu()
    return values


def _measure(model: nn.Module, inputs: Any, targets: Tensor, kind: str, gradients: str) -> Tensor:
    if kind == "grand":
        return gradient_norms(model, inputs, targets, gradients).detach()
    with torch.no_grad():
        logits = _logits(model(inputs))
        return el2n(logits, targets) if kind == "el2n" else loss(logits, targets)


def _logits(output: Any) -> Tensor:
    """Hugging Face's models answer with an object."""
    logits: Tensor = getattr(output, "logits", output)
    return logits


def _all_layers(model: nn.Module, inputs: Tensor, targets: Tensor, chunk: int | None) -> Tensor:
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise LeanError("no parameter of the model requires a gradient, so there is none to measure; unfreeze some.")
    fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    fixed.update(model.named_buffers())
    size = sum(p.numel() for p in trained.values())

    def loss_of(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model, {**fixed, **parameters}, (example.unsqueeze(0),))
        return F.cross_entropy(_logits(output).float(), target.unsqueeze(0))

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
            f"the gradients of each example by itself cannot be had of {type(model).__name__} "
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
        logits = _logits(model(inputs))
    finally:
        for hook in hooks:
            hook.remove()
    if not called or called[0][1].ndim != 2 or not torch.equal(called[0][2], logits):
        raise LeanError(
            f"the answer of {type(model).__name__} does not come straight out of a linear layer, so gradients=last "
            "cannot be computed; use gradients=all."
        )
    layer, features, _ = called[0]
    inside = features.float().square().sum(1) + (layer.bias is not None)
    return el2n(logits, targets) * inside.sqrt()

"""Depth: the form in which a batch goes through some of a model's residual blocks only, the others being skipped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.eval_mode import trial
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.rng import generator
from leantrain.wrappers import unwrapped

RAREST = 0.05
"""How seldom the last block may be trained on; below, it would learn nothing."""


class Residual(NamedTuple):
    """A residual block.

    Attributes:
        block: the module.
        ends: the last module of each of its branches, whose output is added to the shortcut.
        bypass: what the block gives when its branches are left out.
    """

    block: nn.Module
    ends: tuple[nn.Module, ...]
    bypass: Callable[..., Any]


@register_form
class Depth(FormKind):
    """Blocks skipped for the whole batch, late ones more often; its value is the share of the work done on average.

    Block l of L survives with probability 1 − (l/L)(1 − p), p being what makes the value come true for this model. The
    branches of a surviving block count 1/probability times, so that nothing changes on average, and the model is used
    whole without further ado. A skipped block is not computed, forwards or backwards, and its gradients stay None.
    """

    name = "depth"
    order = 30
    leaves_out = True

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._model = unwrapped(attached.model)
        name = type(self._model).__name__
        if any(type(module).__name__ == "OptimizedModule" for module in attached.model.modules()):
            raise LeanError(f"{name} is compiled with all of its blocks, so none can be skipped; leave out compiling.")
        if getattr(self._model, "grad_checkpointing", False):
            raise LeanError(
                f"{name} computes its blocks twice (gradient checkpointing), which may differ; turn that off."
            )
        self._blocks = residual_blocks(self._model)
        if not self._blocks:
            raise LeanError(
                f"{name} has no residual blocks that are known, so none can be skipped; choose a ResNet or a vision "
                "transformer of timm's, or resnet8."
            )
        example = attached.images("sent past blocks")
        with trial(attached.model):
            work = _shares_of_work(self._model, self._blocks, example)
            with self._skipping([True] * len(self._blocks), [1.0] * len(self._blocks)):
                attached.model(example)  # a bypass that does not fit is noticed now
        places = [number / len(self._blocks) for number in range(1, len(self._blocks) + 1)]
        self._saving = math.fsum(place * share for place, share in zip(places, work, strict=True))

    @classmethod
    def size(cls, value: float) -> float:
        return value

    def fit(self, value: float) -> float:
        most = (1.0 - RAREST) * self._saving
        if 1.0 - value > most + 1e-9:
            raise LeanError(
                f"{1.0 - value:.2f} of the work is to be skipped, but in {type(self._model).__name__}, of "
                f"{len(self._blocks)} residual blocks, at most {math.floor(100 * most) / 100:.2f} can be; skip less."
            )
        return value

    def survivals(self, value: float) -> list[float]:
        """The probability of each block to be computed."""
        skipped = (1.0 - value) / self._saving
        return [1.0 - number / len(self._blocks) * skipped for number in range(1, len(self._blocks) + 1)]

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        if not self._model.training:  # who only looks sees the model as it is used
            return ask(inputs)
        # On the host, which decides what is computed; the same for all parts of a batch.
        draws = torch.rand(
            len(self._blocks), generator=generator(self.attached.seed, "depth", batch.epoch, batch.position)
        )
        survivals = self.survivals(value)
        skipped = [draw >= survival for draw, survival in zip(draws.tolist(), survivals, strict=True)]
        with self._skipping(skipped, survivals):
            return ask(inputs)

    @contextlib.contextmanager
    def _skipping(self, skipped: Sequence[bool], survivals: Sequence[float]) -> Iterator[None]:
        with contextlib.ExitStack() as undo:
            for residual, gone, survival in zip(self._blocks, skipped, survivals, strict=True):
                if gone:
                    residual.block.forward = residual.bypass  # type: ignore[method-assign]
                    undo.callback(delattr, residual.block, "forward")  # its class has the real one
                else:
                    for end in residual.ends:
                        undo.callback(end.register_forward_hook(_times(1.0 / survival)).remove)
            yield


def _times(factor: float) -> Callable[[nn.Module, Any, Any], Any]:
    return lambda module, given, output: output * factor


def residual_blocks(model: nn.Module) -> list[Residual]:
    """The residual blocks of a ResNet (ours, timm's, torchvision's) or of a transformer of timm's, first ones first."""
    found = list[Residual]()
    for block in model.modules():
        names = dict(block.named_children())
        if {"conv1", "bn2"} <= names.keys() and hasattr(block, "downsample"):
            last = "bn3" if "bn3" in names else "bn2"
            end = names.get("se", names[last])
            act = next((names[name] for name in ("act3", "act2", "act", "relu") if name in names), nn.Identity())
            found.append(Residual(block, (end,), _shortcut(names.get("downsample"), act)))
        elif {"drop_path1", "drop_path2"} <= names.keys():
            found.append(Residual(block, (names["drop_path1"], names["drop_path2"]), _identity))
    return found


def _identity(x: Tensor, *others: Any, **options: Any) -> Tensor:
    return x


def _shortcut(downsample: nn.Module | None, act: nn.Module) -> Callable[..., Any]:
    """What goes past a ResNet's block: the input, which an activation gave, or what makes it fit."""
    if downsample is None or isinstance(downsample, nn.Identity):
        return _identity
    return lambda x: act(downsample(x))


def _shares_of_work(model: nn.Module, blocks: Sequence[Residual], example: Tensor) -> list[float]:
    """Of all multiplications of convolutions and linear layers, the share that each block's branches make."""
    work: dict[nn.Module, float] = {}

    def note(layer: nn.Module, given: Any, output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        each = math.prod(layer.weight.shape[1:])
        work[layer] = work.get(layer, 0.0) + output.numel() * each

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        model(example)
    finally:
        for handle in handles:
            handle.remove()
    total = math.fsum(work.values())
    shares = list[float]()
    for block, _, _ in blocks:
        beside = getattr(block, "downsample", None)
        kept = set(beside.modules()) if isinstance(beside, nn.Module) else set()
        shares.append(math.fsum(work.get(module, 0.0) for module in block.modules() if module not in kept) / total)
    return shares

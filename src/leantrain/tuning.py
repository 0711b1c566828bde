"""Fine-tuning: the forms in which only some layers of a model learn, and BatchNorm as it was published."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.cost import BACKWARD, FORWARD
from leantrain.errors import LeanError
from leantrain.eval_mode import first_look
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.head import find_head
from leantrain.wrappers import unwrapped

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
TUNED = FORWARD + BACKWARD / 2
"""What an example costs: half of a backward pass makes the gradients of weights, of which hardly any are left."""


def keep_statistics(model: nn.Module) -> None:
    """Let BatchNorm normalise by the statistics that it has and leave them as they are; after every `model.train()`.

    Fine-tuning did better with those of the published weights (docs/training.md).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def has_learnt(model: nn.Module) -> bool:
    """Whether a model comes with weights, by its norms; one that has none to tell by counts as new."""
    return any(_norm_has_learnt(module) for module in model.modules() if isinstance(module, NORMS))


def _norm_has_learnt(norm: nn.Module) -> bool:
    """New ones have the same number in all their weights (RepVGG's are random) and have seen nothing."""
    weight, mean = norm.weight, getattr(norm, "running_mean", None)
    differ = isinstance(weight, Tensor) and bool((weight != weight.flatten()[0]).any())
    return differ and (not isinstance(mean, Tensor) or bool(mean.any()))


class Fixing(FormKind):
    """Some parameters do not learn from the batch.

    They are left out of the graph, so their gradients stay None and an optimiser passes them over, momentum and weight
    decay included.
    """

    order = 30
    leaves_out = True

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._model = unwrapped(attached.model)

    @abstractmethod
    def fixed(self, value: float) -> Iterable[nn.Parameter]:
        """What does not learn. Asked every time: a method that removes channels puts other parameters in place."""

    @classmethod
    def combined(cls, first: float, second: float) -> float:
        return min(first, second)

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        with self._without(self.fixed(value)):
            return ask(inputs)

    @staticmethod
    @contextlib.contextmanager
    def _without(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        fixed = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in fixed:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in fixed:
                parameter.requires_grad_(True)


@register_form
class Tuned(Fixing):
    """Only classifier and normalisation learn from the batch; its value is what an input costs, `TUNED`."""

    name = "tuned"

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        norms = (module for module in self._model.modules() if isinstance(module, NORMS))
        self._tuned = [find_head(attached.model, attached.example), *norms]

    @classmethod
    def size(cls, value: float) -> float:
        return value

    def fixed(self, value: float) -> Iterable[nn.Parameter]:
        learning = {id(parameter) for layer in self._tuned for parameter in layer.parameters()}
        return (parameter for parameter in self._model.parameters() if id(parameter) not in learning)


@register_form
class Learning(Fixing):
    """Only the later layers learn from the batch; its value is their share of the model's arithmetic.

    A backward pass ends where they begin. BatchNorm of the others goes on taking its statistics.
    """

    name = "learning"

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._layers = layers_in_order(attached.model, attached.example)

    @classmethod
    def size(cls, value: float) -> float:
        return FORWARD + BACKWARD * value

    def fit(self, value: float) -> float:
        """The nearest share above it at which a layer ends, so that cost is what is saved; 1 where none does."""
        return 1.0 - max((layer.end for layer in self._layers if self._is_fixed(layer, value)), default=0.0)

    def fixed(self, value: float) -> Iterable[nn.Parameter]:
        layers = (layer.module for layer in self._layers if self._is_fixed(layer, value))
        return (parameter for module in layers for parameter in module.parameters(recurse=False))

    @staticmethod
    def _is_fixed(layer: Layer, value: float) -> bool:
        return layer.end <= 1.0 - value + 1e-9


class Layer(NamedTuple):
    """A module with parameters of its own.

    Attributes:
        end: the share of the model's arithmetic that is done when it has answered.
    """

    module: nn.Module
    end: float


def layers_in_order(model: nn.Module, example: Any) -> list[Layer]:
    """The modules that hold parameters, by when they are first called; one that never is counts with what holds it.

    Arithmetic is that of convolutions, linear layers and the projections of attention.
    """
    bare = unwrapped(model)
    called, work = dict[nn.Module, int](), dict[nn.Module, int]()

    def note(module: nn.Module, given: Any) -> None:
        called.setdefault(module, len(called))

    def count(module: nn.Module, given: Any, answer: Any) -> None:
        work[module] = work.get(module, 0) + _arithmetic(module, answer)

    modules = dict(bare.named_modules())
    handles = [module.register_forward_pre_hook(note) for module in modules.values()]
    handles += [module.register_forward_hook(count) for module in modules.values()]
    try:
        with first_look(model, type(bare).__name__):
            like = next(bare.parameters(), None)
            model(example.to(like.device) if isinstance(example, Tensor) and like is not None else example)
    finally:
        for handle in handles:
            handle.remove()
    total, done = sum(work.values()), 0
    if not total:
        raise LeanError(f"{type(bare).__name__} has no layer with a matrix, so none of its layers can be fixed.")
    ends = {}
    for module in called:
        done += work.get(module, 0)
        ends[module] = done / total
    found = []
    for name, module in modules.items():
        while modules[name] not in called:
            name = name.rpartition(".")[0]
        if next(module.parameters(recurse=False), None) is not None:
            found.append((called[modules[name]], Layer(module, ends[modules[name]])))
    return [layer for _, layer in sorted(found, key=lambda pair: pair[0])]


def _arithmetic(module: nn.Module, answer: Any) -> int:
    """Multiplications that a layer has made for this answer."""
    if isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
        return int(answer.numel() * module.weight[0].numel())
    if isinstance(module, nn.MultiheadAttention):
        return int(4 * answer[0].numel() * module.embed_dim)
    return 0

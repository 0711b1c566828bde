"""Fine-tuning: the form in which only the classifier and the normalisation layers of a model learn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from leantrain.batch import Batch
from leantrain.cost import BACKWARD, FORWARD
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.head import find_head
from leantrain.split import unwrapped

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
TUNED = FORWARD + BACKWARD / 2
"""What an example costs: half of a backward pass makes the gradients of weights, of which hardly any are left."""


@register_form
class Tuned(FormKind):
    """Only classifier and normalisation learn from the batch; its value is what an input costs, `TUNED`.

    The other parameters are left out of the graph, so their gradients stay None and an optimiser passes them over,
    momentum and weight decay included.
    """

    name = "tuned"
    order = 30
    leaves_out = True

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._model = unwrapped(attached.model)
        norms = (module for module in self._model.modules() if isinstance(module, NORMS))
        self._tuned = [find_head(attached.model, attached.example), *norms]

    @classmethod
    def size(cls, value: float) -> float:
        return value

    @classmethod
    def combined(cls, first: float, second: float) -> float:
        return min(first, second)

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        with self._frozen():
            return ask(inputs)

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        # Asked for every time: a method that removes channels puts other parameters in their place.
        learning = {id(parameter) for layer in self._tuned for parameter in layer.parameters()}
        fixed = [p for p in self._model.parameters() if p.requires_grad and id(p) not in learning]
        for parameter in fixed:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in fixed:
                parameter.requires_grad_(True)

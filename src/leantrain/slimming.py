"""Slimming: the form in which examples go through a model that has lost some of its channels."""

from __future__ import annotations

from typing import Any

from leantrain.batch import Batch
from leantrain.channels import Channels
from leantrain.errors import LeanError
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.wrappers import unwrapped

LEAST = 0.01
"""What an example counts at least, however few channels are left."""


@register_form
class Slim(FormKind):
    """The model as it is, with the channels that it has left; its value is what an example costs in it.

    It shows nothing differently: the model itself has changed, and the cost of every batch must say so.
    """

    name = "slim"
    order = 40

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        model = unwrapped(attached.model)
        name = type(model).__name__
        if any(type(module).__name__ == "OptimizedModule" for module in attached.model.modules()):
            raise LeanError(f"{name} is compiled for all of its channels, so none can go; leave out compiling.")
        self.channels = Channels(model, attached.images("sent through fewer channels"))

    @classmethod
    def size(cls, value: float) -> float:
        return value

    def fit(self, value: float) -> float:
        return max(LEAST, value)

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        return ask(inputs)

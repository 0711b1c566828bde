"""Forms: how examples are shown to the model. Each kind of form is one class that knows all there is to know of it.

A kind says what its inputs cost, which of its values a model takes, and how a batch is shown in it. It registers
itself, and drafts, plans, costs and checkpoints handle it from then on. `shrinking.py`, `tokens.py` and
`mixing.py` hold the built-in ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor, nn

from leantrain.clock import Stopwatch
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.registry import Registry

if TYPE_CHECKING:
    from leantrain.batch import Batch
    from leantrain.mixing import Mixer


class Answer(NamedTuple):
    """What the model answers to a batch.

    Attributes:
        logits: (examples, classes).
        shares: each example's share in its input's loss; None where every input shows one example.
        partners: where an input has a second label, the row of the example it is of; the rest of the share is its.
        auxiliary: the logits of auxiliary heads, where the model has them and is in training.
    """

    logits: Tensor
    shares: Tensor | None = None
    partners: Tensor | None = None
    auxiliary: tuple[Tensor, ...] = ()


Ask = Callable[[Any], Answer]
"""Shows inputs to the model, through whatever forms are still to be applied."""


class Attached(NamedTuple):
    """What a form may need of the run it is attached to.

    Attributes:
        model: the model that is trained.
        example: two inputs as the model sees them, whole.
        mixer: how the run's method mixes composites, if it does.
        split_layer: where the user says that the model's last feature map is.
        ledger: what is known about every example.
        seed: what random choices derive from.
        clock: for the time that showing takes.
    """

    model: nn.Module
    example: Any
    mixer: Mixer | None
    split_layer: str | None
    ledger: Ledger
    seed: int
    clock: Stopwatch

    def images(self, done: str) -> Tensor:
        """The example where the model is and in its precision; refused where it is no float images.

        Args:
            done: what a form does to images, for the sentence: "can be …".
        """
        example = self.example
        if not isinstance(example, Tensor) or example.ndim != 4 or not example.is_floating_point():
            what = f"{tuple(example.shape)} {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
            raise LeanError(
                f"the inputs of a batch are {what}, but only float images (n, channels, height, width) can be {done}; "
                "convert them in the data set, or show attach a converted batch as example=…"
            )
        like = next(self.model.parameters(), example)
        return example.to(like.device, like.dtype)


class FormKind(ABC):
    """One way of showing examples, with a number that says how far it goes, such as a scale or a share of tokens.

    Subclass it, give it a `name`, write `size` and `show`, and decorate it with `leantrain.register_form`. One instance
    is made per run, when a method of the run uses the form.
    """

    name: ClassVar[str]
    order: ClassVar[int] = 0
    """When it is applied to a batch: lower ones first. Composites are mixed at 10."""
    mixes: ClassVar[bool] = False
    """Whether an input shows several examples, so that it says nothing clear about any one of them."""

    leaves_out: ClassVar[bool] = False
    """Whether parameters may get no gradient from a batch, for which DistributedDataParallel would wait."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached

    @classmethod
    def size(cls, value: float) -> float:
        """What an input of this form costs, as a share of a whole one."""
        return 1.0

    @classmethod
    def constituents(cls, value: float) -> int:
        """How many examples one input shows."""
        return 1

    @classmethod
    def combined(cls, first: float, second: float) -> float:
        """The value where two methods of a chain ask for this form."""
        return first * second

    def fit(self, value: float) -> float:
        """The nearest value that the model takes; a LeanError where there is none. Asked before an epoch needs it."""
        return value

    def close(self) -> None:
        """Leave the model as it was before the form was attached to it."""
        return

    @abstractmethod
    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        """Change the inputs of a batch and `ask` the model about them."""


FORMS: Registry[FormKind] = Registry("form")
register_form = FORMS.register


class Form(NamedTuple):
    """How the examples of a batch are shown; one form per batch, so shapes stay static. `Form()` is whole.

    Attributes:
        parts: the kinds that are applied, by name, each with its value, in the order in which they are applied.
    """

    parts: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def of(**values: float) -> Form:
        """The form of these kinds, for example `Form.of(shrunk=0.5, composite=2)`."""
        form = Form()
        for name, value in values.items():
            form = form.also(name, value)
        return form

    def also(self, name: str, value: float) -> Form:
        """This form with one more kind, or with one of its kinds taken further."""
        kind, values = FORMS.find(name), dict(self.parts)
        name = kind.name  # which an alias may stand for
        values[name] = kind.combined(values[name], value) if name in values else value
        return self._sorted(values)

    def fitted(self, kinds: dict[str, FormKind]) -> Form:
        """The nearest form that the model takes; what is as good as whole is left out."""
        values = {name: kinds[name].fit(value) for name, value in self.parts}
        return self._sorted({name: value for name, value in values.items() if value != 1})

    def value(self, name: str) -> float:
        """How far a kind goes in it; 1 where it is not part of it."""
        return dict(self.parts).get(name, 1.0)

    def of_kinds(self, names: Collection[str]) -> Form:
        """Only the parts of these kinds."""
        return Form(tuple(part for part in self.parts if part[0] in names))

    def alone(self) -> Form:
        """The same for a single example: without the kinds that put several into one input."""
        return Form(tuple(part for part in self.parts if not FORMS[part[0]].mixes))

    @staticmethod
    def _sorted(values: dict[str, float]) -> Form:
        return Form(tuple(sorted(values.items(), key=lambda part: (FORMS[part[0]].order, part[0]))))

    @property
    def constituents(self) -> int:
        """How many examples one input shows."""
        count = 1
        for name, value in self.parts:
            count *= FORMS[name].constituents(value)
        return count

    @property
    def size(self) -> float:
        """What an input costs, as a share of a whole one."""
        share = 1.0
        for name, value in self.parts:
            share *= FORMS[name].size(value)
        return share


WHOLE = Form()

"""What a score is: a frozen config that measures one number per example on a trained model."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from leantrain.cost import FORWARD
from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode
from leantrain.options import check, spell_named
from leantrain.registry import Registry

ScoringBatch = tuple[Any, Tensor, Tensor]
"""Inputs, targets and example indices."""


@dataclass(frozen=True)
class Score(ABC):
    """One number per example; higher is harder, or of more use.

    Subclasses add their options as dataclass fields made with `leantrain.options.option`. A subclass that is registered
    with `register_score` can be used wherever a score is chosen by name:

        @register_score
        @dataclass(frozen=True)
        class Margin(Score):
            name: ClassVar[str] = "margin"

            def measure(self, model, inputs, targets):
                p = logits_of(model(inputs)).softmax(1)
                ...
    """

    name: ClassVar[str]
    """What it is chosen by, and what files call it."""
    title: ClassVar[str] = ""
    """What tables and figures call it; default: its name."""
    meaning: ClassVar[str] = ""
    """What its values are, for the axis of a figure; default: its title."""
    aliases: ClassVar[tuple[str, ...]] = ()
    epochs: ClassVar[int] = 2
    """How long a model is trained by default."""
    least_epochs: ClassVar[int] = 1
    """Below this the score says nothing."""
    needs_gradients: ClassVar[bool] = False
    """Whether it differentiates the model: then autograd is on, and it gets the module without mixed precision."""

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        return spell_named(self, self.name)

    @property
    def pass_cost(self) -> float:
        """The cost of asking one model about one example, in units of plain training; by default one forward pass."""
        return FORWARD

    @property
    def options(self) -> dict[str, Any]:
        """Its options and their values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @abstractmethod
    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        """The score of every example of a batch: (B,), on the batch's device.

        Called by `score_pass`, with the model in evaluation mode and autograd off. The model is to be left as it was.
        """


@dataclass(frozen=True)
class RecordedScore(Score):
    """A score that is read from what training records, without asking the model once more."""

    @property
    def pass_cost(self) -> float:
        return 0.0

    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        raise LeanError(f"{self} is read from the records of a training, so a pass over a model cannot measure it.")

    @abstractmethod
    def from_records(self, correct: Tensor) -> Tensor:
        """The score of every example, from rows (epochs, N) of whether training had it right."""


SCORES: Registry[Score] = Registry("score")
register_score = SCORES.register


def parse_score(text: str) -> Score:
    """A score from its name and options, for example `grand[gradients=last]`."""
    return SCORES.parse(text)


def make_score(kind: Score | str, **options: Any) -> Score:
    """A score from its name or itself, with those of its options changed that are not None."""
    score = parse_score(kind) if isinstance(kind, str) else kind
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in score.options:
            there = f"it has {', '.join(score.options)}" if score.options else "it has none"
            raise LeanError(f"score '{score.name}' has no option '{name}'; {there}.")
    return dataclasses.replace(score, **given)


class Words(NamedTuple):
    """How a kind of score is spoken of.

    Attributes:
        title: in tables and headings.
        meaning: what its values are, on an axis.
    """

    title: str
    meaning: str


COMPUTED = {
    "use": Words("use", "epochs that trained on it"),
    "combined": Words("combined rank", "mean rank in two scores"),
}
"""Kinds that are computed from runs or from other scores, so nobody can ask a model for them."""


def words_for(kind: str) -> Words:
    """How to speak of a kind that a scores file names; one that is not registered here goes by its name."""
    if kind in SCORES:
        title = SCORES[kind].title or kind
        return Words(title, SCORES[kind].meaning or title)
    return COMPUTED.get(kind, Words(kind, kind))


def score_pass(model: nn.Module, batches: Iterable[ScoringBatch], score: Score | str, length: int) -> Tensor:
    """Go through (inputs, targets, index) batches once and return every example's score: float32 (length,), on the CPU.

    The model and torch's generators are as before afterwards. An example that is in no batch is NaN.
    """
    score = make_score(score)
    indices, scores = [], []
    with eval_mode(model):
        for inputs, targets, index in batches:
            with torch.set_grad_enabled(score.needs_gradients):
                measured = score.measure(model, inputs, targets).detach()
            if measured.shape != targets.shape[:1]:
                raise LeanError(
                    f"score '{score.name}' measured {tuple(measured.shape)} for a batch of {len(targets)} examples; "
                    "its measure() must return one number for each."
                )
            indices.append(index)
            scores.append(measured)
    values = torch.full((length,), float("nan"))
    if scores:  # read at the end: asking after every batch would make the host wait for the device
        values[torch.cat(indices).cpu()] = torch.cat(scores).float().cpu()
    return values


def logits_of(output: Any) -> Tensor:
    """The logits in a model's answer, in float32; Hugging Face's models wrap them in an object."""
    logits: Tensor = getattr(output, "logits", output)
    return logits.float()

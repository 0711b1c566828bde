"""What a method is: a frozen config and a few pure functions that turn the ledger into the next epoch's plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from leantrain.ledger import Ledger
from leantrain.mixing import Mixer
from leantrain.options import check, spell_named
from leantrain.plan import Plan

State = dict[str, Any]
"""A method's own state: tensors and plain values only, so that a checkpoint loads without executing code."""


class Moment(NamedTuple):
    """When a plan is made: what a method may know besides the ledger.

    Attributes:
        epoch: the epoch to plan, from 0.
        progress: 0…1, how far the run is when that epoch starts.
        epochs: how many epochs the run stands for.
        batch_size: inputs per batch.
        side: pixels along an image's shorter side; known to a method that `shrinks`, else 0.
        left: what is left of the budget, in examples of plain training.
    """

    epoch: int
    progress: float
    epochs: int
    batch_size: int
    side: int = 0
    left: float = math.inf


class Seen(NamedTuple):
    """Examples as the model is shown them, with their losses where these are known.

    Attributes:
        inputs: as the model gets them.
        targets: int64 class indices.
        losses: clean losses, or None before the model has looked.
        classes: how many classes the model tells apart; 0 before it has answered.
    """

    inputs: Any
    targets: Tensor
    losses: Tensor | None
    classes: int = 0


class Wanted(NamedTuple):
    """The scores that a method prunes by, and how to make them where none are given.

    Attributes:
        kind: which scores.
        models: over how many models they are the mean.
        epochs: how long each is trained.
        cost: what that costs, in epochs of plain training; nothing where a file has them.
        file: where they are, if they are to be re-used.
    """

    kind: str
    models: int
    epochs: int
    cost: float
    file: str | None


@dataclass(frozen=True)
class Method(ABC):
    """Answers one question: which examples, in what form, with what weight, does the next epoch train on?

    Subclasses add their options as dataclass fields made with `leantrain.options.option`. A method keeps nothing on
    itself: state is a value that comes in and goes out, so it is in the checkpoint and two runs never share it.
    """

    name: ClassVar[str]
    alias: ClassVar[str | None] = None
    shrinks: ClassVar[bool] = False
    """Whether its plans show examples smaller than they are."""
    thins: ClassVar[bool] = False
    """Whether its plans may hold candidates, of which `thin` keeps some."""
    learns: ClassVar[bool] = False
    """Whether it learns from every batch that was trained."""

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        return spell_named(self, self.name)

    @property
    def mixer(self) -> Mixer | None:
        """How the composites in its plans are mixed; None for a method whose plans have none."""
        return None

    @property
    def wanted(self) -> Wanted | None:
        """The scores it prunes by before the first epoch; None for a method that needs none."""
        return None

    @property
    def share(self) -> float:
        """What an epoch is expected to cost, as a share of a plain one."""
        return 1.0

    def scales(self, side: int) -> tuple[float, ...]:
        """The sizes at which its plans show images of so many pixels, as shares of the full one."""
        return ()

    def warning(self, epochs: int) -> str | None:
        """Why these options cannot save anything in a run of so many epochs, with the arithmetic; None if they can."""
        return None

    def init(self, ledger: Ledger) -> State:
        """The state before the first epoch; the place to register ledger fields."""
        return {}

    @abstractmethod
    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        """The plan of the next epoch and the state after making it, from what the ledger says.

        Of the ledger it may change the fields that `init` registered, and no others.
        """

    def discard(self, ledger: Ledger, scores: Tensor, targets: Tensor) -> State:
        """Take the examples out that the scores say, and give the entries of the state that this adds."""
        raise NotImplementedError(f"{self} wants scores but has no discard()")

    def measures(self, state: State, ledger: Ledger, moment: Moment) -> Tensor | None:
        """Examples whose losses the method must know before it plans, though they were not trained on."""
        return None

    def thin(self, state: State, seen: Seen, draws: Tensor) -> tuple[Tensor, State]:
        """Which candidates of a batch to train on, as a mask, and the entries of the state that this changes.

        Args:
            state: as it is now.
            seen: the candidates; with losses where the plan has them scored.
            draws: a number in [0, 1) for each of them.
        """
        raise NotImplementedError(f"{self} plans candidates but has no thin()")

    def learn(self, state: State, seen: Seen) -> State:
        """The entries of the state that change after a batch was trained; called where `learns` is set."""
        return {}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        """What the method adds to an epoch's metrics; called once at the epoch's end."""
        return {}

"""What a method is: a frozen config and a few pure functions that turn the ledger into the next epoch's plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

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
    """

    epoch: int
    progress: float
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Method(ABC):
    """Answers one question: which examples, in what form, with what weight, does the next epoch train on?

    Subclasses add their options as dataclass fields made with `leantrain.options.option`. A method keeps nothing on
    itself: state is a value that comes in and goes out, so it is in the checkpoint and two runs never share it.
    """

    name: ClassVar[str]
    alias: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        return spell_named(self, self.name)

    @property
    def mixer(self) -> Mixer | None:
        """How the composites in its plans are mixed; None for a method whose plans have none."""
        return None

    def init(self, ledger: Ledger) -> State:
        """The state before the first epoch; the place to register ledger fields."""
        return {}

    @abstractmethod
    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        """The plan of the next epoch and the state after making it, from what the ledger says.

        Of the ledger it may change the fields that `init` registered, and no others.
        """

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        """What the method adds to an epoch's metrics; called once at the epoch's end."""
        return {}

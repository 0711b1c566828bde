"""Coresets: a part of the training set, chosen anew every few epochs by what the last layer sees and would learn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.coresets import Looked, facility_location, glister, quotas, similarity, stands_for
from leantrain.cost import scoring_cost
from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.methods.pruning import lowest
from leantrain.options import option
from leantrain.plan import Plan

LARGEST = 6000
"""Examples that are compared with each other at once, which takes their number squared of memory."""


@dataclass(frozen=True)
class Coreset(Method):
    """What all share: when to choose, what it costs, and training on what was chosen."""

    keep: float = option(
        0.7, "share of the training set that is trained on; MixTrain's Table 3: 0.7, 0.8", above=0.0, high=1.0
    )
    every: int = option(10, "epochs after which it is chosen anew", low=1)

    @property
    def expected_share(self) -> float:
        return self.keep + scoring_cost(1) / self.every

    @property
    def selection_cost(self) -> float:
        """What choosing once costs, in epochs of plain training: a look at every example."""
        return scoring_cost(1)

    def init(self, ledger: Ledger) -> State:
        ledger.register("chosen", torch.bool, False)
        ledger.register("weight", torch.float32, 1.0)
        return {"chosen_in": -1}

    def wants_selection(self, state: State, moment: Moment) -> bool:
        chosen_in: int = state["chosen_in"]
        return chosen_in < 0 or moment.epoch - chosen_in >= self.every

    def select(self, state: State, ledger: Ledger, looked: Looked, moment: Moment, rng: torch.Generator) -> State:
        index, weight = self.choose(ledger, looked, rng)
        for name, fill in (("chosen", False), ("weight", 1.0)):
            ledger[name].fill_(fill)
        ledger["chosen"][index.to(ledger.device)] = True
        if weight is not None:
            ledger["weight"][index.to(ledger.device)] = weight.to(ledger.device)
        return {**state, "chosen_in": moment.epoch}

    @abstractmethod
    def choose(self, ledger: Ledger, looked: Looked, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """The chosen examples, and the weight of each where they do not count alike."""

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        if state["chosen_in"] < 0:  # nobody has looked, as where only a cost is estimated: as many, but any
            count = max(1, round(self.keep * len(draft)))
            return draft.take(torch.randperm(len(draft), generator=rng)[:count]), state
        index = draft.index
        kept = ledger["chosen"].cpu()[index]
        if not bool(kept.any()):
            kept[0] = True  # methods before it left others only, and an epoch needs something to train on
        weight = ledger["weight"].cpu()[index][kept]
        draft = draft.keep(kept)
        return draft if bool((weight == 1.0).all()) else draft.weigh(weight), state

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        chosen = {"chosen": int(ledger["chosen"].sum()) / len(ledger)}
        now = state["chosen_in"] == plan.epoch
        return {**chosen, "selection_cost": self.selection_cost * len(ledger) if now else 0.0}


@register_method
@dataclass(frozen=True)
class FacilityLocation(Coreset):
    """Train on examples that have one near every other, each weighed by how many it stands for; chosen anew."""

    name: ClassVar[str] = "facility-location"
    by: str = option(
        "gradients", "what is compared: last-layer gradients or features", choices=("gradients", "features")
    )
    weighted: bool = option(True, "weigh each by how many examples it is the nearest of (CRAIG)")

    def choose(self, ledger: Ledger, looked: Looked, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        errors, found, weights = looked.errors, list[Tensor](), list[Tensor]()
        for label, wanted in enumerate(quotas(looked.targets, self.keep).tolist()):
            members = (looked.targets == label).nonzero().squeeze(1)
            if not wanted:
                continue
            pieces = -(-len(members) // LARGEST)
            shuffled = members[torch.randperm(len(members), generator=rng)] if pieces > 1 else members
            for piece, part in enumerate(shuffled.tensor_split(pieces)):
                count = wanted * (piece + 1) // pieces - wanted * piece // pieces
                near = similarity(errors[part] if self.by == "gradients" else None, looked.features[part])
                chosen = facility_location(near, max(1, min(count, len(part))))
                found.append(part[chosen])
                weights.append(stands_for(near, chosen).float())
        weight = torch.cat(weights)
        return torch.cat(found), weight / weight.mean() if self.weighted else None


@register_method
@dataclass(frozen=True)
class Glister(Coreset):
    """Train on examples on which a step would lower the loss of a held-out part the most; chosen anew."""

    name: ClassVar[str] = "glister"
    held: float = option(0.1, "share of the training set held out to choose by, and never trained on", above=0, below=1)
    rounds: int = option(10, "rounds of choosing, after each of which the held-out gradient is computed anew", low=1)
    rate: float = option(0.1, "learning rate of the step on what is chosen so far", low=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep + self.held > 1.0:
            raise LeanError(f"keep={self.keep} and held={self.held} are more than the whole set; lower one.")

    def init(self, ledger: Ledger) -> State:
        ledger.register("held", torch.bool, False)
        return super().init(ledger)

    def choose(self, ledger: Ledger, looked: Looked, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        there = torch.bincount(looked.targets)
        if not bool(ledger["held"].any()):
            ledger["held"].copy_(self._hold_out(looked.targets, there, rng))
        held = ledger["held"].cpu()
        free = torch.bincount(looked.targets[~held], minlength=len(there))
        wanted = quotas(looked.targets, self.keep).minimum(free)
        return glister(looked, held, wanted, self.rounds, self.rate), None

    def _hold_out(self, targets: Tensor, there: Tensor, rng: torch.Generator) -> Tensor:
        """That share of every class, at random; of a class of one nothing."""
        order = torch.randperm(len(targets), generator=rng)
        by_class = order[targets[order].argsort(stable=True)]
        rank = torch.arange(len(targets)) - (there.cumsum(0) - there)[targets[by_class]]  # within its class
        held = torch.zeros(len(targets), dtype=torch.bool)
        held[by_class] = rank < (there * self.held).round().long().minimum(there - 1)[targets[by_class]]
        if not bool(held.any()):
            several = by_class[there[targets[by_class]] > 1]
            if not len(several):
                raise LeanError(f"glister holds examples out, but each of {len(targets)} is the only one of its class.")
            held[several[0]] = True
        return held


@register_method
@dataclass(frozen=True)
class GraNdCoreset(Coreset):
    """Train on the examples with the largest last-layer gradients of the model as it is; chosen anew."""

    name: ClassVar[str] = "grand-coreset"

    def choose(self, ledger: Ledger, looked: Looked, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        gone, _ = lowest(looked.gradient_norms, looked.targets, 1.0 - self.keep)
        return (~gone).nonzero().squeeze(1), None

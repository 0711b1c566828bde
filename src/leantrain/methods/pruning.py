"""Pruning by scores, which EL2N, GraNd and the Diet methods share: the lowest scores leave before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.cost import FORWARD
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, State, Wanted
from leantrain.options import option
from leantrain.plan import Plan

PRUNED = "pruned"
"""The ledger field that says which examples are never trained on."""


def available(ledger: Ledger) -> Tensor:
    """The examples that may be trained on: all of them, less those that were pruned."""
    if PRUNED not in ledger:
        return torch.arange(len(ledger), dtype=torch.int32)
    return (~ledger[PRUNED]).cpu().nonzero().squeeze(1).int()


def lowest(scores: Tensor, targets: Tensor, prune: float, hardest: float = 0.0) -> tuple[Tensor, int]:
    """Which examples go, as a mask: the lowest scores of the whole set, among equals the first.

    No class vanishes: of a class that would lose every example, the one with the highest score stays.

    Args:
        scores: one per example.
        targets: their classes.
        prune: share of all examples that goes.
        hardest: share of all examples, those with the highest scores, that goes as well.

    Returns:
        The mask, and of how many classes a single example was saved.
    """
    order = scores.argsort(stable=True)
    gone = torch.zeros(len(scores), dtype=torch.bool)
    gone[order[: round(prune * len(order))]] = True
    gone[order[len(order) - round(hardest * len(order)) :]] = True
    there = torch.bincount(targets)
    lost = (there > 0) & (torch.bincount(targets[~gone], minlength=len(there)) == 0)
    for label in lost.nonzero().squeeze(1).tolist():
        members = (targets == label).nonzero().squeeze(1)
        gone[members[scores[members].argmax()]] = False
    return gone, int(lost.sum())


@dataclass(frozen=True)
class Pruning(Method):
    """Prune the lowest scores before training."""

    kind: ClassVar[str] = "el2n"
    pass_cost: ClassVar[float] = FORWARD
    """What asking one model about one example costs."""

    prune: float = option(
        0.25, "share of the whole set pruned before training, the lowest scores first; the poster: 0.25", low=0, below=1
    )
    hardest: float = option(0.0, "share pruned at the other end, where wrong labels gather", low=0, below=1)
    scores: str | None = option(None, "file of scores to re-use, made by `leantrain score`; of any kind")
    models: int = option(3, "models trained to make the scores, where no file is given; the paper: 10", low=1)
    score_epochs: int = option(2, "epochs that each of them is trained for", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prune + self.hardest >= 1:
            raise LeanError(f"prune={self.prune} and hardest={self.hardest} leave nothing; their sum must be below 1.")

    @property
    def wanted(self) -> Wanted:
        cost = 0.0 if self.scores is not None else self.models * (self.score_epochs + self.pass_cost)
        return Wanted(self.kind, self.models, self.score_epochs, cost, self.scores)

    @property
    def share(self) -> float:
        return (1.0 - self.prune - self.hardest) * super().share

    def warning(self, epochs: int) -> str | None:
        making, training = self.wanted.cost, epochs * self.share
        if making + training <= 1.001 * epochs:
            return None
        scores = (
            f"{self.models} × ({self.score_epochs} + {self.pass_cost:.2f}) = {making:.1f} epochs for the scores and "
        )
        return (
            f"{self} cannot save anything in {epochs} epochs: it costs {scores if making else ''}"
            f"{epochs} × {self.share:.2f} = {training:.1f} for training; "
            + ("train longer, make fewer scores, or re-use them with scores=FILE." if making else "keep fewer.")
        )

    def init(self, ledger: Ledger) -> State:
        ledger.register(PRUNED, torch.bool, False)
        return super().init(ledger)

    def discard(self, ledger: Ledger, scores: Tensor, targets: Tensor) -> State:
        gone, saved = lowest(scores, targets, self.prune, self.hardest)
        ledger[PRUNED].copy_(gone)
        return {"pruned": {"pruned": int(gone.sum()) / len(gone), "saved_classes": saved}}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        pruned, saved = int(ledger[PRUNED].sum()), state["pruned"]["saved_classes"]
        told: dict[str, Any] = {"pruned": pruned / len(ledger), **super().report(state, ledger, plan)}
        if plan.epoch == 0:
            paid = state["scores"]
            if not paid["reused"]:
                told["ensemble_cost"], told["ensemble_seconds"] = paid["cost"], paid["seconds"]
            told["note"] = (
                f"{pruned:,} of {len(ledger):,} examples pruned; making the scores cost "
                f"{paid['cost'] / len(ledger):.1f} epochs, "
                + ("paid elsewhere and not counted here." if paid["reused"] else "counted in this run.")
                + (f" {saved} {'class keeps' if saved == 1 else 'classes keep'} a single example." if saved else "")
            )
        return told

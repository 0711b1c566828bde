"""Pruning by scores: the lowest scores leave before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, ScoreRequest, ScoresGiven, State, register_method
from leantrain.options import option
from leantrain.plan import Plan
from leantrain.scoring.kinds import parse_score


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

    score: ClassVar[str]
    """Which scores it asks for where no file is given."""

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
    def score_request(self) -> ScoreRequest:
        each = parse_score(self.score).pass_cost
        cost = 0.0 if self.scores is not None else self.models * (self.score_epochs + each)
        arithmetic = f"{self.models} × ({self.score_epochs} + {each:.2f}) = {cost:.1f}"
        return ScoreRequest(self.score, self.models, self.score_epochs, cost, self.scores, arithmetic)

    @property
    def expected_share(self) -> float:
        return 1.0 - self.prune - self.hardest

    def init(self, ledger: Ledger) -> State:
        ledger.register("pruned", torch.bool, False)
        return {"summary": {}, "pruning": False}

    def use_scores(
        self, state: State, ledger: Ledger, scores: Tensor, targets: Tensor, given: ScoresGiven
    ) -> tuple[State, dict[str, Any]]:
        gone, saved = lowest(scores, targets, self.prune, self.hardest)
        ledger["pruned"].copy_(gone)
        outcome = {"pruned": int(gone.sum()) / len(gone), "saved_classes": saved}
        return {**state, "summary": {**given._asdict(), **outcome}}, outcome

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        kept = ~ledger["pruned"].cpu()[draft.index]
        if not bool(kept.any()):
            kept[0] = True  # methods before it left pruned examples only, and an epoch needs something to train on
        return draft.keep(kept), {**state, "pruning": True}

    def idle(self, state: State, ledger: Ledger, moment: Moment) -> State:
        return {**state, "pruning": False}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        summary, total = state["summary"], len(ledger)
        found: dict[str, Any] = {"pruned": summary["pruned"] if state["pruning"] else 0.0}
        if plan.epoch == 0:
            reused, saved = summary["reused"], summary["saved_classes"]
            if not reused:
                found["ensemble_cost"], found["ensemble_seconds"] = summary["cost"], summary["seconds"]
            found["note"] = (
                f"{round(summary['pruned'] * total):,} of {total:,} examples pruned{self._when()}; "
                f"making the scores cost {summary['cost'] / total:.1f} epochs, "
                + ("paid elsewhere and not counted here." if reused else "counted in this run.")
                + (f" {saved} {'class keeps' if saved == 1 else 'classes keep'} a single example." if saved else "")
            )
        return found

    def _when(self) -> str:
        whole = (self.start, self.until) == (0.0, 1.0)
        return "" if whole else f" from {self.start:.0%} to {self.until:.0%} of the run"


@register_method
@dataclass(frozen=True)
class Prune(Pruning):
    """Prune the lowest of any registered score, such as forgetting or your own, and train on the rest."""

    name: ClassVar[str] = "prune"
    by: str = option("el2n", "which score, as `leantrain score` knows it")

    def __post_init__(self) -> None:
        super().__post_init__()
        request = parse_score(self.by)
        if self.score_epochs < request.least_epochs:
            raise LeanError(
                f"score_epochs is {self.score_epochs}, but {self.by} needs at least {request.least_epochs}; raise it."
            )

    @property
    def score(self) -> str:  # type: ignore[override]
        return self.by

"""Given scores: which scores the methods of a run wait for, which they have, and what those cost."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods import METHODS, Chain, Method, NeedsScores, Preset, ScoreRequest, ScoresGiven
from leantrain.methods.base import State
from leantrain.scoring.scores import Scores, ids_of


class GivenScores:
    """The scores of a run, by the place in the chain of the method that prunes by them.

    Args:
        chain: the run's methods.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._given: dict[int, dict[str, Any]] = {}

    @property
    def waiting(self) -> tuple[int, NeedsScores] | None:
        """The next method that needs scores and has none, with its place."""
        needing = self._chain.having(NeedsScores)
        return next(((place, method) for place, method in needing if place not in self._given), None)

    @property
    def request(self) -> ScoreRequest | None:
        """What that method asks for."""
        return None if self.waiting is None else self.waiting[1].score_request

    @property
    def paid(self) -> float:
        """What making scores took of the run's budget."""
        return math.fsum(scores["cost"] for scores in self._given.values() if not scores["reused"])

    @property
    def summary(self) -> dict[str, Any] | None:
        """What they cost, whether that is counted in the run, and what they did; None where there are none."""
        given = list(self._given.values())
        if not given:
            return None
        # Of several methods that may prune the same examples, the largest numbers: their shares do not add up.
        return {
            **{name: max(one[name] for one in given) for name in given[0]},
            "cost": math.fsum(one["cost"] for one in given),
            "paid": self.paid,
            "seconds": math.fsum(one["seconds"] for one in given),
            "reused": all(one["reused"] for one in given),
        }

    def use(self, scores: Scores, reused: bool, states: list[State], ledger: Ledger, source: Any) -> None:
        """Give the waiting method its scores; its state in `states` and its fields in the ledger change.

        Args:
            reused: they were paid for elsewhere.
            source: the data set that they must be of.
        """
        assert self.waiting is not None
        place, method = self.waiting
        rows = scores.rows(ids_of(source))
        # Others may change what their `targets` say on the way to a batch.
        check_labels(scores.targets[rows], source.targets if hasattr(source, "batch") else None)
        given = ScoresGiven(scores.cost, scores.seconds, reused)
        view = self._chain.views(ledger)[place]
        states[place], outcome = method.use_scores(
            states[place], view, scores.values[rows], scores.targets[rows], given
        )
        self._given[place] = {**given._asdict(), **outcome}

    def check_wanted(self, method: Method) -> None:
        """Refuse scores where no method waits for any."""
        if not self._chain.having(NeedsScores):
            users = ", ".join(name for name, kind in METHODS.items() if _uses_scores(kind))
            raise LeanError(f"{method} prunes by no scores; {users} do.")
        if self.waiting is None:
            raise LeanError(f"{method} has its scores already; give others to a new run.")

    def state_dict(self) -> dict[str, Any]:
        return {str(place): scores for place, scores in self._given.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given = {int(place): scores for place, scores in state.items()}


def check_labels(scored: Tensor, own: Any) -> None:
    """Refuse scores of another data set: ids may be mere places, but then the labels differ."""
    if not isinstance(own, Tensor) or len(own) != len(scored):  # a data set that does not say its labels
        return
    wrong = int((own.cpu() != scored).sum())
    if wrong:
        raise LeanError(
            f"{wrong} of {len(scored)} examples have another label than their scores say; these are the scores of "
            "another data set. Make them anew with leantrain score."
        )


def _uses_scores(kind: type[Method]) -> bool:
    kinds = kind.kinds if issubclass(kind, Preset) else (kind,)
    return any(hasattr(part, "score_request") for part in kinds)

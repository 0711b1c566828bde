"""lean: a budget in, the best accuracy out. The schedule follows from the budget alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.methods.growing import Growth
from leantrain.shrinking import Shrunk
from leantrain.tokens import Tokens

WAYS: dict[str, tuple[float, float, float]] = {Shrunk.name: (0.5, 0.75, 1.0), Tokens.name: (0.5, 0.75, 1.0)}
"""How far a form goes in the three parts of a run, by kind; the kinds in the order in which they are tried."""

SHARES: tuple[tuple[float, float, float], ...] = (
    (0.0, 0.0, 1.0),
    (0.2, 0.4, 0.4),
    (0.4, 0.4, 0.2),
    (0.6, 0.3, 0.1),
)
"""Shares of the cost for the three parts, from a generous budget to a tight one."""


@register_method
@dataclass(frozen=True)
class LeanMethod(Method):
    """The accuracy of full training for a share of its cost: examples small at first, whole at the end.

    A smaller budget spends more of itself on smaller examples, so that about as many passes over the data are made as
    full training makes. Where a model takes one size only, it drops tokens; where it does not take that either, it
    trains plain epochs, fewer of them.
    """

    name: ClassVar[str] = "lean"
    after_mixing: ClassVar[bool] = True
    default_budget: ClassVar[float | None] = 0.5

    @property
    def expected_share(self) -> float:
        return 1.0  # what an epoch costs follows from the budget, which is kept

    def offers(self, side: int) -> tuple[tuple[Form, ...], ...]:
        return tuple(growth(kind, 0.5).forms for kind in WAYS)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        kind = next((kind for kind in WAYS if kind in moment.kinds), None)
        if kind is None:
            return draft, state
        return growth(kind, moment.budget or self.default_budget or 1.0).show(draft, moment), state


def growth(kind: str, budget: float) -> Growth:
    """The sizes and their shares of the cost for a budget: as many passes as full training makes, where that goes.

    Between two entries of `SHARES` it goes by the share of the way that makes the passes come out.
    """
    values = WAYS[kind]
    ladder = [Growth(kind, values, shares) for shares in SHARES]
    needed = 1.0 / budget
    for first, second in itertools.pairwise(ladder):
        if needed <= second.passes:
            way = max(0.0, (needed - first.passes) / (second.passes - first.passes))
            shares = tuple((1 - way) * a + way * b for a, b in zip(first.shares, second.shares, strict=True))
            return Growth(kind, values, shares)
    return ladder[-1]

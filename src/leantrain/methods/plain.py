"""Plain training: every example once an epoch. What every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method


@register_method
@dataclass(frozen=True)
class Plain(Method):
    """Plain training: every example once an epoch, whole, in random order (with whatever optimiser is chosen)."""

    name: ClassVar[str] = "plain"
    aliases: ClassVar[tuple[str, ...]] = ("sgd",)
    after_mixing: ClassVar[bool] = True

    @property
    def expected_share(self) -> float:
        return 1.0

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft, state


SGD = Plain
"""Its name before the optimiser and the method were told apart."""

"""Freezing: the first layers do not learn, which saves their backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option
from leantrain.tuning import Learning


@register_method
@dataclass(frozen=True)
class Freezing(Method):
    """The first layers stay as they are, for fine-tuning: they are good already, and need no backward pass."""

    name: ClassVar[str] = "freezing"
    after_mixing: ClassVar[bool] = True
    share: float = option(
        0.4, "of the model's arithmetic, from its input on, that of the layers that do not learn", above=0.0, below=1.0
    )

    @property
    def expected_share(self) -> float:
        return Learning.size(1.0 - self.share)

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(learning=1.0 - self.share),)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.show(Learning.name, 1.0 - self.share), state

"""Token dropping: all examples, each with some of its tokens. The cost of a transformer goes with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option
from leantrain.tokens import Tokens


@register_method
@dataclass(frozen=True)
class TokenDropping(Method):
    """Show a vision transformer a random part of each image's tokens, another one in every epoch (PatchDropout)."""

    name: ClassVar[str] = "token-dropping"
    with_composites: ClassVar[bool] = False
    keep: float = option(0.5, "share of the tokens that is kept", above=0, high=1)

    @property
    def expected_share(self) -> float:
        return self.keep

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(tokens=self.keep),)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.show(Tokens.name, self.keep), state

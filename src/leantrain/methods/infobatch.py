"""InfoBatch: prune easy examples at random each epoch, and weigh the kept ones up, so that gradients stay unbiased."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import instead_of_ending, option


@register_method
@dataclass(frozen=True)
class InfoBatch(Method):
    """Drop a random share of the examples below the mean loss, weigh the rest of them up; the last epochs are full."""

    name: ClassVar[str] = "infobatch"
    former: ClassVar[Mapping[str, Callable[[str], str]]] = {"full": instead_of_ending}
    prune: float = option(0.5, "share dropped of the easy examples; the paper: 0.5", low=0.0, below=1.0)
    below: float | None = option(
        None, "loss below which an example is easy (default: the mean, as in the paper)", above=0.0
    )
    until: float = option(
        0.875, "share of the run after which all is trained on; the paper: 0.875", above=0.0, high=1.0
    )

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        loss = ledger["loss"].cpu()[draft.index]
        known = loss.isfinite()
        if not known.any():
            return draft, state
        easy = known & (loss < (self.below or loss[known].mean(dtype=torch.float64)))
        return draft.skip(easy, self.prune, rng), state

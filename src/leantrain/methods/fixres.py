"""FixRes: train on small images, then fine-tune classifier and normalisation at full size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft, Stage
from leantrain.forms import FORMS, Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.options import option
from leantrain.shrinking import Shrunk
from leantrain.tuning import TUNED, Tuned


@register_method
@dataclass(frozen=True)
class FixRes(Method):
    """Train on small images, then fine-tune only the classifier and BatchNorm at full size."""

    name: ClassVar[str] = "fixres"
    after_mixing: ClassVar[bool] = True
    scale: float = option(0.7, "side of the small images, as a share of the full one", above=0.0, below=1.0)
    tune: float = option(0.1, "share of the run, at its end, that fine-tunes at full size", above=0.0, below=1.0)

    @property
    def expected_share(self) -> float:
        return (1.0 - self.tune) * FORMS[Shrunk.name].size(self.scale) + self.tune * TUNED

    def forms(self, side: int) -> tuple[Form, ...]:
        return Form.of(shrunk=self.scale), Form.of(tuned=TUNED)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        # Both change at the same batch: the cost before it is the same, and the batches behind it cost more.
        small = self._small(draft.cost, moment)
        for name, first, then in ((Shrunk.name, self.scale, 1.0), (Tuned.name, 1.0, TUNED)):
            stages = [Stage(small, first), Stage(math.inf, then)]
            draft = draft.show_stages(name, stages if small > 0 else stages[1:])
        return draft, state

    def _small(self, whole: float, moment: Moment) -> float:
        """What is still to be spent on small images, of a run whose epochs cost `whole` at full size."""
        left = 1.0 - self.tune - moment.progress
        if left <= 1e-9:
            return 0.0
        if not math.isinf(moment.left):
            return left * moment.left / max(1e-9, 1.0 - moment.progress)
        return left * moment.epochs * whole * FORMS[Shrunk.name].size(self.scale)

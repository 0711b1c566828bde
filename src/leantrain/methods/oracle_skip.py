"""Oracle skipping: what skipping easy examples could save if knowing which are easy cost nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.draft import Draft
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.plan import Plan


@register_method
@dataclass(frozen=True)
class OracleSkip(Method):
    """Skip in the next epoch what has a loss below L_corr; losses of the skipped are measured and not paid for."""

    name: ClassVar[str] = "oracle-skip"

    def init(self, ledger: Ledger) -> State:
        return {"sums": torch.zeros(2, dtype=torch.float64), "report": {}}  # of correct examples: losses, count

    def needs_losses(self, draft: Draft, ledger: Ledger, moment: Moment) -> Tensor | None:
        if moment.epoch == 0:
            return None
        index = draft.index
        return index[~ledger.seen_in(moment.epoch - 1).cpu()[index]]

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        index = draft.index
        loss = ledger["loss"].cpu()[index]
        sums = state["sums"]
        # As MixTrain's thresholds by default: from the epochs before the one that just ended.
        threshold = float(sums[0] / sums[1]) if sums[1] > 0 else float("nan")
        if moment.epoch > 0:
            right = ledger["correct"].cpu()[index] & loss.isfinite()
            sums = sums + torch.stack([loss[right].sum(dtype=torch.float64), right.sum(dtype=torch.float64)])
        hard = ~(loss < threshold)  # everything, before there is a threshold
        if not bool(hard.any()):  # an epoch needs something to train on
            hard[loss.argmax()] = True
        skipped = 1 - int(hard.sum()) / len(loss)
        report = {"skipped": skipped, "loss_correct": None if math.isnan(threshold) else threshold}
        return draft.keep(hard), {"sums": sums, "report": report}

    def idle(self, state: State, ledger: Ledger, moment: Moment) -> State:
        return {**state, "report": {}}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        return dict(state["report"])

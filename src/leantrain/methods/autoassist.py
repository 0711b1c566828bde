"""AutoAssist: a light model, trained along the way, tells which examples are worth the heavy one's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, Seen, State, register_method
from leantrain.options import option
from leantrain.plan import Plan, Thinning

GRID = 4  # cells along each side of the thumbnail that the assistant looks at
FORGET = 0.99  # of the running mean loss, per batch


@register_method
@dataclass(frozen=True)
class AutoAssist(Method):
    """A linear model on thumbnails predicts whether a loss lies above the mean; the rest is dropped unseen."""

    name: ClassVar[str] = "autoassist"
    explore: float = option(0.1, "chance of training on an example that the assistant deems easy", above=0, high=1)
    rate: float = option(0.05, "learning rate of the assistant", above=0)

    def init(self, ledger: Ledger) -> State:
        return {
            "assistant": torch.empty(0, 0),  # a row of weights per class, once the number of classes is known
            "mean": torch.zeros(2),  # of recent losses: weighted sum and weight
            "counts": torch.zeros(2),  # candidates and kept ones of this epoch
            "keep": 0.5,
        }

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        candidates, kept = state["counts"].tolist()
        # What will be kept is known afterwards only; the epoch before is the best guess.
        keep = max(kept / candidates, 1e-3) if candidates else state["keep"]
        return draft.thin(Thinning(keep, scored=False)), {**state, "counts": torch.zeros(2), "keep": keep}

    def idle(self, state: State, ledger: Ledger, moment: Moment) -> State:
        return {**state, "counts": torch.zeros(2)}

    def condense(self, inputs: Any) -> Tensor:
        return features(inputs)

    def thin(self, state: State, seen: Seen, draws: Tensor) -> tuple[Tensor, State]:
        hard = torch.full_like(draws, 0.5)
        if state["assistant"].numel():
            hard = self._hardness(state["assistant"].to(draws.device), seen.inputs, seen.targets)
        kept = draws < self.explore + (1 - self.explore) * hard
        counts = torch.stack([torch.ones_like(draws).sum(), kept.float().sum()])
        return kept, {"counts": state["counts"].to(draws.device) + counts}

    def learn(self, state: State, seen: Seen) -> State:
        """One step of logistic regression on whether each loss lies above the recent mean."""
        assert seen.losses is not None
        device = seen.losses.device
        mean = state["mean"].to(device)
        ours = torch.stack([seen.losses.sum(), torch.ones_like(seen.losses).sum()])
        mean = FORGET * mean + (1 - FORGET) * ours
        worth = (seen.losses > mean[0] / mean[1]).float()
        weights = state["assistant"].to(device)
        if not weights.numel():
            weights = torch.zeros(seen.classes, seen.inputs.shape[1], device=device)
        error = self._hardness(weights, seen.inputs, seen.targets) - worth
        count = torch.zeros(len(weights), 1, device=device).index_add_(0, seen.targets, torch.ones_like(error)[:, None])
        slope = torch.zeros_like(weights).index_add_(0, seen.targets, error[:, None] * seen.inputs)
        return {"assistant": weights - self.rate * slope / count.clamp(min=1), "mean": mean}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        candidates, kept = state["counts"].tolist()
        return {"kept": kept / candidates} if candidates else {}

    @staticmethod
    def _hardness(weights: Tensor, seen_as: Tensor, targets: Tensor) -> Tensor:
        return (weights[targets] * seen_as).sum(1).sigmoid()


def features(inputs: Any) -> Tensor:
    """What the assistant sees of an image: a thumbnail, its contrast, and a one for the bias."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 4 or not inputs.is_floating_point():
        what = f"{tuple(inputs.shape)} {inputs.dtype}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise LeanError(
            f"autoassist looks at float images (n, channels, height, width), and the inputs are {what}; convert them "
            "in the data set or in attach(prepare=…), or use selective-backprop."
        )
    thumbnail = F.adaptive_avg_pool2d(inputs.float(), GRID).flatten(1)
    contrast = inputs.float().flatten(1).std(1, keepdim=True)
    return torch.cat([thumbnail, contrast, torch.ones_like(contrast)], dim=1)

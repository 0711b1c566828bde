"""PruneTrain: a group lasso drives channels to zero, and those that are there are removed while the run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from leantrain.channels import Channels
from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, Panel, State, register_method
from leantrain.options import option
from leantrain.plan import Plan
from leantrain.slimming import LEAST

GROWING = 0.5
"""The share of the run in which the network grows, where it does."""


@register_method
@dataclass(frozen=True)
class PruneTrain(Method):
    """Remove channels that a group lasso has driven to zero, so that the network gets smaller while it trains."""

    name: ClassVar[str] = "prune-train"
    after_mixing: ClassVar[bool] = True
    panels: ClassVar[tuple[Panel, ...]] = (
        Panel(
            "lines",
            "The network that is left",
            "What an example costs in it and how many of its channels are there, as shares of the whole network's.",
            {"network": "cost of an example", "channels": "channels"},
        ),
    )
    penalty: float = option(
        0.25, "share of the first step's loss that the group lasso makes; the authors have 0.2", above=0.0, below=1.0
    )
    every: int = option(1, "epochs between two removals; the authors have 5 of 90 or 10 of 182", low=1)
    threshold: float = option(1e-4, "a channel all of whose weights are smaller is removed", above=0.0)
    grow: bool = option(False, "start small, grow in the first half of the run and prune all along (Yuan et al.)")
    begin: float | None = option(None, "with grow, the share of the channels to begin with; 0.25", above=0.0, below=1.0)
    most: float | None = option(None, "with grow, what an example may cost at most; 0.5", above=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("begin", "most"):
            if getattr(self, name) is not None and not self.grow:
                raise LeanError(f"{name}={getattr(self, name)} is for a network that grows; give grow=true as well.")

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(slim=LEAST),)

    def init(self, ledger: Ledger) -> State:
        return {"coefficient": None, "widths": None, "network": 1.0, "channels": 1.0}

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft, state

    def reshape(
        self,
        state: State,
        channels: Channels,
        optimizer: torch.optim.Optimizer,
        moment: Moment,
        rng: torch.Generator,
    ) -> State:
        if state["widths"] is None and self.grow:
            begin = 0.25 if self.begin is None else self.begin
            channels.resize({one.name: max(one.least, round(begin * one.full)) for one in channels.bundles}, optimizer)
        elif state["widths"] is not None and moment.epoch % self.every == 0:
            channels.remove_below(self.threshold, optimizer)
            if self.grow and moment.progress < GROWING:
                channels.grow(self._wider(channels, moment), rng, optimizer)
        return {**state, "widths": channels.widths, "network": channels.share, "channels": channels.kept}

    def coefficient(self, loss: float, lasso: float) -> float:
        return self.penalty / (1.0 - self.penalty) * loss / lasso

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        return {name: state[name] for name in ("network", "channels")}

    def _wider(self, channels: Channels, moment: Moment) -> dict[str, int]:
        """All bundles wider by one share of their full width, as far as the cost allows.

        As much a time as takes a network that loses nothing from its beginning to its full width while it grows.
        """
        begin = 0.25 if self.begin is None else self.begin
        most = 0.5 if self.most is None else self.most
        now, step = channels.widths, (1.0 - begin) * self.every / (GROWING * moment.epochs)

        def by(share: float) -> dict[str, int]:
            return {
                one.name: max(now[one.name], min(one.full, round(now[one.name] + share * one.full)))
                for one in channels.bundles
            }

        steps = [number / 20 * min(1.0, step) for number in range(20, 0, -1)]
        return next((by(share) for share in steps if channels.share_with(by(share)) <= most), now)

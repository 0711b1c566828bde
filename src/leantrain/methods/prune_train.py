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

PARTS = tuple(number / 20 for number in range(20, 0, -1))
"""Of what it is to be wide or to grow by, the parts that are tried until one does not cost too much."""

BEGIN, MOST = 0.25, 0.5
"""The share of the channels that such a network begins with, and what an example may cost in it, if nothing is said."""


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
    begin: float | None = option(None, f"with grow, the share of channels to begin with; {BEGIN}", above=0.0, below=1.0)
    most: float | None = option(None, f"with grow, what an example may cost at most; {MOST}", above=0.0, high=1.0)

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
            channels.resize(self._first(channels), optimizer)
        elif state["widths"] is not None and moment.epoch % self.every == 0:
            channels.remove_below(self.threshold, optimizer)
            if self.grow and moment.progress < GROWING:
                channels.grow(self._wider(channels, moment), rng, optimizer)
        return {**state, "widths": channels.widths, "network": channels.share, "channels": channels.kept}

    def coefficient(self, loss: float, lasso: float) -> float:
        return self.penalty / (1.0 - self.penalty) * loss / lasso

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        return {name: state[name] for name in ("network", "channels")}

    def _first(self, channels: Channels) -> dict[str, int]:
        """The widths to begin with, in proportion; fewer where an example would cost too much."""

        def at(share: float) -> dict[str, int]:
            return {one.name: max(one.least, round(share * one.full)) for one in channels.bundles}

        return self._affordable(channels, [at(part * (self.begin or BEGIN)) for part in PARTS], at(0.0))

    def _wider(self, channels: Channels, moment: Moment) -> dict[str, int]:
        """All bundles wider by one share of their full width, as far as the cost allows.

        As much a time as takes a network that loses nothing from its beginning to its full width while it grows.
        """
        now, step = channels.widths, (1.0 - (self.begin or BEGIN)) * self.every / (GROWING * moment.epochs)

        def by(share: float) -> dict[str, int]:
            return {one.name: min(one.full, round(now[one.name] + share * one.full)) for one in channels.bundles}

        return self._affordable(channels, [by(part * min(1.0, step)) for part in PARTS], now)

    def _affordable(self, channels: Channels, some: list[dict[str, int]], least: dict[str, int]) -> dict[str, int]:
        """The first of some widths with which an example costs no more than it may."""
        return next((widths for widths in some if channels.share_with(widths) <= (self.most or MOST)), least)

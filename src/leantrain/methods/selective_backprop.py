"""Selective-Backprop: look at every example's loss, and train on the high ones more often than on the low ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leantrain.cost import FORWARD
from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, Seen, State, register_method
from leantrain.options import option
from leantrain.plan import Thinning


@register_method
@dataclass(frozen=True)
class SelectiveBackprop(Method):
    """Forward every example, keep it with probability CDF(loss)^beta among recent losses, train on the kept."""

    name: ClassVar[str] = "selective-backprop"
    keep: float | None = option(
        None, "share of the examples trained on, by choice of beta; 0.5 if not given", above=0, high=1
    )
    beta: float | None = option(None, "selectivity, instead of keep: keep is 1 / (1 + beta)", low=0)
    history: int = option(1024, "recent losses that make the distribution", low=1)
    stale: int = option(0, "epochs that re-use the losses of the one before them, saving the forward passes", low=0)
    per_batch: bool = option(
        False,
        "train on what is kept of every mini-batch, so that steps stay as many (the poster); else refill batches",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.beta is not None:
            raise LeanError(f"keep={self.keep} and beta={self.beta} say the same thing; give one of them.")

    @property
    def exponent(self) -> float:
        if self.beta is not None:
            return self.beta
        return 1.0 / (0.5 if self.keep is None else self.keep) - 1.0

    @property
    def kept(self) -> float:
        """The share that is kept of uniformly spread ranks: the mean of u^beta."""
        return 1.0 / (1.0 + self.exponent)

    @property
    def looking(self) -> float:
        """What looking at an example costs, of training on it: a forward pass in one of 1 + stale epochs."""
        return FORWARD / (1 + self.stale)

    @property
    def expected_share(self) -> float:
        return self.looking + self.kept

    def warning(self, epochs: int) -> str | None:
        if self.expected_share <= 1.001:  # 0.6667 stands for two thirds
            return None
        return (
            f"{self} cannot save anything: looking at every example costs {self.looking:.2f} of training on it and a "
            f"share of {self.kept:.2f} is trained on, together {self.expected_share:.2f}; keep must be below "
            f"{1 - self.looking:.2f}."
        )

    def init(self, ledger: Ledger) -> State:
        return {"losses": torch.empty(0)}

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        if moment.epoch % (1 + self.stale) == 0:
            return draft.thin(Thinning(self.kept, scored=True, refill=not self.per_batch)), state
        # All losses are known from the epoch before, so the choice is made here, and nothing is forwarded for it.
        losses = ledger["loss"].cpu()[draft.index]
        known = losses.isfinite()
        chance = torch.full_like(losses, self.kept)  # of what is unknown: as any other
        chance[known] = self._chance(losses[known], losses[known])
        chosen = torch.rand(len(losses), generator=rng) < chance
        chosen[losses.nan_to_num(0.0).argmax()] = True  # never none
        draft = draft.keep(chosen)
        return draft.smaller_batches(self.kept, moment.batch_size) if self.per_batch else draft, state

    def thin(self, state: State, seen: Seen, draws: Tensor) -> tuple[Tensor, State]:
        assert seen.losses is not None
        losses = torch.cat([state["losses"].to(seen.losses.device), seen.losses])[-self.history :]
        return draws < self._chance(seen.losses, losses), {"losses": losses}

    def _chance(self, losses: Tensor, among: Tensor) -> Tensor:
        """CDF(loss)^beta: the share of recent losses that are no higher, made selective."""
        rank = torch.searchsorted(among.sort().values, losses, right=True)
        return (rank / len(among)) ** self.exponent

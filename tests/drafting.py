"""Planning epochs by hand, without a model: what a method or a chain makes of a ledger."""

from __future__ import annotations

import torch

from leantrain.ledger import Ledger
from leantrain.methods import Method, Moment, chain, parse_method
from leantrain.plan import Plan


class Planner:
    """A method with its state and a ledger; `plan` gives the plan of a moment and moves the state on."""

    def __init__(self, method: str | Method, ledger: Ledger) -> None:
        self.chain = chain(parse_method(method) if isinstance(method, str) else method)
        self.ledger = ledger
        self.states = self.chain.init_all(ledger)

    def plan(self, moment: Moment, rng: torch.Generator) -> Plan:
        draft, self.states = self.chain.draft_all(self.states, self.ledger, moment, rng)
        return draft.cut(moment.epoch, moment.batch_size, rng)

    @property
    def view(self) -> Ledger:
        """The ledger as the first method sees it."""
        return self.chain.views(self.ledger)[0]

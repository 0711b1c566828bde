"""Growing: a form that starts small and ends whole, with a share of the run's cost for every size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from leantrain.draft import Draft, Stage
from leantrain.forms import FORMS, Form
from leantrain.methods.base import Moment


class Growth(NamedTuple):
    """How far a form goes, part by part of the run.

    Attributes:
        name: the kind of form.
        values: how far it goes in each part; the last one is usually 1, whole.
        shares: of the run's cost, spent in each part.
    """

    name: str
    values: Sequence[float]
    shares: Sequence[float]

    @property
    def passes(self) -> float:
        """How many passes over the examples it makes for the cost of one whole pass."""
        return math.fsum(self.passes_each)

    @property
    def forms(self) -> tuple[Form, ...]:
        """What the model must take."""
        return tuple(Form.of(**{self.name: value}) for value in self.values if value < 1)

    @property
    def passes_each(self) -> list[float]:
        """The same by part of the run."""
        return [share / FORMS[self.name].size(value) for value, share in zip(self.values, self.shares, strict=True)]

    def show(self, draft: Draft, moment: Moment) -> Draft:
        """The epoch in its stages: those of this growth that lie in it, by what is spent in each."""
        return draft.show_stages(self.name, self._stages(draft.cost, moment))

    def _stages(self, whole: float, moment: Moment) -> list[Stage]:
        """The stages from this moment on; the epoch may end in any of them.

        With a budget, what the run costs is known. Without, its passes are, of which a smaller size gets more for the
        same cost.
        """
        budgeted = not math.isinf(moment.left)
        if budgeted:
            total = moment.left / max(1e-9, 1.0 - moment.progress)
            ends, unit = self.shares, total
        else:
            ends, unit = [count / self.passes for count in self.passes_each], moment.epochs * whole
        stages, end, at = list[Stage](), 0.0, moment.progress
        for value, share in zip(self.values, ends, strict=True):
            end += share
            size = 1.0 if budgeted else FORMS[self.name].size(value)
            if end > at + 1e-9:
                stages.append(Stage((end - at) * unit * size, value))
                at = end
        stages = stages or [Stage(math.inf, self.values[-1])]
        return [*stages[:-1], stages[-1]._replace(cost=math.inf)]

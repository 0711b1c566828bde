"""lean: a budget in, the best accuracy out. Nothing else is to be chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.methods.growing import Growth
from leantrain.plan import at
from leantrain.shrinking import Shrunk
from leantrain.tokens import Tokens
from leantrain.tuning import Learning

SIDES = (0.375, 0.5, 0.75, 1.0)
"""Of an image's side, what is shown in the four parts of a run."""

TOKENS = (0.25, 0.5, 0.75, 1.0)
"""Of an image's tokens, likewise; their number, and so the cost, falls less steeply than that of pixels."""

TUNED, TUNED_SHARES = (0.75, 1.0), (0.5, 0.5)
"""Both where the first layers do not learn, so in fine-tuning, and what of the cost is spent on each.

With published weights, smaller images cost more accuracy than the passes brought that they pay for
(docs/lean.md#fine-tuning).
"""

SMALLEST, STEP = 12, 8
"""Pixels: the smallest side shown, and what the others are multiples of."""

LARGE, LARGE_STEP = 192, 32
"""Pixels: from which side on sizes are multiples of more, as networks for such images reduce them 32-fold.

Of another side the last maps are rounded up, so that 168 pixels of 224 take 9 % more arithmetic in a ResNet than their
share of the pixels, which is what they cost; or rounded down, so that a ConvNeXt does not see the edges.
"""

LEARNT, SKIPPED, ENDING = 0.1, 0.7, 0.125
"""The loss below which an example is learnt, as the model gives its class 90 %; the share of such examples that is
skipped; and the share of the run, at its end, in which nothing is.

Such examples have next to no gradient, and how many there are depends on the data. By the mean loss, as in InfoBatch,
more than half of all examples are easy on every set, and one that was far from learnt lost accuracy.
"""


@register_method
@dataclass(frozen=True)
class LeanMethod(Method):
    """The accuracy of full training for a share of its cost: examples small at first, fewer of those that are learnt.

    Small examples are cheap, so that a third of the cost pays for about as many passes over the data as full training
    makes. A smaller budget spends more of itself on them. What is learnt is skipped most of the time, which pays for
    more passes. Behind `freezing`, in fine-tuning, examples are not shown as small. Where a model takes one size only,
    it drops tokens; where it does not take that either, it shows all whole, and the budget pays for fewer passes.
    """

    name: ClassVar[str] = "lean"
    after_mixing: ClassVar[bool] = True
    default_budget: ClassVar[float | None] = 0.5

    @property
    def expected_share(self) -> float:
        return 1.0  # what an epoch costs follows from the budget, which is kept

    def offers(self, side: int) -> tuple[tuple[Form, ...], ...]:
        return tuple(way.forms for way in ways(side, 1.0))

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        budget = moment.budget or 1.0
        if draft.is_untouched:
            draft = skip_learnt(draft, ledger, moment, rng)
        way = next((way for way in self._fitting(draft, moment, budget) if set(way.forms) <= set(moment.offer)), None)
        return (draft if way is None else way.show(draft, moment)), state

    @staticmethod
    def _fitting(draft: Draft, moment: Moment, budget: float) -> tuple[Growth, ...]:
        """The ways that suit the draft: the last map of the smallest composites would not keep two images apart."""
        if not moment.offer:
            return ()
        if all(group.form.value(Learning.name) < 1 for group in draft.groups):
            return tuned_ways(moment.side)
        found = ways(moment.side, budget)
        return found[1:] if any(group.form.constituents > 1 for group in draft.groups) else found


def skip_learnt(draft: Draft, ledger: Ledger, moment: Moment, rng: torch.Generator) -> Draft:
    """Fewer of the examples that are learnt, unless the epoch reaches into the end of the run."""
    loss = at(ledger["loss"].cpu(), draft.index)  # of an example that was never seen it is not a number
    if not moment.ends_before(1.0 - ENDING) or not bool(loss.isfinite().any()):
        return draft
    return draft.skip(loss < LEARNT, SKIPPED, rng)


def shares(budget: float) -> tuple[float, float, float, float]:
    """Of the run's cost, what is spent in each part: the smaller the budget, the more on small examples.

    Chosen on held-out data: docs/lean.md.
    """
    small = 0.25 - 0.2 * min(1.0, budget)
    return small, small, 0.4, 0.6 - 2 * small


def ways(side: int, budget: float) -> tuple[Growth, ...]:
    """How images of so many pixels a side may be shown, in the order in which a model is asked.

    A model that does not take the smallest size is shown the next one in its place; one that takes no size but its
    own sees some of its tokens.
    """
    spent, scales = shares(budget), _scales(SIDES, side)
    smallest = min(scales.count(scales[0]), len(scales) - 1)  # how many parts have that size
    larger = (sum(spent[: smallest + 1]), *spent[smallest + 1 :])
    return (
        Growth(Shrunk.name, scales, spent),
        Growth(Shrunk.name, scales[smallest:], larger),
        Growth(Tokens.name, TOKENS, spent),
    )


def tuned_ways(side: int) -> tuple[Growth, ...]:
    """The same in fine-tuning; what a model takes of `ways` holds these forms."""
    return (
        Growth(Shrunk.name, _scales(TUNED, side), TUNED_SHARES),
        Growth(Tokens.name, TUNED, TUNED_SHARES),
    )


def _scales(values: tuple[float, ...], side: int) -> tuple[float, ...]:
    """Shares of a side such that each makes a good number of pixels; as they are, where there are no pixels."""
    return (*(_pixels(value, side) / side if side else value for value in values[:-1]), 1.0)


def _pixels(value: float, side: int) -> int:
    """The nearest good number of pixels; of two, the smaller one."""
    step = LARGE_STEP if side >= LARGE else STEP
    return min(side, SMALLEST if value * side <= SMALLEST else math.ceil(value * side / step - 0.5) * step)

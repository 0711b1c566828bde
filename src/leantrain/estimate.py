"""What a run is going to cost, judged by its drafts before anything is known of the examples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import torch

from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods import Method, Moment, NeedsScores, ScoresGiven, chain
from leantrain.plan import Plan
from leantrain.rng import generator

MOMENTS = 20
"""At how many moments of a run it is judged, as a method may change with the run's progress."""


def expected_cost(
    method: Method, *, examples: int, epochs: int, batch_size: int, side: int = 0, budget: float | None = None
) -> float:
    """What a run costs at most, in epochs of plain training, scores included.

    Judged on a small set, as shares are the same for any. Where a method decides inside the epoch, about what it costs.

    Args:
        side: pixels along an image's shorter side, for methods that show images smaller.
    """
    if budget is not None:
        return budget * epochs
    whole = chain(method)
    by_form = expected_costs(method, examples=examples, epochs=epochs, batch_size=batch_size, side=side)
    return whole.scores_cost + whole.selection_cost(epochs) + math.fsum(by_form.values())


def expected_costs(
    method: Method,
    *,
    examples: int,
    epochs: int,
    batch_size: int,
    side: int = 0,
    budget: float | None = None,
    progress: float = 0.0,
    offer: tuple[Form, ...] = (),
    fitted: Callable[[Plan], Plan] = lambda plan: plan,
) -> dict[Form, float]:
    """What training costs in each form from some progress on, in epochs of plain training; judged in the same way.

    Args:
        offer: the way of showing that the model takes, of those that a method offers.
        fitted: gives a plan the nearest forms that the model takes.
    """
    whole = chain(method)
    small, moments = min(examples, 16 * batch_size), min(epochs, MOMENTS)
    total = math.inf if budget is None else budget * moments * small
    ledger, spent, by_form = Ledger(small), 0.0 if budget is None else progress * total, defaultdict[Form, float](float)
    states, views = whole.init_all(ledger), whole.views(ledger)
    for place, one in whole.having(NeedsScores):
        none = ScoresGiven(0.0, 0.0, reused=True)
        zeros = torch.zeros(small)
        states[place], _ = one.use_scores(states[place], views[place], zeros, zeros.long(), none)
    number = 0 if budget is not None else round(progress * moments)
    while True:
        progress = number / moments if budget is None else spent / total
        if progress >= whole.end - 1e-6 or total - spent < 1:
            return {form: cost * epochs / (moments * small) for form, cost in by_form.items()}
        moment = Moment(number, progress, moments, batch_size, side, total - spent, budget, offer)
        rng = generator(0, "expected", number)
        draft, states = whole.draft_all(states, ledger, moment, rng)
        plan = fitted(draft.cut(number, batch_size, rng))
        plan = plan.truncated(total - spent) if budget is not None and plan.thinning is None else plan
        costs = plan.costs()
        for place, form in enumerate(plan.forms):
            by_form[form] += float(costs[plan.form_of == place].sum())
        spent += plan.cost
        number += 1

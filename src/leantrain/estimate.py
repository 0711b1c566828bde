"""What a run is going to cost, judged by its drafts before anything is known of the examples."""

from __future__ import annotations

import torch

from leantrain.ledger import Ledger
from leantrain.methods import Method, Moment, NeedsScores, ScoresGiven, chain
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
    small, moments = min(examples, 16 * batch_size), min(epochs, MOMENTS)
    ledger, total = Ledger(small), 0.0
    states, views = whole.init_all(ledger), whole.views(ledger)
    for place, one in whole.having(NeedsScores):
        none = ScoresGiven(0.0, 0.0, reused=True)
        zeros = torch.zeros(small)
        states[place], _ = one.use_scores(states[place], views[place], zeros, zeros.long(), none)
    for number in range(moments):
        if number / moments >= whole.end - 1e-9:
            break
        moment = Moment(number, number / moments, moments, batch_size, side)
        rng = generator(0, "expected", number)
        draft, states = whole.draft_all(states, ledger, moment, rng)
        total += draft.cut(number, batch_size, rng).cost / small
    return whole.scores_cost + whole.selection_cost(epochs) + epochs * total / moments

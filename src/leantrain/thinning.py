"""Thinning: batches made of what a method keeps of an epoch's candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from leantrain.batch import After, Batch
from leantrain.cost import training_cost

Keep = Callable[[Batch], tuple[Batch, float, dict[str, Any]]]
"""Of a batch of candidates: those kept, what looking at them cost, and what of the method's state that changed."""


def gather(
    candidates: Iterator[Batch],
    keep: Keep,
    batch_size: int,
    waiting: Batch | None,
    refill: bool = True,
    rank: int = 0,
    ranks: int = 1,
) -> Generator[Batch, None, tuple[float, dict[str, Any]] | None]:
    """Batches of `batch_size` kept examples, in the order in which they were kept.

    Half a batch is always held back, so that what is left at the end makes one batch or two of at least half the size:
    none so small that BatchNorm's statistics would suffer, and none of the kept is lost.

    Args:
        candidates: the epoch's batches of candidates, or those that are left of it after a resume.
        keep: chooses among them.
        batch_size: how many examples to train on at once.
        waiting: kept before a resume and not yet trained.
        refill: False trains on what is kept of every batch by itself, as many steps as there are batches; a single one
            waits for the next batch.
        rank: this process's number among `ranks`. What is kept stays with the rank that looked at it, so their parts of
            a batch are unequal; the batches are the same as those of a single process.
        ranks: how many processes train together.

    Returns:
        Where nothing was kept after the last batch: what looking cost since, and what of the state changed.
    """
    spent, state = 0.0, dict[str, Any]()

    def cut(count: int) -> Batch:
        """The first of those waiting as a batch; the others go on waiting."""
        nonlocal waiting, spent
        assert waiting is not None
        places = torch.arange(waiting.examples, device=waiting.index.device if waiting.owner is None else None)
        batch = waiting.pick(places[:count], rank)
        waiting = waiting.pick(places[count:], rank) if count < len(places) else None
        cost, spent = training_cost(count, batch.form.size) + spent, 0.0
        return dataclasses.replace(batch, total=count / ranks, cost=cost, after=After(waiting, dict(state)))

    def rest() -> Iterator[Batch]:
        """All that waits, as one batch or two."""
        if waiting is not None and waiting.examples > batch_size:
            yield cut((waiting.examples + 1) // 2)
        if waiting is not None:
            yield cut(waiting.examples)

    for candidate in candidates:
        if waiting is not None and waiting.form != candidate.form:  # a batch has one form
            yield from rest()
        kept, cost, changed = keep(candidate)
        spent += cost
        state.update(changed)
        kept = kept if waiting is None else waiting.joined(kept)
        waiting = dataclasses.replace(kept, position=candidate.position) if kept.examples else None
        if waiting is None:
            continue
        if refill and waiting.examples >= batch_size + batch_size // 2:
            yield cut(batch_size)
        elif not refill and waiting.examples >= min(2, batch_size):
            yield cut(waiting.examples)
    if waiting is not None:
        yield from rest()
        return None
    return spent, state

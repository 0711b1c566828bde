"""The plan: what one epoch will train on, batch by batch, made before the epoch starts.

So its length and its cost are known before the first step, the same seed gives the same plan on every rank, and a run
that was cut goes on at the batch where it stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leantrain.cost import scoring_cost, training_cost
from leantrain.forms import WHOLE, Form


class Thinning(NamedTuple):
    """That the examples of a plan are candidates, of which the method trains on some when their turn comes.

    Attributes:
        keep: the share of them that is expected to be kept; what is really kept shows in the run's cost.
        scored: whether the model looks at every candidate first, which costs a forward pass.
        refill: whether full batches are gathered from what is kept; else what is kept of a batch trains by itself.
    """

    keep: float
    scored: bool
    refill: bool = True

    @property
    def cost(self) -> float:
        """What a candidate is expected to cost, of training on it."""
        return training_cost(self.keep) + (scoring_cost(1) if self.scored else 0.0)


@dataclasses.dataclass(frozen=True)
class PlannedBatch:
    """One batch as planned: its place in the epoch, its examples, their weights and their form."""

    position: int
    epoch: int
    index: Tensor
    weight: Tensor | None
    form: Form

    @property
    def inputs(self) -> int:
        return len(self.index) // self.form.constituents

    @property
    def cost(self) -> float:
        return training_cost(self.inputs, self.form.size)

    def owner(self, ranks: int) -> Tensor:
        """int64, which of several ranks trains on each of `index`; some have none where there are fewer inputs."""
        return shared_out(self.inputs, ranks).repeat(self.form.constituents)

    def __reduce__(self) -> tuple[Any, ...]:
        # As numpy on its way to a worker: a pickled slice of a tensor would move the whole plan into shared memory.
        weight = None if self.weight is None else self.weight.numpy()
        return _planned_batch, (self.position, self.epoch, self.index.numpy(), weight, self.form.parts)


def _planned_batch(
    position: int, epoch: int, index: Any, weight: Any, form: tuple[tuple[str, float], ...]
) -> PlannedBatch:
    weight = None if weight is None else torch.from_numpy(weight)
    return PlannedBatch(position, epoch, torch.from_numpy(index), weight, Form(form))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every batch of one epoch.

    Flat tensors rather than a list of batches, so that an epoch over millions of examples is a few allocations.

    Attributes:
        epoch: which epoch it plans.
        order: int32, which at millions of examples saves memory, the examples of all batches one after another; within
            a composite batch the first constituents of all inputs come first, then the second ones.
        offsets: int64, batch b holds `order[offsets[b]:offsets[b + 1]]`.
        form_of: int64, which of `forms` batch b has.
        forms: the forms that occur.
        weight: float32 beside `order`, or None where every example counts once.
        thinning: set where the examples are candidates only; the plan's cost is then the one expected.
    """

    epoch: int
    order: Tensor
    offsets: Tensor
    form_of: Tensor
    forms: tuple[Form, ...] = (WHOLE,)
    weight: Tensor | None = None
    thinning: Thinning | None = None

    def __len__(self) -> int:
        return len(self.form_of)

    def __getitem__(self, position: int) -> PlannedBatch:
        if not 0 <= position < len(self):
            raise IndexError(f"batch {position} of a plan of {len(self)}")
        return self._taken(position, int(self.offsets[position]), int(self.offsets[position + 1]))

    def _taken(self, position: int, start: int, stop: int) -> PlannedBatch:
        weight = None if self.weight is None else self.weight[start:stop]
        index, form = self.order[start:stop].long(), self.forms[int(self.form_of[position])]
        return PlannedBatch(position, self.epoch, index, weight, form)

    def stretches(self, start: int, examples: int) -> Iterator[PlannedBatch]:
        """Batches of one form that follow each other taken as one, up to so many examples; those from `start` on.

        Each has the position of its first batch, and `sizes` says how large they are. They are cut from the beginning
        of the plan, so that a run which goes on in the midst of one loads it as before; its batches before `start` have
        been trained.
        """
        offsets, form_of, first = self.offsets.tolist(), self.form_of.tolist(), 0
        while first < len(self):
            last, most = first + 1, offsets[first] + examples
            while last < len(self) and form_of[last] == form_of[first] and offsets[last + 1] <= most:
                last += 1
            if last > start:
                yield self._taken(first, offsets[first], offsets[last])
            first = last

    def sizes(self, first: int, examples: int) -> list[int]:
        """Of the batches from `first` on that hold so many examples together, how many each holds."""
        last = int(torch.searchsorted(self.offsets, self.offsets[first] + examples))
        sizes: list[int] = self.offsets[first : last + 1].diff().tolist()
        return sizes

    @property
    def examples(self) -> int:
        """How many examples the epoch trains on."""
        return len(self.order)

    def costs(self) -> Tensor:
        """float64, the cost of every batch."""
        constituents = torch.tensor([f.constituents for f in self.forms], dtype=torch.float64)[self.form_of]
        size = torch.tensor([f.size for f in self.forms], dtype=torch.float64)[self.form_of]
        each = training_cost(1) if self.thinning is None else self.thinning.cost
        return self.offsets.diff() / constituents * size * each

    @functools.cached_property
    def cost(self) -> float:
        return float(self.costs().sum())

    def truncated(self, cost: float) -> Plan:
        """The start of this plan that costs as near to `cost` as can be; at least one input, so that a run ends.

        A last batch that is cut shares its examples with the one before it, so that none is smaller than half a batch,
        which BatchNorm's statistics would suffer from. Where that one has another form, less than half a batch is left
        out. Composites are not cut, but taken by whole batches.
        """
        costs = self.costs()
        ends = costs.cumsum(0)
        fits = int((ends <= cost + 1e-6).sum())
        if fits == len(self):
            return self
        room = max(0.0, cost - (float(ends[fits - 1]) if fits else 0.0))
        size = int(self.offsets[fits + 1] - self.offsets[fits])
        extra = max(0 if fits else 1, round(room / float(costs[fits]) * size))
        if self.forms[int(self.form_of[fits])].constituents > 1:
            return self.first(fits + (2 * extra >= size))
        shared = fits > 0 and bool(self.form_of[fits - 1] == self.form_of[fits])
        if extra == size or extra == 0 or (fits and not shared and 2 * extra < size):
            return self.first(fits + (extra == size))
        cut = self.first(fits + 1)
        start, stop = int(self.offsets[fits]), int(self.offsets[fits]) + extra
        if shared:
            before = int(self.offsets[fits - 1])
            start = before + (stop - before + 1) // 2
        offsets = torch.cat([cut.offsets[:-2], torch.tensor([start, stop])])
        weight = None if cut.weight is None else cut.weight[:stop].clone()
        return dataclasses.replace(cut, order=cut.order[:stop].clone(), offsets=offsets, weight=weight)

    def first(self, batches: int) -> Plan:
        """The first batches of this plan; at least one."""
        keep = max(1, min(batches, len(self)))
        if keep == len(self):
            return self
        stop = int(self.offsets[keep])
        return dataclasses.replace(
            self,
            order=self.order[:stop].clone(),
            offsets=self.offsets[: keep + 1].clone(),
            form_of=self.form_of[:keep].clone(),
            weight=None if self.weight is None else self.weight[:stop].clone(),
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "order": self.order,
            "offsets": self.offsets,
            "form_of": self.form_of,
            "forms": [[list(part) for part in form.parts] for form in self.forms],
            "weight": self.weight,
            "thinning": None if self.thinning is None else list(self.thinning),
        }

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> Plan:
        forms = tuple(Form(tuple((name, value) for name, value in parts)) for parts in state["forms"])
        thinning = None if state.get("thinning") is None else Thinning(*state["thinning"])
        return Plan(**{**state, "forms": forms, "thinning": thinning})


@dataclasses.dataclass(frozen=True)
class Groups:
    """Examples to be batched together in one form: int32 indices (constituents, inputs), and weights alike.

    Indices of examples that have an input of their own may be a vector.
    """

    index: Tensor
    form: Form = WHOLE
    weight: Tensor | None = None
    batch_size: float | None = None  # inputs per batch on average, where it differs from the run's

    def take(self, places: Tensor) -> Groups:
        """The examples at these places of single examples, in the shape of the places."""
        weight = None if self.weight is None else at(self.weight, places)
        return dataclasses.replace(self, index=at(self.index, places), weight=weight)


def at(values: Tensor, places: Tensor) -> Tensor:
    """The values at these places, in the shape of the places: `values[places]`, four times as fast for millions."""
    return values.index_select(0, places.reshape(-1)).view(places.shape)


def make_plan(epoch: int, groups: Sequence[Groups], batch_size: int, rng: torch.Generator) -> Plan:
    """Shuffle each kind of group into batches of near-equal size and the batches of all kinds into one order.

    The number of batches of a kind is ⌈inputs / batch_size⌉, and their sizes differ by one at most: no short last
    batch that would weigh its examples more than the others, and none of a single input beside full ones.
    """
    groups = [g for g in groups if g.index.numel()]
    if not groups:
        raise ValueError("a plan needs at least one example")
    inputs_of = [_near_equal(g.index.shape[-1], g.batch_size or batch_size) for g in groups]
    kinds = torch.cat([torch.full_like(inputs, kind) for kind, inputs in enumerate(inputs_of)])
    inputs = torch.cat(inputs_of)
    constituents = torch.tensor([g.form.constituents for g in groups])
    # With one kind its batches are in random order already.
    perm = torch.randperm(len(kinds), generator=rng) if len(groups) > 1 else torch.arange(len(kinds))
    kinds, inputs = kinds[perm], inputs[perm]
    sizes = inputs * constituents[kinds]
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    if len(groups) == 1 and groups[0].form.constituents == 1:  # the usual case, without a place for every example
        group, shuffle = groups[0], torch.randperm(len(groups[0].index.view(-1)), generator=rng, dtype=torch.int32)
        shuffled = None if group.weight is None else at(group.weight.view(-1), shuffle)
        return Plan(epoch, at(group.index.view(-1).int(), shuffle), offsets, kinds, (group.form,), shuffled)
    order = torch.empty(int(offsets[-1]), dtype=torch.int32)
    weight = torch.ones(len(order)) if any(g.weight is not None for g in groups) else None
    for kind, group in enumerate(groups):
        index = group.index.reshape(group.form.constituents, -1)
        shuffle = torch.randperm(index.shape[1], generator=rng, dtype=torch.int32)
        mine = kinds == kind
        here, starts = inputs[mine], offsets[:-1][mine]
        place = torch.repeat_interleave((starts - (here.cumsum(0) - here)).int(), here)
        place += torch.arange(index.shape[1], dtype=torch.int32)
        for j in range(group.form.constituents):
            order[place] = at(index[j].int(), shuffle)
            if weight is not None and group.weight is not None:
                weight[place] = at(group.weight.reshape(index.shape)[j], shuffle)
            if j + 1 < group.form.constituents:
                place += torch.repeat_interleave(here.int(), here)
    return Plan(epoch, order, offsets, kinds, tuple(g.form for g in groups), weight)


def count_batches(inputs: int, batch_size: float) -> int:
    """How many batches that many inputs make."""
    return max(1, math.ceil(inputs / batch_size - 1e-9)) if inputs else 0


def shared_out(inputs: int, ranks: int) -> Tensor:
    """int64, which rank gets each input: in their order, and near-equal numbers of them."""
    if ranks == 1:
        return torch.zeros(inputs, dtype=torch.int64)
    sizes = torch.full((ranks,), inputs // ranks, dtype=torch.int64)
    sizes[: inputs % ranks] += 1
    return torch.repeat_interleave(torch.arange(ranks), sizes)


def _near_equal(inputs: int, batch_size: float) -> Tensor:
    """⌈inputs / batch_size⌉ sizes that add up to `inputs` and differ by one at most."""
    batches = count_batches(inputs, batch_size)
    sizes = torch.full((batches,), inputs // batches, dtype=torch.int64)
    sizes[: inputs % batches] += 1
    return sizes

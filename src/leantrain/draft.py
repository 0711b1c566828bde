"""The draft: an epoch before it is cut into batches. Each method of a chain turns one draft into the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leantrain.cost import training_cost
from leantrain.errors import LeanError
from leantrain.forms import FORMS
from leantrain.plan import Groups, Plan, Thinning, count_batches, make_plan


class Stage(NamedTuple):
    """A part of an epoch that is shown in one form.

    Attributes:
        cost: what is spent in it before the next stage begins, in examples of plain training.
        value: how far the form goes in it, such as the side as a share of the full one.
    """

    cost: float
    value: float


@dataclasses.dataclass(frozen=True)
class Draft:
    """Groups of examples with their form and weight. No example stands in it twice.

    Every change gives a new draft. Choosing and weighing is done by place in `index`, and only while every example has
    an input of its own.

    Attributes:
        groups: what is trained on; one form each.
        thinning: set where the examples are candidates, of which some are trained on when their turn comes.
        batches: the share of its batches that is trained on.
        stages: by kind of form, how far it goes in the epoch's first batches and in those that follow.
    """

    groups: tuple[Groups, ...]
    thinning: Thinning | None = None
    batches: float = 1.0
    stages: tuple[tuple[str, tuple[Stage, ...]], ...] = ()

    @staticmethod
    def everything(length: int) -> Draft:
        """What an epoch starts as: all examples, whole, with weight one."""
        return Draft((Groups(torch.arange(length, dtype=torch.int32)),))

    @property
    def index(self) -> Tensor:
        """int32, the examples of all groups, one after another."""
        parts = [group.index.reshape(-1) for group in self.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __len__(self) -> int:
        """How many examples it holds."""
        return sum(group.index.numel() for group in self.groups)

    @property
    def cost(self) -> float:
        """What training on it is expected to cost, in examples of plain training; skipped batches are not counted.

        As if its stages were whole, for which a plan must be cut first.
        """
        whole = sum(training_cost(self._inputs(group), group.form.size) for group in self.groups)
        each = 1.0 if self.thinning is None else self.thinning.cost
        return whole * self.batches * each

    @property
    def is_untouched(self) -> bool:
        """Whether no method has weighed or mixed its examples, or made them candidates."""
        clean = all(group.weight is None and group.form.constituents == 1 for group in self.groups)
        return clean and self.thinning is None

    def count_batches(self, batch_size: int) -> int:
        """How many batches it is cut into."""
        sizes = [(self._inputs(group), group.batch_size or batch_size) for group in self.groups]
        return sum(count_batches(inputs, size) for inputs, size in sizes)

    def take(self, places: Tensor) -> Draft:
        """These examples only, given by their places in `index`, in this order within each group."""
        self._check_single()
        if not len(places):
            raise LeanError("a method left no example to train on; an epoch needs at least one.")
        if len(self.groups) == 1:
            return self._with([self.groups[0].take(places)])
        groups, start = [], 0
        for group in self.groups:
            stop = start + group.index.numel()
            groups.append(group.take(places[(places >= start) & (places < stop)] - start))
            start = stop
        return self._with(groups)

    def keep(self, mask: Tensor) -> Draft:
        """The examples that the mask, one bool per place in `index`, says."""
        return self if bool(mask.all()) else self.take(mask.nonzero().squeeze(1))

    def weigh(self, weight: Tensor) -> Draft:
        """Every example's weight times its place's; what a loss is divided by stays the number of inputs."""
        self._check_single()
        parts: tuple[Tensor, ...] = weight.split_with_sizes([group.index.numel() for group in self.groups])
        return self._with(
            [
                dataclasses.replace(group, weight=part if group.weight is None else group.weight * part)
                for group, part in zip(self.groups, parts, strict=True)
            ]
        )

    def skip(self, mask: Tensor, share: float, rng: torch.Generator) -> Draft:
        """Without a random share of the examples that the mask says; the rest of them count for these too.

        So the expected gradient stays that of all. Where nothing would be left, everything stays.
        """
        kept = ~(mask & (torch.rand(len(mask), generator=rng) < share))
        if not bool(kept.any()):
            return self
        return self.weigh(torch.where(mask, 1.0 / (1.0 - share), 1.0)).keep(kept)

    def show(self, name: str, value: float) -> Draft:
        """All of it in that kind of form too, for example `show("shrunk", 0.5)`."""
        if value == 1:
            return self
        return self._with([dataclasses.replace(group, form=group.form.also(name, value)) for group in self.groups])

    def show_stages(self, name: str, stages: Sequence[Stage]) -> Draft:
        """Its batches in that kind of form, going as far as each stage says; the last stage takes what is left.

        So a form can change inside an epoch, where the batches of a draft are otherwise shown in any order.
        """
        if len(stages) == 1:
            return self.show(name, stages[0].value)
        return dataclasses.replace(self, stages=(*self.stages, (name, tuple(stages))))

    def regroup(self, groups: Sequence[Groups]) -> Draft:
        """The same examples in other groups, as a method makes that mixes some of them."""
        return self._with(groups)

    def thin(self, thinning: Thinning) -> Draft:
        """All of it as candidates, thinned inside the epoch."""
        return dataclasses.replace(self, thinning=thinning)

    def smaller_batches(self, share: float, batch_size: int) -> Draft:
        """Its batches with that share of the inputs, so that fewer examples make as many steps; never one by one.

        Args:
            batch_size: the run's.
        """
        sizes = [group.batch_size or batch_size for group in self.groups]
        pairs = zip(self.groups, sizes, strict=True)
        return self._with(
            [dataclasses.replace(group, batch_size=max(share * size, min(2, size))) for group, size in pairs]
        )

    def skip_batches(self, share: float) -> Draft:
        """A random share of its batches left out."""
        return dataclasses.replace(self, batches=self.batches * (1.0 - share))

    def cut(self, epoch: int, batch_size: int, rng: torch.Generator) -> Plan:
        """The plan: shuffled, and cut into batches of one form each."""
        plan = make_plan(epoch, self.groups, batch_size, rng)
        if self.thinning is not None:
            if len(set(plan.forms)) > 1:
                raise LeanError(
                    f"candidates are shown in {len(set(plan.forms))} forms in one epoch, but those kept of several "
                    "batches train together; thin examples of one form only."
                )
            plan = dataclasses.replace(plan, thinning=self.thinning)
        # Batches are in random order, so the first ones are random ones.
        plan = plan if self.batches == 1.0 else plan.first(round(self.batches * len(plan)))
        for name, stages in self.stages:
            plan = _staged(plan, name, stages)
        return plan

    def _with(self, groups: Sequence[Groups]) -> Draft:
        return dataclasses.replace(self, groups=tuple(group for group in groups if group.index.numel()))

    def _check_single(self) -> None:
        if any(group.form.constituents > 1 for group in self.groups):
            raise LeanError("single examples cannot be chosen or weighed once they are mixed; do that before mixing.")

    @staticmethod
    def _inputs(group: Groups) -> int:
        return group.index.shape[-1]


def _staged(plan: Plan, name: str, stages: Sequence[Stage]) -> Plan:
    """The plan with its batches shown in stages, each of the number of batches that comes nearest to its cost."""
    costs, values, start = plan.costs(), torch.ones(len(plan), dtype=torch.float64), 0
    for stage in stages:
        here = costs[start:] * FORMS[name].size(stage.value)
        last = stage is stages[-1]
        stop = len(plan) if last else start + int((here.cumsum(0) - here / 2 <= stage.cost + 1e-6).sum())
        values[start:stop] = stage.value
        start = stop
    pairs = torch.stack([plan.form_of.double(), values], dim=1)
    found, form_of = torch.unique(pairs, dim=0, return_inverse=True)
    forms = [(plan.forms[int(form)], value) for form, value in found.tolist()]
    return dataclasses.replace(
        plan,
        forms=tuple(form if value == 1 else form.also(name, value) for form, value in forms),
        form_of=form_of,
    )

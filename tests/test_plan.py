"""A plan says before the epoch starts what it will train on, and every method's plan is made of the same parts."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leantrain import mixing, shrinking  # noqa: F401  the built-in forms
from leantrain.forms import Form
from leantrain.plan import Groups, Plan, make_plan
from leantrain.rng import generator


def whole_plan(epoch: int, index: torch.Tensor, batch_size: int, rng: torch.Generator) -> Plan:
    return make_plan(epoch, [Groups(index)], batch_size, rng)


def plan_of(plain: int, pairs: int, batch_size: int, k: int = 2, seed: int = 0) -> Plan:
    index = torch.randperm(plain + k * pairs, generator=generator(seed, "test"))
    groups = [Groups(index[:plain]), Groups(index[plain:].view(k, pairs), Form.of(composite=k))]
    return make_plan(3, groups, batch_size, generator(seed, "plan"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(0, 60), st.integers(1, 32), st.integers(2, 4))
def test_every_example_is_planned_exactly_once(plain: int, pairs: int, batch_size: int, k: int) -> None:
    if plain + pairs == 0:
        return
    plan = plan_of(plain, pairs, batch_size, k)
    assert plan.order.sort().values.tolist() == list(range(plain + k * pairs))
    assert torch.cat([plan[b].index for b in range(len(plan))]).equal(plan.order.long())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(0, 60), st.integers(1, 32))
def test_length_is_known_before_the_epoch_and_batches_are_near_equal(plain: int, pairs: int, batch_size: int) -> None:
    if plain + pairs == 0:
        return
    plan = plan_of(plain, pairs, batch_size)
    assert len(plan) == math.ceil(plain / batch_size) + math.ceil(pairs / batch_size)
    for constituents in (1, 2):
        sizes = [b.inputs for b in map(plan.__getitem__, range(len(plan))) if b.form.constituents == constituents]
        assert not sizes or (max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1)


def test_composite_batches_keep_their_pairs_together() -> None:
    index = torch.arange(40).view(2, 20)  # i is paired with i + 20
    plan = make_plan(0, [Groups(index, Form.of(composite=2))], 6, generator(0))
    for batch in map(plan.__getitem__, range(len(plan))):
        first, second = batch.index.view(2, -1)
        assert (second - first).tolist() == [20] * batch.inputs


def test_plain_and_composite_batches_are_shuffled_together() -> None:
    plan = plan_of(plain=640, pairs=640, batch_size=32)
    kinds = [plan[b].form.constituents for b in range(len(plan))]
    assert kinds.count(1) == 20
    assert kinds.count(2) == 20
    assert kinds != sorted(kinds)
    assert kinds != sorted(kinds, reverse=True)


def test_same_seed_same_plan_other_seed_other_plan() -> None:
    assert plan_of(50, 20, 8, seed=1).order.equal(plan_of(50, 20, 8, seed=1).order)
    assert not plan_of(50, 20, 8, seed=1).order.equal(plan_of(50, 20, 8, seed=2).order)


def test_cost_counts_inputs_by_their_pixels_not_examples() -> None:
    shrunk = Groups(torch.arange(100, 180), Form.of(shrunk=0.5))
    pairs = Groups(torch.arange(40, 100).view(2, 30), Form.of(composite=2))
    plan = make_plan(0, [Groups(torch.arange(40)), pairs, shrunk], 10, generator(0))
    assert plan.cost == pytest.approx(40 + 30 + 80 * 0.25)
    assert plan.examples == 180
    assert sum(plan[b].cost for b in range(len(plan))) == pytest.approx(plan.cost)


def test_truncated_spends_what_is_left_to_the_example_and_at_least_one_batch() -> None:
    plan = whole_plan(0, torch.arange(100), 10, generator(0))
    assert plan.truncated(30).order.equal(plan.order[:30])
    cut = plan.truncated(34)
    assert cut.cost == 34 and cut.order.equal(plan.order[:34])
    assert cut.offsets.diff().tolist() == [10, 10, 7, 7]  # no batch so small that BatchNorm would suffer
    assert plan.truncated(3).offsets.diff().tolist() == [3]
    assert plan.truncated(1000) is plan
    assert plan.truncated(0.1).examples == plan.truncated(-4).examples == 1  # so that a run ends


def test_truncated_leaves_less_than_half_a_batch_out_where_the_form_has_just_changed() -> None:
    plan = whole_plan(0, torch.arange(40), 10, generator(0))
    plan = dataclasses.replace(plan, forms=(Form.of(shrunk=0.5), Form()), form_of=torch.tensor([0, 0, 1, 1]))
    assert plan.truncated(5 + 3).offsets.diff().tolist() == [10, 10]
    assert plan.truncated(5 + 6).offsets.diff().tolist() == [10, 10, 6]


def test_truncated_takes_composites_by_whole_batches() -> None:
    pairs = Groups(torch.arange(40, dtype=torch.int32).view(2, 20), Form.of(composite=2))
    plan = make_plan(0, [pairs], 5, generator(0))
    assert plan.truncated(12).cost == 10 and plan.truncated(13).cost == 15


def test_weights_stay_with_their_examples() -> None:
    index = torch.arange(64)
    plan = make_plan(0, [Groups(index, weight=index / 10), Groups(torch.arange(64, 96))], 8, generator(0))
    assert plan.weight is not None
    expected = torch.where(plan.order < 64, plan.order / 10, torch.ones(()))
    assert plan.weight.equal(expected)


def test_state_dict_round_trip() -> None:
    plan = plan_of(30, 12, 8)
    again = Plan.from_state_dict(plan.state_dict())
    assert again.order.equal(plan.order.long())
    assert again.forms == plan.forms
    assert [again[b].form for b in range(len(again))] == [plan[b].form for b in range(len(plan))]


def test_a_batch_on_its_way_to_a_worker_carries_only_itself() -> None:
    plan = whole_plan(0, torch.arange(1_000_000), 64, generator(0))
    sent = pickle.dumps(plan[5])
    assert len(sent) < 2000
    assert pickle.loads(sent).index.equal(plan[5].index)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(0, 60), st.integers(1, 32), st.integers(1, 200), st.data())
def test_stretches_hold_batches_of_one_form_in_their_order(
    plain: int, pairs: int, batch_size: int, examples: int, data: st.DataObject
) -> None:
    if plain + pairs == 0:
        return
    plan = plan_of(plain, pairs, batch_size)
    position = 0
    for stretch in plan.stretches(0, examples):
        sizes = plan.sizes(stretch.position, len(stretch.index))
        batches = [plan[stretch.position + number] for number in range(len(sizes))]
        assert stretch.position == position and sizes == [len(batch.index) for batch in batches]
        assert torch.cat([batch.index for batch in batches]).equal(stretch.index)
        assert {batch.form for batch in batches} == {stretch.form}
        assert len(batches) == 1 or len(stretch.index) <= examples
        position += len(batches)
        if position < len(plan):  # as long as can be
            after = plan[position]
            assert after.form != stretch.form or len(stretch.index) + len(after.index) > examples
    assert position == len(plan)
    start = data.draw(st.integers(0, len(plan) - 1))  # a run that goes on there loads what it would have loaded
    places = [stretch.position for stretch in plan.stretches(0, examples)]
    later = [stretch.position for stretch in plan.stretches(start, examples)]
    assert later == places[-len(later) :] and later[0] <= start and all(place > start for place in later[1:])


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        whole_plan(0, torch.arange(0), 8, generator(0))

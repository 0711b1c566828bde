"""Methods that decide inside the epoch: what is kept, what a step trains on, and what looking costs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from drafting import Planner
from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.forms import WHOLE
from leantrain.ledger import Ledger
from leantrain.methods import Moment, Seen, SelectiveBackprop, parse_method
from leantrain.rng import generator
from leantrain.thinning import gather


class Named(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor
    version: torch.Tensor


def digits(n: int = 200) -> TensorDataset:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(pixels[:n] / 8 - 1).float().view(-1, 1, 8, 8), torch.tensor(labels[:n]))


def model_of(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout), nn.Flatten()]
        return nn.Sequential(*body, nn.Linear(128, 10))


def train(lean: leantrain.Lean, epochs: int, batch_size: int = 32, stop_after: int | None = None) -> list[Batch]:
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05)
    seen = []
    for _ in range(epochs):
        for batch in lean.loader(batch_size):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(batch)
            if stop_after is not None and len(seen) == stop_after:
                return seen
    return seen


def candidates(sizes: list[int]) -> list[Batch]:
    batches, start = [], 0
    for position, size in enumerate(sizes):
        index = torch.arange(start, start + size)
        data = (index.float().unsqueeze(1), index % 3)
        batches.append(Batch(data, index, None, WHOLE, 0, position, total=size, cost=float(size)))
        start += size
    return batches


# -- gathering ---------------------------------------------------------------------------------------------------------


def test_kept_examples_fill_whole_batches_and_none_is_lost() -> None:
    odd = [(b, b.take((b.index % 2 == 1).nonzero().squeeze(1))) for b in candidates([10] * 13)]
    kept = {id(b): k for b, k in odd}
    made = list(gather((b for b, _ in odd), lambda b: (kept[id(b)], 1.0, {}), 8, None))
    assert [len(b) for b in made] == [8, 8, 8, 8, 8, 8, 8, 5, 4]  # the last nine are cut in two, not into eight and one
    assert torch.cat([b.index for b in made]).tolist() == list(range(1, 130, 2))
    assert all(torch.equal(b.inputs.squeeze(1).long(), b.index) for b in made)  # inputs stay with their indices
    assert all(b.total == len(b) for b in made)


def test_each_batch_pays_for_the_candidates_looked_at_since_the_one_before() -> None:
    parts = candidates([10] * 6)
    made = list(gather(iter(parts), lambda b: (b.take(torch.arange(5)), 10 / 3, {}), 10, None))
    assert sum(b.cost for b in made) == pytest.approx(6 * 10 / 3 + 30)
    assert made[0].cost == pytest.approx(3 * 10 / 3 + 10)  # 15 kept before the first is cut: half a batch waits


def test_an_epoch_that_keeps_nothing_gives_no_batch_and_still_tells_its_cost() -> None:
    gathered = gather(iter(candidates([4, 4])), lambda b: (b.take(torch.arange(0)), 1.0, {"n": b.position}), 4, None)
    with pytest.raises(StopIteration) as ended:
        next(gathered)
    assert ended.value.value == (2.0, {"n": 1})


def test_batches_that_are_listed_before_they_are_trained_change_nothing_yet() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop", epochs=2)
    batches = list(lean.loader(32))
    assert not lean.epoch_done and lean.cost == 0 and len(lean.loader(32)) > 0
    for batch in batches:
        lean.loss(batch)
    assert lean.epoch_done and lean.epoch == 0


def test_the_first_batch_is_the_same_however_often_it_is_looked_at() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop", epochs=2)
    one, other = (next(iter(lean.loader(32))) for _ in range(2))
    assert torch.equal(one.index, other.index)


def test_nothing_kept_still_ends_the_epoch() -> None:
    class Nothing(SelectiveBackprop):
        def thin(self, state: Any, seen: Seen, draws: torch.Tensor) -> Any:
            return draws < 0, {"losses": state["losses"]}

    lean = leantrain.attach(model_of(), digits(), Nothing(), epochs=2)
    assert train(lean, 2) == []
    assert lean.finished and lean.progress == 1.0
    assert lean.cost == pytest.approx(2 * 200 / 3)


# -- Selective-Backprop ------------------------------------------------------------------------------------------------


def seen_of(losses: list[float]) -> Seen:
    return Seen(None, torch.zeros(len(losses), dtype=torch.int64), torch.tensor(losses))


def test_the_chance_is_the_share_of_recent_losses_no_higher_to_the_power_beta() -> None:
    method = parse_method("selective-backprop[beta=2,history=4]")
    state = {"losses": torch.tensor([9.0, 1.0, 2.0])}
    # Among the last four, [1, 2, 3, 0.5]: CDF(3) = 1, CDF(0.5) = 1/4.
    for draw, expected in ((0.06, [True, True]), (0.07, [True, False]), (0.999, [True, False])):
        kept, changed = method.thin(state, seen_of([3.0, 0.5]), torch.full((2,), draw))
        assert kept.tolist() == expected
    assert changed["losses"].tolist() == [1.0, 2.0, 3.0, 0.5]


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
def test_a_target_share_is_met(keep: float) -> None:
    method = parse_method(f"selective-backprop[keep={keep}]")
    rng = torch.Generator().manual_seed(0)
    state, kept = method.init(Ledger(1)), 0
    for _ in range(60):
        mask, changed = method.thin(
            state, seen_of(torch.rand(100, generator=rng).tolist()), torch.rand(100, generator=rng)
        )
        state, kept = {**state, **changed}, kept + int(mask.sum())
    assert kept / 6000 == pytest.approx(keep, abs=0.03)


def test_hard_examples_are_trained_more_often_and_all_forwards_are_paid_for() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop", epochs=6, seed=1)
    batches = train(lean, 6)
    used = lean.ledger["trained"]
    assert lean.examples == int(used.sum()) == sum(len(b) for b in batches)
    assert lean.cost == pytest.approx(6 * 200 / 3 + lean.examples)
    hard = lean.ledger["loss"] > lean.ledger["loss"].median()
    assert used[hard].float().mean() > 1.2 * used[~hard].float().mean()
    assert all(16 <= len(b) <= 32 for b in batches)
    assert all(b.index.unique().numel() == len(b) for b in batches)


def test_looking_leaves_batchnorm_dropout_and_generators_alone() -> None:
    model = model_of(dropout=0.5)
    model[1].eval()  # one that the user froze stays frozen
    lean = leantrain.attach(model, digits(), "selective-backprop", epochs=1)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    next(iter(lean.loader(32)))  # several batches were looked at to fill it
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert torch.equal(torch.get_rng_state(), random)


def test_stale_losses_save_the_forward_passes() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop[stale=2]", epochs=6)
    costs = []
    for _ in range(6):
        train(lean, 1)
        costs.append((lean.epoch_totals["cost"] - lean.epoch_totals["examples"], lean.plan.thinning is not None))
    looked = pytest.approx(200 / 3)
    assert costs == [(looked, True), (pytest.approx(0), False), (pytest.approx(0), False)] * 2


def test_stale_choice_is_by_the_known_losses() -> None:
    ledger = Ledger(1000)
    ledger.observe(torch.arange(1000), torch.arange(1000).float(), torch.zeros(1000, dtype=torch.bool))
    planner = Planner("selective-backprop[keep=0.2,stale=1]", ledger)
    plan = planner.plan(Moment(1, 0.1, 10, 50), generator(0))
    assert plan.examples == pytest.approx(200, abs=40)
    assert plan.order.float().mean() > 750  # u^4 has its mean at 5/6 of the ranks


def test_keep_and_beta_are_one_choice() -> None:
    assert parse_method("selective-backprop[beta=3]").kept == pytest.approx(0.25)  # type: ignore[attr-defined]
    with pytest.raises(LeanError, match="give one of them"):
        parse_method("selective-backprop[keep=0.5,beta=1]")


def test_a_share_that_cannot_pay_is_told_with_the_arithmetic() -> None:
    with pytest.warns(UserWarning, match=r"0\.33 .* 0\.80 .* together 1\.13; keep must be below 0\.67"):
        leantrain.attach(model_of(), digits(), "selective-backprop[keep=0.8]", epochs=2)
    assert parse_method("selective-backprop[keep=0.66]").warning(10) is None
    assert parse_method("selective-backprop[keep=0.8,stale=1]").warning(10) is None  # half the looks: 0.97


def test_noisy_labels_are_trained_most() -> None:
    data = digits(400)
    wrong = torch.arange(400) % 10 == 0
    labels = torch.where(wrong, (data.tensors[1] + 1) % 10, data.tensors[1])
    lean = leantrain.attach(model_of(), TensorDataset(data.tensors[0], labels), "selective-backprop", epochs=8)
    train(lean, 8)
    used = lean.ledger["trained"].float()
    assert used[wrong].mean() > 1.3 * used[~wrong].mean()  # what the card warns of


# -- AutoAssist --------------------------------------------------------------------------------------------------------


def test_autoassist_drops_before_any_forward() -> None:
    lean = leantrain.attach(model_of(), digits(), "autoassist", epochs=4)
    calls: list[int] = []
    lean.model.register_forward_hook(lambda module, given, out: calls.append(len(given[0])))
    train(lean, 4)
    assert sum(calls) == lean.examples == int(lean.cost)
    assert 0.1 * 800 < lean.examples < 800


def test_autoassist_learns_which_classes_are_hard() -> None:
    method = parse_method("autoassist")
    rng = torch.Generator().manual_seed(0)
    state = method.init(Ledger(64))
    inputs = torch.randn(64, 3, 8, 8, generator=rng)
    targets = torch.arange(64) % 2
    for _ in range(200):
        losses = torch.where(targets == 1, 2.0, 0.1) + 0.05 * torch.rand(64, generator=rng)
        state = {**state, **method.learn(state, Seen(method.condense(inputs), targets, losses, 2))}
    kept = torch.zeros(64)
    for _ in range(100):
        mask, _ = method.thin(state, Seen(method.condense(inputs), targets, None), torch.rand(64, generator=rng))
        kept += mask
    assert kept[targets == 1].mean() > 80
    assert 10 <= kept[targets == 0].mean() < 40  # the share that explores, and what the assistant is unsure of


def test_autoassist_needs_images() -> None:
    data = TensorDataset(torch.randn(20, 6), torch.zeros(20, dtype=torch.int64))
    lean = leantrain.attach(nn.Linear(6, 2), data, "autoassist", epochs=1)
    with pytest.raises(LeanError, match="looks at float images"):
        train(lean, 1, batch_size=8)


# -- in the loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["selective-backprop[keep=0.4]", "autoassist", "selective-backprop[stale=1]"])
@pytest.mark.parametrize("stop", [1, 3, 4, 7])
def test_a_cut_epoch_goes_on_bit_for_bit(name: str, stop: int) -> None:
    whole = leantrain.attach(model_of(), digits(), name, epochs=3, seed=2)
    train(whole, 3)

    cut = leantrain.attach(model_of(), digits(), name, epochs=3, seed=2)
    train(cut, 3, stop_after=stop)
    saved = copy.deepcopy({"model": cut.model.state_dict(), "lean": cut.state_dict()})
    resumed = leantrain.attach(model_of(), digits(), name, epochs=3, seed=2)
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["lean"])
    while not resumed.finished:
        train(resumed, 1)
    for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert resumed.cost == pytest.approx(whole.cost, abs=1e-6)
    assert resumed.examples == whole.examples
    for field in whole.ledger:
        assert torch.equal(resumed.ledger[field].nan_to_num(-1), whole.ledger[field].nan_to_num(-1)), field


def test_prepare_is_what_the_model_sees_when_it_is_asked() -> None:
    asked: list[float] = []
    lean = leantrain.attach(
        model_of(),
        digits(),
        "selective-backprop",
        epochs=1,
        prepare=lambda batch: batch.with_inputs(batch.inputs + 100),
    )
    lean.model.register_forward_hook(lambda module, given, out: asked.append(float(given[0].min())))
    batch = next(iter(lean.loader(32)))
    assert min(asked) > 50 and float(batch.inputs.min()) > 50


def test_looking_at_candidates_of_which_few_are_kept_is_paid_from_the_budget_too() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop[keep=0.02]", epochs=12, budget=0.25)
    while not lean.finished:
        train(lean, 1)
    assert lean.cost == pytest.approx(600, abs=2 * 32)


@pytest.mark.parametrize("name", ["selective-backprop", "selective-backprop[stale=1]", "autoassist"])
def test_a_budget_is_met_to_a_batch_or_two_and_progress_only_grows(name: str) -> None:
    lean = leantrain.attach(model_of(), digits(), name, epochs=12, budget=0.5)
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05)  # as losses fall, less is kept than expected
    progress = [0.0]
    while not lean.finished:
        for batch in lean.loader(32):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            progress.append(lean.progress)
    assert lean.cost == pytest.approx(1200, abs=48)  # what will be kept is guessed, what was spent is known
    assert progress == sorted(progress)
    assert progress[-1] == 1.0 > progress[-3]


@pytest.mark.parametrize("name", ["selective-backprop", "autoassist"])
def test_a_run_saved_between_epochs_goes_on_bit_for_bit_within_its_budget(name: str) -> None:
    whole = leantrain.attach(model_of(), digits(), name, epochs=6, budget=0.5, seed=2)
    cut = leantrain.attach(model_of(), digits(), name, epochs=6, budget=0.5, seed=2)
    train(cut, 2)
    resumed = leantrain.attach(model_of(), digits(), name, epochs=6, budget=0.5, seed=2)
    resumed.model.load_state_dict(copy.deepcopy(cut.model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(cut.state_dict()))
    for lean in (whole, resumed):
        while not lean.finished:
            train(lean, 1)
    assert resumed.cost == pytest.approx(whole.cost, abs=1e-6)
    for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_asking_for_the_length_after_a_resume_loses_nothing() -> None:
    for name in ("sgd", "selective-backprop"):
        cut = leantrain.attach(model_of(), digits(), name, epochs=2, seed=2)
        train(cut, 1, stop_after=2)
        resumed = leantrain.attach(model_of(), digits(), name, epochs=2, seed=2)
        resumed.load_state_dict(copy.deepcopy(cut.state_dict()))
        loader = resumed.loader(32)
        assert len(loader) > 0
        assert next(iter(loader)).epoch == 0


def test_bytes_that_the_loop_would_convert_are_told() -> None:
    data = TensorDataset(torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64))
    lean = leantrain.attach(model_of(), data, "selective-backprop", epochs=1)
    with pytest.raises(LeanError, match="give what the loop does to a batch as"):
        train(lean, 1, batch_size=8)


def test_named_tuples_wait_in_a_checkpoint_that_loads_safely(tmp_path: Path) -> None:
    def collate(items: list[Any]) -> Named:
        return Named(torch.stack([x for x, _ in items]), torch.stack([y for _, y in items]), torch.tensor(7))

    def attach() -> leantrain.Lean:
        return leantrain.attach(model_of(), digits(), "selective-backprop", epochs=2, seed=2, collate=collate)

    whole, cut, resumed = attach(), attach(), attach()
    train(whole, 2)
    train(cut, 2, stop_after=2)
    assert cut.state_dict()["leftover"] is not None
    torch.save({"model": cut.model.state_dict(), "lean": cut.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["lean"])
    while not resumed.finished:
        train(resumed, 1)
    assert torch.equal(resumed.model[0].weight, whole.model[0].weight)


def test_columns_of_names_stay_with_their_examples() -> None:
    data = digits()
    items = [{"image": x, "label": int(y), "file": f"{i}.png"} for i, (x, y) in enumerate(data)]
    lean = leantrain.attach(model_of(), items, "selective-backprop", epochs=1)
    batches = train(lean, 1)
    assert sum(len(b) for b in batches) > 50
    for batch in batches:
        assert batch.data["file"] == [f"{i}.png" for i in batch.index.tolist()]
        for part in batch.chunks(3):
            assert part.data["file"] == [f"{i}.png" for i in part.index.tolist()]


def test_accumulation_pays_once_and_keeps_what_waits() -> None:
    whole = leantrain.attach(model_of(), digits(), "selective-backprop", epochs=1, seed=2)
    train(whole, 1)
    parts = leantrain.attach(model_of(), digits(), "selective-backprop", epochs=1, seed=2)
    optimizer = torch.optim.SGD(parts.model.parameters(), lr=0.05)
    for batch in parts.loader(32):
        for part in batch.chunks(4):
            parts.loss(part).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert parts.finished
    assert parts.examples == pytest.approx(whole.examples, abs=8)  # BatchNorm sees parts, so losses differ a little
    assert parts.cost == pytest.approx(200 / 3 + parts.examples)


# -- per batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "batch_size"), [(0.5, 32), (0.3, 8), (0.26, 32)])
def test_random_backprop_per_batch_makes_as_many_steps_of_fewer_examples(keep: float, batch_size: int) -> None:
    moment = Moment(1, 0.1, 10, batch_size)
    plain, refilled, kept = (
        Planner(method, Ledger(1000)).plan(moment, generator(0))
        for method in ("plain", f"random-backprop[keep={keep}]", f"random-backprop[keep={keep},per_batch=true]")
    )
    assert len(kept) == len(plain) > len(refilled)
    assert kept.examples == refilled.examples == round(1000 * keep)
    sizes = kept.offsets.diff()
    assert int(sizes.max() - sizes.min()) <= 1


def test_selective_backprop_per_batch_trains_on_what_is_kept_of_each_batch() -> None:
    lean = leantrain.attach(model_of(), digits(), "selective-backprop[per_batch=true]", epochs=3)
    asked: list[int] = []
    lean.model.register_forward_hook(lambda module, given, out: asked.append(0 if module.training else len(given[0])))
    assert len(lean.loader(32)) == 7
    batches = train(lean, 3)
    assert len(batches) == 21  # a step for every batch that was looked at
    assert [count > 0 for count in asked] == [True, False] * 21
    assert all(batch.index.unique().numel() == len(batch) for batch in batches)
    assert lean.cost == pytest.approx(3 * 200 / 3 + lean.examples)
    assert 0.3 < lean.examples / 600 < 0.7


def test_a_single_kept_example_waits_for_the_next_batch() -> None:
    parts = candidates([4, 4, 4])
    counts = iter([1, 3, 1])
    made = list(gather(iter(parts), lambda b: (b.take(torch.arange(next(counts))), 1.0, {}), 4, None, refill=False))
    assert [batch.index.tolist() for batch in made] == [[0, 4, 5, 6], [8]]
    assert [batch.cost for batch in made] == [2.0 + 4.0, 1.0 + 1.0]

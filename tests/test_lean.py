"""In somebody's own loop: attach, loader, loss, progress, state_dict."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, default_collate

import leantrain
from leantrain.errors import LeanError, LeanWarning
from leantrain.methods import METHODS


def small_set(n: int = 60, seed: int = 0) -> TensorDataset:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=rng)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def model_of(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def train(lean: leantrain.Lean, model: nn.Module, epochs: int, batch_size: int = 16, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    loader = lean.loader(batch_size, **options)
    for _ in range(epochs):
        for batch in loader:
            loss = lean.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def test_plain_training_is_exactly_the_loop_it_replaces() -> None:
    data, model, plain = small_set(), model_of(), model_of()
    lean = leantrain.attach(model, data, epochs=2, seed=3)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain)]
    losses, expected = [], []
    for _ in range(2):
        for batch in lean.loader(16):
            x, y = data[batch.index]
            loss = lean.loss(batch)
            same = F.cross_entropy(plain(x), y)
            for one, optimizer in zip((loss, same), optimizers, strict=True):
                one.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            expected.append(same.item())
    assert losses == pytest.approx(expected, abs=1e-6)


def test_the_ledger_holds_every_example_s_own_clean_loss() -> None:
    data, model = small_set(), model_of()
    lean = leantrain.attach(model, data, epochs=1, label_smoothing=0.2)
    for batch in lean.loader(16):
        lean.loss(batch)
    x, y = data.tensors
    torch.testing.assert_close(lean.ledger["loss"], F.cross_entropy(model(x), y, reduction="none").detach())
    assert lean.ledger["correct"].equal(model(x).argmax(1) == y)


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_stay_with_their_examples_under_prefetch(workers: int) -> None:
    data, model = small_set(50), model_of()
    lean = leantrain.attach(model, data, epochs=3)
    loader = lean.loader(8, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(3):
        seen = []
        for batch in loader:
            assert batch.inputs.equal(data.tensors[0][batch.index])
            assert batch.targets.equal(data.tensors[1][batch.index])
            lean.loss(batch)
            seen += batch.index.tolist()
        assert sorted(seen) == list(range(50))


def test_every_iter_is_a_new_epoch_and_its_length_is_known_before() -> None:
    lean = leantrain.attach(model_of(), small_set(50), epochs=2)
    loader = lean.loader(8)
    orders = []
    for epoch in range(2):
        assert len(loader) == 7
        batches = list(loader)
        assert len(batches) == 7
        assert {b.epoch for b in batches} == {epoch}
        for batch in batches:
            lean.loss(batch)
        orders.append(torch.cat([b.index for b in batches]).tolist())
    assert orders[0] != orders[1]


def test_asking_the_length_or_looking_at_a_batch_costs_no_epoch() -> None:
    lean = leantrain.attach(model_of(), small_set(50), epochs=2)
    for epoch in range(2):
        assert len(lean.loader(8)) == 7
        assert next(iter(lean.loader(8))).epoch == epoch
        assert len(lean.loader(8)) == 7
        for batch in lean.loader(8):
            lean.loss(batch)
        assert lean.epoch == epoch
    assert lean.finished


def test_the_length_is_that_of_the_epoch_that_follows_however_often_it_is_asked() -> None:
    lean = leantrain.attach(model_of(), small_set(200), "infobatch[prune=0.9]", epochs=4, seed=1)
    loader, lengths, told = lean.loader(16), [], []
    while not lean.finished:
        told.append([len(loader), len(loader), len(loader)])
        lengths.append(sum(1 for batch in loader if lean.loss(batch).isfinite()))
    assert len(set(lengths)) > 1, "the epochs are to differ"
    assert told == [[length] * 3 for length in lengths]


NEEDS_SCORES = {"el2n", "grand", "prune", "diet-random", "diet-sb"}
NEEDS_ITS_MODEL = {"token-dropping", "stochastic-depth"}
NEEDS_ITS_OPTIMISER = {"prune-train"}
WITHOUT_SCORES = sorted(set(METHODS) - NEEDS_SCORES - NEEDS_ITS_MODEL - NEEDS_ITS_OPTIMISER)


@pytest.mark.parametrize("name", WITHOUT_SCORES)
@pytest.mark.parametrize("budget", [None, 0.4])
def test_no_run_takes_more_steps_than_max_steps(name: str, budget: float | None) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(61, 1, 24, 24), torch.arange(61) % 2)
    layers = (nn.Conv2d(1, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    lean = leantrain.attach(nn.Sequential(*layers), data, name, epochs=4, budget=budget)
    with pytest.raises(LeanError, match="make the loader"):
        _ = lean.max_steps
    loader, bound, steps = lean.loader(8), lean.max_steps, 0
    while not lean.finished:
        steps += sum(1 for batch in loader if lean.loss(batch).isfinite())
    assert 0 < steps <= bound
    assert bound <= (2 if lean.budget is None else 5) * 4 * 8


def test_a_finished_run_gives_no_more_batches_and_says_so_once() -> None:
    lean = leantrain.attach(model_of(), small_set(50), epochs=2)
    loader = lean.loader(8)
    train(lean, lean.model, 2, batch_size=8)
    before = lean.state_dict()["ledger"]["trained"].clone()
    with pytest.warns(LeanWarning, match="finished, and its loader gives no more batches"):
        assert list(loader) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == []
    assert lean.ledger["trained"].equal(before)
    assert len(loader) == 7, "of the last epoch, for those who take a mean over it"


def test_the_report_is_of_the_epoch_that_ended_also_when_the_next_is_planned() -> None:
    lean = leantrain.attach(model_of(), small_set(50), epochs=3)
    loader = lean.loader(8)
    for batch in loader:
        lean.loss(batch)
    told = lean.report()
    assert told["train_loss"] == pytest.approx(lean.ledger["loss"].mean().item(), abs=1e-6)
    len(loader)
    assert lean.report() == told
    again = leantrain.attach(model_of(), small_set(50), epochs=3)
    again.load_state_dict(lean.state_dict())
    assert again.report() == {name: value for name, value in told.items() if not name.endswith("seconds")}


@pytest.mark.parametrize("budget", [0.05, 0.31, 0.37, 0.4, 0.66, 0.75, 0.9, 1.3])
def test_under_a_budget_only_the_last_epoch_is_cut(budget: float) -> None:
    lean = leantrain.attach(model_of(), small_set(160), "plain", epochs=10, budget=budget)
    loader, lengths = lean.loader(10), []
    while not lean.finished:
        for batch in loader:
            lean.loss(batch)
        lengths.append(len(lean.plan))
    assert lengths[:-1] == [16] * (len(lengths) - 1)
    assert lean.cost == pytest.approx(budget * 1600, abs=5)


def test_progress_runs_from_zero_to_one_whatever_is_skipped() -> None:
    for method in ("sgd", "random-backprop[keep=0.3]"):
        lean = leantrain.attach(model_of(), small_set(), method, epochs=3)
        loader = lean.loader(16)
        progress = [lean.progress]
        while not lean.finished:
            for batch in loader:
                lean.loss(batch)
                progress.append(lean.progress)
        assert progress[0] == 0.0
        assert progress[-1] == 1.0
        assert progress == sorted(progress)
        assert lean.epoch == 2


@pytest.mark.parametrize("method", ["sgd", "random-backprop[keep=0.5]"])
def test_a_budget_is_spent_and_not_exceeded_by_more_than_a_batch(method: str) -> None:
    lean = leantrain.attach(model_of(), small_set(100), method, epochs=10, budget=0.37)
    loader = lean.loader(10)
    while not lean.finished:
        for batch in loader:
            lean.loss(batch)
    assert lean.progress == 1.0
    assert abs(lean.cost - 370) <= 10


def test_keeping_a_fraction_never_keeps_zero() -> None:
    lean = leantrain.attach(model_of(), small_set(10), "random-backprop[keep=0.001]", epochs=1)
    assert sum(len(b.index) for b in lean.loader(4)) == 1


def test_accumulated_parts_add_up_to_the_gradient_of_the_whole_batch() -> None:
    data = small_set(50)
    gradients = []
    for parts in (1, 4):
        model = model_of()
        lean = leantrain.attach(model, data, epochs=1)
        for batch in lean.loader(25):  # 25 does not divide by 4
            for part in batch.chunks(parts):
                lean.loss(part).backward()
        assert lean.finished
        assert lean.cost == pytest.approx(50)
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_run_saved_in_mid_epoch_goes_on_to_the_bit() -> None:
    data = small_set()
    whole_model = model_of()
    whole = leantrain.attach(whole_model, data, "random-backprop[keep=0.8]", epochs=3)
    expected = train(whole, whole_model, 3, batch_size=7)

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lean = leantrain.attach(model, data, "random-backprop[keep=0.8]", epochs=3)
    losses: list[float] = []
    stops = iter((4, 9, 11))
    stop = next(stops)
    loader = lean.loader(7)
    while not lean.finished:
        for batch in loader:
            loss = lean.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == stop:
                stop = next(stops, -1)
                state = lean.state_dict()
                lean = leantrain.attach(model, data, "random-backprop[keep=0.8]", epochs=3)
                lean.load_state_dict(state)
                loader = lean.loader(7)
                break
    assert losses == expected
    for name, field in whole.ledger.state_dict().items():
        assert torch.equal(field, lean.ledger[name]) or name == "previous"
    torch.testing.assert_close(whole.ledger["previous"], lean.ledger["previous"], equal_nan=True, rtol=0, atol=0)


def test_state_dict_loads_without_executing_code(tmp_path: Any) -> None:
    lean = leantrain.attach(model_of(), small_set(), epochs=2)
    for batch in lean.loader(16):
        lean.loss(batch)
    torch.save(lean.state_dict(), tmp_path / "lean.pt")
    again = leantrain.attach(model_of(), small_set(), epochs=2)
    again.load_state_dict(torch.load(tmp_path / "lean.pt", weights_only=True))
    assert again.progress == lean.progress


def test_state_of_another_run_is_refused() -> None:
    state = leantrain.attach(model_of(), small_set(), "plain", epochs=2, budget=0.5).state_dict()
    with pytest.raises(LeanError, match=r"budget 0\.5, this one None"):
        leantrain.attach(model_of(), small_set(), epochs=2).load_state_dict(state)


def test_global_generators_are_never_touched() -> None:
    before = torch.get_rng_state()
    lean = leantrain.attach(model_of(), small_set(), "random-backprop", epochs=2)
    for _ in range(2):
        for batch in lean.loader(16):
            lean.loss(batch)
    assert torch.get_rng_state().equal(before)


def test_a_criterion_of_one_s_own_is_minimised_while_clean_losses_are_recorded() -> None:
    data, model = small_set(), model_of()

    def halved(logits: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * F.cross_entropy(logits, targets, reduction="none")

    lean = leantrain.attach(model, data, epochs=1, criterion=halved)
    batch = next(iter(lean.loader(60)))
    assert lean.loss(batch).item() == pytest.approx(0.5 * lean.ledger["loss"].mean().item())


def test_a_criterion_that_reduces_is_refused() -> None:
    lean = leantrain.attach(model_of(), small_set(), epochs=1, criterion=nn.CrossEntropyLoss())
    with pytest.raises(LeanError, match="one loss per example"):
        lean.loss(next(iter(lean.loader(16))))


class Dicts(Dataset[dict[str, Any]]):
    def __init__(self, label: Any = 1) -> None:
        self.label = label

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": torch.full((6,), float(i)), "labels": self.label, "file": f"{i}.png"}


def test_dict_batches_work_and_keep_their_other_entries() -> None:
    lean = leantrain.attach(model_of(), Dicts(), epochs=1)
    batch = next(iter(lean.loader(20)))
    assert batch.inputs[:, 0].long().equal(batch.index)
    assert batch.data["file"] == [f"{i}.png" for i in batch.index.tolist()]
    assert lean.loss(batch).isfinite()


def test_an_own_collate_is_used() -> None:
    def collate(items: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([x * 2 for x, _ in items]), torch.stack([y for _, y in items])

    data = small_set()
    batch = next(iter(leantrain.attach(model_of(), data, epochs=1, collate=collate).loader(16)))
    assert batch.inputs.equal(data.tensors[0][batch.index] * 2)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Stream(), "is iterable"),
        (TensorDataset(torch.zeros(0, 6), torch.zeros(0).long()), "no examples"),
        (TensorDataset(torch.zeros(4, 6), torch.zeros(4, 3)), "has 3 values"),
        (TensorDataset(torch.zeros(4, 6), torch.zeros(4, 3).long()), "has 3 values .*multi-label"),
        (TensorDataset(torch.zeros(4, 6), torch.zeros(4)), "soft labels"),
        (TensorDataset(torch.zeros(4, 6)), "is a list of 1, but must be \\(inputs, labels\\)"),
        (TensorDataset(torch.zeros(4, 6), torch.zeros(4, 1).long()), "labels of shape \\(2, 1\\)"),
        ([(torch.zeros(6), "cat")] * 4, "the labels of a batch are a tuple"),
        ([(object(), 1)] * 4, "two examples of the data set cannot be collated"),
        (Dicts(label=[1, 0]), "has 2 values"),
    ],
)
def test_what_cannot_work_is_refused_at_attach(dataset: Any, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.attach(model_of(), dataset, epochs=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": 1, "budget": -1.0}, "budget is -1"),
        ({"epochs": 1, "label_smoothing": 1.0}, "label_smoothing is 1"),
        ({"epochs": 1, "method": "random-backprop[kepe=0.1]"}, "Did you mean 'keep'"),
        ({"epochs": 1, "method": "random-backprop[keep=2]"}, "keep is 2.0, but must be at most 1.0"),
        ({"epochs": 1, "method": "sdg"}, "Did you mean 'sgd'"),
    ],
)
def test_bad_settings_are_refused_with_the_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.attach(model_of(), small_set(), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "resnet18"}, "model is 'resnet18', but must be an nn.Module"),
        ({"dataset": DataLoader(small_set())}, "the dataset is a loader; give the data set itself"),
        ({"dataset": None}, "NoneType is iterable"),
        ({"method": 5}, "method is 5, but must be a method or its text"),
        ({"method": leantrain.InfoBatch}, "method is a ABCMeta"),
        ({"epochs": "3"}, "epochs is '3', but must be a whole number"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"epochs": True}, "epochs is True"),
        ({"budget": "half"}, "budget is 'half', but must be a number"),
        ({"seed": None}, "seed is a NoneType"),
        ({"label_smoothing": "0.1"}, "label_smoothing is '0.1'"),
        ({"criterion": "ce"}, "criterion is 'ce', but must be a function"),
        ({"collate": 3}, "collate is 3"),
        ({"prepare": []}, "prepare is a list"),
        ({"split_layer": nn.ReLU()}, "split_layer is a ReLU, but must be a layer's name"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_types_are_refused_with_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.attach(**{"model": model_of(), "dataset": small_set(), "epochs": 1, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": "16"}, "batch_size is '16', but must be a whole number"),
        ({"shuffle": False}, "takes no shuffle=False: every epoch is shuffled"),
        ({"sampler": RandomSampler(small_set())}, "takes no sampler=.*: the plan decides which examples form a batch"),
        ({"batch_sampler": [[1]]}, "takes no batch_sampler=.*: the plan decides"),
        ({"drop_last": True}, "takes no drop_last=True: batches are of near-equal size"),
        ({"collate_fn": len}, "takes no collate_fn=.*: give it to attach as collate="),
    ],
)
def test_the_loader_refuses_what_the_plan_decides(options: dict[str, Any], words: str) -> None:
    lean = leantrain.attach(model_of(), small_set(), epochs=1)
    with pytest.raises(LeanError, match=words):
        lean.loader(**{"batch_size": 16, **options})


def test_the_loader_has_what_scripts_read_of_a_dataloader() -> None:
    data = small_set(50)
    lean = leantrain.attach(model_of(), data, epochs=2)
    loader = lean.loader(batch_size=8, shuffle=True, drop_last=False, num_workers=0, pin_memory=False)
    assert loader.dataset is data
    assert (loader.batch_size, loader.num_workers, loader.drop_last, loader.pin_memory) == (8, 0, False, False)
    assert not hasattr(loader, "nothing_of_that_name")
    loader.sampler.set_epoch(0)
    for _ in range(2):
        batches, examples = list(loader.batch_sampler), list(loader.sampler)
        assert len(loader.batch_sampler) == len(batches) == len(loader)
        assert len(loader.sampler) == len(examples) == 50
        given = [batch.index.tolist() for batch in loader if lean.loss(batch).isfinite()]
        assert given == batches
        assert [index for indices in given for index in indices] == examples


def test_a_batch_is_like_what_it_holds() -> None:
    lean = leantrain.attach(model_of(), small_set(), epochs=1)
    batch = next(iter(lean.loader(16)))
    inputs, targets = batch
    assert inputs is batch.inputs
    assert targets is batch[1]
    assert not hasattr(batch, "items")
    assert batch.to("cpu", torch.bfloat16).inputs.dtype == torch.bfloat16
    assert batch.to(torch.float64).inputs.dtype == torch.float64
    assert batch.to(torch.float64).targets.dtype == batch.index.dtype == torch.int64
    assert batch.to("meta").inputs.is_meta

    batch = next(iter(leantrain.attach(model_of(), Dicts(), epochs=1).loader(20)))
    assert "labels" in batch
    assert "label" not in batch
    assert list(batch) == ["pixel_values", "labels", "file"] == list(batch.keys())
    assert dict(**batch)["labels"] is batch.targets
    assert batch.get("nothing") is None
    assert {name for name, _ in batch.items()} == set(batch)


def test_images_change_their_layout_without_other_inputs() -> None:
    data = TensorDataset(torch.randn(8, 3, 4, 4), torch.zeros(8).long())
    batch = next(iter(leantrain.attach(nn.Conv2d(3, 2, 4), data, epochs=1).loader(8)))
    moved = batch.to(memory_format=torch.channels_last)
    assert moved.inputs.is_contiguous(memory_format=torch.channels_last)
    assert moved.inputs.equal(batch.inputs)
    assert not moved.changed


@pytest.mark.parametrize("method", ["sgd", "mixtrain-cutmix[select=all]"])
def test_what_was_answered_in_the_last_step_is_there_for_meters(method: str) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 1, 8, 8), torch.arange(24) % 2)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    lean = leantrain.attach(model, data, method, epochs=1)
    with pytest.raises(LeanError, match="no loss has been computed yet"):
        _ = lean.last
    meter = {"correct": 0, "loss": 0.0}
    for batch in lean.loader(8):
        loss = lean.loss(batch)
        assert lean.last.index.equal(batch.index)
        assert lean.last.targets.equal(data.tensors[1][batch.index])
        assert lean.last.losses.mean() == pytest.approx(loss.item(), rel=1e-5)
        meter["correct"] += int((lean.last.logits.argmax(1) == lean.last.targets).sum())
        meter["loss"] += float(lean.last.losses.sum())
    assert meter["correct"] == int(lean.ledger["correct"].sum())
    assert meter["loss"] == pytest.approx(float(lean.ledger["loss"].sum()))
    assert lean.last.logits.grad_fn is None


@pytest.mark.parametrize("method", ["selective-backprop", "autoassist"])
def test_a_method_that_looked_at_other_inputs_than_the_loop_trains_on_says_so_once(method: str) -> None:
    def normalised(batch: leantrain.Batch) -> leantrain.Batch:
        return batch.with_inputs(batch.inputs / 2)

    for prepare, loop in ((None, normalised), (normalised, lambda batch: batch)):
        model, data = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), torch.randn(100, 1, 8, 8)
        lean = leantrain.attach(model, TensorDataset(data, torch.arange(100) % 2), method, epochs=2, prepare=prepare)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for batch in lean.loader(16):
                for part in loop(batch).chunks(2):
                    lean.loss(part)
        words = [str(one.message) for one in said]
        assert len(words) == (prepare is None)
        assert all("looked at other inputs" in one and "attach(prepare=" in one for one in words)


def hugging_face_collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """`label` in, `labels` out, as transformers' own."""
    return {
        "pixel_values": torch.stack([item["image"] for item in items]),
        "labels": torch.tensor([item["label"] for item in items]),
    }


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": torch.full((6,), float(i)), "label": i % 2}


def test_keys_are_found_on_the_batch_as_it_is_collated() -> None:
    lean = leantrain.attach(model_of(), Named(), epochs=1, collate=hugging_face_collate)
    batch = next(iter(lean.loader(12)))
    assert batch.inputs[:, 0].long().equal(batch.index)
    assert batch.targets.equal(batch.index % 2)
    scores = leantrain.score(
        model_of, Named(), "el2n", models=1, epochs=1, batch_size=6, collate=hugging_face_collate, device="cpu"
    )
    assert scores.targets.tolist() == [0, 1] * 6
    with pytest.raises(LeanError, match="a batch has no 'label'; say targets=KEY with one of 'pixel_values', 'labels'"):
        leantrain.attach(model_of(), Named(), epochs=1, collate=hugging_face_collate, targets="label")


def mixing_collate(items: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(items)
    return 0.5 * (x + x.flip(0)), 0.5 * (F.one_hot(y, 2) + F.one_hot(y.flip(0), 2))


def test_a_collate_that_mixes_is_refused_at_attach_with_what_to_do_instead() -> None:
    with pytest.raises(LeanError, match='has 2 values, as a collate function .*use method="mixtrain-cutmix"'):
        leantrain.attach(model_of(), small_set(), epochs=1, collate=mixing_collate)


def test_a_batch_of_another_epoch_is_refused() -> None:
    lean = leantrain.attach(model_of(), small_set(), epochs=2)
    loader = lean.loader(16)
    old = next(iter(loader))
    lean.loss(old)
    iter(loader)
    with pytest.raises(LeanError, match="belongs to epoch 0"):
        lean.loss(old)

"""MixTrain in somebody's own loop: what is recorded, what adds up, what a loop may do between, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

import leantrain
from leantrain.errors import LeanError

CUTMIX, MIXUP = "mixtrain-cutmix[select=all]", "mixtrain-mixup[select=all]"
"""Composites from the first epoch on."""


def shades(n: int = 24) -> TensorDataset:
    """Images of one shade each: half of one has the same mean as all of it."""
    x = torch.linspace(-2, 2, n).view(-1, 1, 1, 1).expand(n, 1, 8, 8).contiguous()
    return TensorDataset(x, (torch.arange(n) * 3 // n))


def blobs(n: int = 96, seed: int = 0) -> TensorDataset:
    """Three classes of noisy images, told apart by where they are bright; some labels are wrong."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = 0.7 * torch.randn(n, 1, 8, 8, generator=rng)
    x += torch.eye(3)[y].repeat_interleave(3, 1)[:, :8].view(n, 1, 1, 8)
    wrong = torch.rand(n, generator=rng) < 0.15
    return TensorDataset(x, torch.where(wrong, (y + 1) % 3, y))


def seeded(make: type[nn.Module] | Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = make()
        return model


def pointwise() -> nn.Module:
    """Sees each pixel for itself, so a constituent is answered as if it were alone."""
    return nn.Sequential(nn.Conv2d(1, 8, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def train(lean: leantrain.Lean, batches: Iterable[leantrain.Batch], lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=lr)
    for batch in batches:
        lean.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


criteria = pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2}, {"criterion": focal}], ids=["plain", "smooth", "focal"]
)


# -- what is recorded, and what is minimised ---------------------------------------------------------------------------


@criteria
def test_each_constituent_s_own_clean_loss_is_recorded(options: dict[str, Any]) -> None:
    data, model = shades(), seeded(pointwise)
    lean = leantrain.attach(model, data, CUTMIX, epochs=1, **options)
    batch = next(iter(lean.loader(12)))
    assert batch.form.constituents == 2
    loss = lean.loss(batch)
    x, y = data.tensors
    logits = model(x).detach()
    torch.testing.assert_close(lean.ledger["loss"], F.cross_entropy(logits, y, reduction="none"))
    assert lean.ledger["correct"].equal(logits.argmax(1) == y)
    assert (lean.ledger["constituents"] == 2).all()
    # Two halves an image: the mean over images of both halves' losses, each counting one half.
    wanted = options.get("criterion") or nn.CrossEntropyLoss(
        reduction="none", label_smoothing=options.get("label_smoothing", 0.0)
    )
    assert loss.item() == pytest.approx(wanted(logits, y).mean().item(), rel=1e-5)


@criteria
def test_mixup_asks_one_answer_about_each_constituent(options: dict[str, Any]) -> None:
    data, model = blobs(), seeded(convolutional)
    lean = leantrain.attach(model, data, "mixtrain-mixup[select=all,ratio=equal]", epochs=1, **options)
    batch = next(iter(lean.loader(48)))
    lean.loss(batch)
    x, y = data.tensors
    first, second = batch.index.view(2, -1)
    logits = model((x[first] + x[second]) / 2).detach()
    for constituent in (first, second):
        own = F.cross_entropy(logits, y[constituent], reduction="none")
        torch.testing.assert_close(lean.ledger["loss"][constituent], own)
        assert lean.ledger["correct"][constituent].equal(logits.argmax(1) == y[constituent])


@pytest.mark.parametrize("method", ["sgd", CUTMIX, MIXUP])
def test_bf16_autocast_trains_and_records_in_fp32(method: str) -> None:
    data = blobs()
    recorded, found = [], []
    for enabled in (False, True):
        model = seeded(convolutional)
        lean = leantrain.attach(model, data, method, epochs=1)
        for batch in lean.loader(32):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = lean.loss(batch)
            assert loss.dtype == torch.float32
            loss.backward()
        recorded.append(lean.ledger["loss"])
        found.append(torch.cat([g.flatten() for g in gradients(model)]))
    assert recorded[1].dtype == torch.float32
    assert not recorded[0].equal(recorded[1])  # it did run in bf16
    torch.testing.assert_close(recorded[0], recorded[1], rtol=0.05, atol=0.02)
    assert F.cosine_similarity(*found, dim=0) > 0.99


@pytest.mark.parametrize("method", [CUTMIX, MIXUP, "mixtrain-cutmix[select=all,constituents=3]"])
@pytest.mark.parametrize("parts", [2, 3, 50])
def test_parts_of_a_composite_batch_add_up_to_all_of_it(method: str, parts: int) -> None:
    data = blobs(90)
    found, recorded = [], []
    for count in (1, parts):
        model = seeded(convolutional)
        lean = leantrain.attach(model, data, method, epochs=1)
        for batch in lean.loader(11):
            for part in batch.chunks(count):
                lean.loss(part).backward()
        assert lean.finished
        assert lean.cost == pytest.approx(90 / batch.form.constituents)
        assert (lean.ledger["trained"] == 1).all()
        found.append(gradients(model))
        recorded.append(lean.ledger["loss"])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(recorded[0], recorded[1])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["sgd", CUTMIX, MIXUP])
def test_a_compiled_model_gives_what_the_eager_one_gives(method: str, when: str) -> None:
    data = blobs(60)
    found, recorded = [], []
    for compiled in (False, True):
        torch.compiler.reset()
        module = seeded(convolutional)
        model = torch.compile(module, backend="aot_eager") if compiled else module
        lean = leantrain.attach(model if when == "before" else module, data, method, epochs=1)
        lean.model = model
        for batch in lean.loader(13):
            lean.loss(batch).backward()
        found.append(gradients(module))
        recorded.append(lean.ledger["loss"])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(recorded[0], recorded[1])


def test_a_compiled_model_goes_back_and_forth_between_whole_and_composite() -> None:
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        module = seeded(convolutional)
        model = torch.compile(module, backend="aot_eager") if compiled else module
        lean = leantrain.attach(model, blobs(), leantrain.MixTrain("cutmix"), epochs=5)
        loader = lean.loader(16)
        forms = set()
        for _ in range(5):
            train(lean, loader)
            forms |= {lean.plan[b].form.constituents for b in range(len(lean.plan))}
        assert forms == {1, 2}
        found.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


# -- data of other shapes ----------------------------------------------------------------------------------------------


class Dicts(Dataset[dict[str, Any]]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, Any]:
        x, y = self.data[i]
        return {"pixel_values": x, "labels": int(y), "file": f"{i}.png"}


def test_dicts_are_mixed_and_recorded_like_pairs() -> None:
    recorded = []
    for data in (blobs(), Dicts(blobs())):
        lean = leantrain.attach(seeded(convolutional), data, CUTMIX, epochs=1)
        for batch in lean.loader(16):
            lean.loss(batch.to("cpu")).backward()
        recorded.append(lean.ledger["loss"])
    assert batch.data["file"] == [f"{i}.png" for i in batch.index.tolist()]
    assert recorded[0].equal(recorded[1])


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


class Pairs(Dataset[Pair]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Pair:
        return Pair(*self.data[i])


def test_named_tuples_stay_named_tuples() -> None:
    lean = leantrain.attach(seeded(convolutional), Pairs(blobs()), CUTMIX, epochs=1)
    for batch in lean.loader(16):
        moved = batch.to("cpu")
        assert moved.data.label.equal(moved.targets)
        for part in moved.with_inputs(moved.inputs * 2).chunks(2):
            lean.loss(part).backward()
    assert lean.finished


class Answer(NamedTuple):
    logits: Tensor


class Answering(nn.Module):
    """Answers with an object, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolutional()

    def forward(self, pixel_values: Tensor) -> Answer:
        return Answer(self.inner(pixel_values))


def test_a_model_may_answer_with_an_object_that_has_logits() -> None:
    recorded = []
    for make in (convolutional, Answering):
        lean = leantrain.attach(seeded(make), blobs(), MIXUP, epochs=1)
        for batch in lean.loader(16):
            lean.loss(batch)
        recorded.append(lean.ledger["loss"])
    assert recorded[0].equal(recorded[1])


def test_mixup_works_on_vectors() -> None:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    model = seeded(lambda: nn.Linear(6, 2))
    lean = leantrain.attach(model, data, leantrain.MixTrain("mixup"), epochs=8)
    loader = lean.loader(8)
    for _ in range(8):
        train(lean, loader, lr=0.5)
    assert lean.cost < 8 * 60
    assert (model(x).argmax(1) == data.tensors[1]).float().mean() > 0.9


# -- what cannot work is refused at once -------------------------------------------------------------------------------


def flattening() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))


def shrinking() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 4, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def vectors(n: int = 20) -> TensorDataset:
    return TensorDataset(torch.randn(n, 6), torch.arange(n) % 2)


def rows(n: int = 20) -> TensorDataset:
    return TensorDataset(torch.randn(n, 5, 6), torch.arange(n) % 2)


def raw_bytes(n: int = 20) -> TensorDataset:
    return TensorDataset(torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8), torch.arange(n) % 2)


@pytest.mark.parametrize(
    ("make", "data", "method", "words"),
    [
        (flattening, blobs(), "mixtrain-cutmix", "split"),
        (shrinking, blobs(), "mixtrain-cutmix", "too small"),
        (lambda: nn.DataParallel(convolutional()), blobs(), "mixtrain-cutmix", "DataParallel"),
        (lambda: nn.Linear(6, 2), vectors(), "mixtrain-cutmix", "images"),
        (lambda: nn.Linear(6, 2), vectors(), "mixtrain-cutmix[split=false]", "images"),
        (lambda: nn.Linear(6, 2), rows(), "mixtrain-cutmix[split=false]", "images"),
        (convolutional, raw_bytes(), "mixtrain-cutmix", "float"),
        (convolutional, raw_bytes(), "mixtrain-mixup", "float"),
    ],
    ids=["no pool", "small map", "data parallel", "vectors", "vectors unsplit", "rows", "bytes", "bytes mixup"],
)
def test_what_cannot_be_mixed_is_refused_at_attach_in_one_sentence(
    make: Any, data: Any, method: str, words: str
) -> None:
    with pytest.raises(LeanError, match=words) as refusal:
        leantrain.attach(make(), data, method, epochs=3)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_bytes_that_become_images_on_the_way_are_welcome_with_an_example() -> None:
    lean = leantrain.attach(seeded(convolutional), raw_bytes(), CUTMIX, epochs=1, example=torch.zeros(2, 1, 8, 8))
    for batch in lean.loader(5):
        assert lean.loss(batch.with_inputs(batch.inputs.float() / 255)).isfinite()


# -- what a loop does between ------------------------------------------------------------------------------------------


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Fetches the next batch before it hands one out, as Accelerate's loader does to know which is the last."""
    source = iter(batches)
    held = next(source)
    for following in source:
        yield held
        held = following
    yield held


@pytest.mark.parametrize("workers", [0, 2])
def test_a_consumer_that_looks_ahead_credits_the_right_examples(workers: int) -> None:
    runs = []
    for consume in (iter, one_ahead):
        lean = leantrain.attach(seeded(normalised), blobs(), leantrain.MixTrain("cutmix"), epochs=4)
        loader = lean.loader(16, num_workers=workers)
        for _ in range(4):
            train(lean, consume(loader))
        runs.append(lean.state_dict())
    assert same(runs[0], runs[1])


def test_a_state_taken_while_a_consumer_looks_ahead_is_of_what_was_trained() -> None:
    lean = leantrain.attach(seeded(convolutional), blobs(), epochs=1)
    ahead = one_ahead(lean.loader(16))
    for _ in range(3):
        lean.loss(next(ahead))
    state = lean.state_dict()
    assert state["done"] == 3
    assert int(state["ledger"]["trained"].sum()) == 48


@pytest.mark.parametrize("operator", ["cutmix", "mixup"])
def test_evaluating_between_epochs_and_steps_disturbs_nothing(operator: str) -> None:
    data = blobs()
    runs = []
    for evaluating in (False, True):
        model = seeded(normalised)
        lean = leantrain.attach(model, data, leantrain.MixTrain(operator), epochs=4)
        loader = lean.loader(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            for batch in loader:
                lean.loss(batch).backward()
                if evaluating:
                    model.eval()
                    with torch.no_grad():
                        assert model(data.tensors[0]).shape == (96, 3)
                    model.train()
                optimizer.step()
                optimizer.zero_grad()
        runs.append({**lean.state_dict(), "model": model.state_dict()})
    assert same(runs[0], runs[1])


@pytest.mark.parametrize("operator", ["cutmix", "mixup"])
def test_progress_never_falls_and_epochs_get_shorter_as_examples_are_mixed(operator: str) -> None:
    lean = leantrain.attach(seeded(normalised), blobs(), leantrain.MixTrain(operator), epochs=6)
    loader = lean.loader(8)
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.1)
    progress, lengths = [lean.progress], []
    for epoch in range(6):
        planned = len(loader)
        taken = 0
        for batch in loader:
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            progress.append(lean.progress)
            taken += 1
        assert taken == planned
        assert lean.progress == pytest.approx((epoch + 1) / 6)
        lengths.append(taken)
    assert progress == sorted(progress)
    assert (progress[0], progress[-1], lean.finished) == (0.0, 1.0, True)
    assert lengths[:2] == [12, 12]
    assert max(lengths[2:]) < 12
    assert lean.cost < 6 * 96
    assert (lean.ledger["trained"] == 6).all()  # shorter, with every example in it


def test_the_length_asked_for_inside_an_epoch_is_that_epoch_s() -> None:
    lean = leantrain.attach(seeded(normalised), blobs(), leantrain.MixTrain("cutmix"), epochs=4)
    loader = lean.loader(8)
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.1)
    for epoch in range(4):
        asked = []
        for batch in loader:
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            asked.append(len(loader))  # as in print(f"{step} of {len(loader)}")
            assert lean.epoch == epoch
        assert set(asked) == {len(asked)}


def test_mixing_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    lean = leantrain.attach(seeded(normalised), blobs(), MIXUP, epochs=2)
    loader = lean.loader(16, num_workers=1)
    for _ in range(2):
        train(lean, loader)
    assert torch.get_rng_state().equal(before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


class Noisy(Dataset[tuple[Tensor, int]]):
    """Augments at random, each example by torch's, numpy's and Python's own generator."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        noise = torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])
        return noise, i % 2


def seen(lean: leantrain.Lean, batches: Iterable[leantrain.Batch], stop: int | None = None) -> list[Tensor]:
    inputs = []
    for batch in batches:
        lean.loss(batch)
        inputs.append(batch.inputs)
        if len(inputs) == stop:
            break
    return inputs


class AtOnce:
    """Changes nothing about batches, which may be loaded together."""

    at_once = 32

    def __call__(self, batch: leantrain.Batch) -> leantrain.Batch:
        return batch


@pytest.mark.parametrize("prepare", [None, AtOnce()], ids=["one by one", "together"])
@pytest.mark.parametrize("workers", [1, 2])
def test_augmentation_in_workers_is_new_every_epoch_and_the_same_after_a_resume(
    workers: int, prepare: AtOnce | None
) -> None:
    def attached() -> leantrain.Lean:
        return leantrain.attach(seeded(lambda: nn.Linear(3, 2)), Noisy(), epochs=3, seed=1, prepare=prepare)

    whole = attached()
    epochs = [torch.cat(seen(whole, whole.loader(8, num_workers=workers))) for _ in range(3)]
    numbers = torch.cat(epochs).flatten()
    assert len(numbers.unique()) > 0.99 * len(numbers)

    cut = attached()
    for _ in range(2):
        seen(cut, cut.loader(8, num_workers=workers), stop=None if cut.epoch < 0 else 2)
    again = attached()
    again.load_state_dict(cut.state_dict())
    rest = seen(again, again.loader(8, num_workers=3 - workers))  # as many workers as one likes
    rest += seen(again, again.loader(8, num_workers=workers, persistent_workers=True))
    assert torch.cat(rest).equal(torch.cat([epochs[1][16:], epochs[2]]))


class Named(Dataset[dict[str, Any]]):
    """Examples with a name."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(i)), "name": str(i), "y": i % 2}


def test_batches_that_are_loaded_together_keep_what_is_no_tensor_with_its_example() -> None:
    lean = leantrain.attach(seeded(lambda: nn.Linear(3, 2)), Named(), epochs=1, prepare=AtOnce())
    count = 0
    for batch in lean.loader(8):
        assert batch["name"] == [str(i) for i in batch.index.tolist()]
        assert batch.inputs[:, 0].tolist() == batch.index.tolist() and len(batch) == batch.total == 8
        lean.loss(batch)
        count += 1
    assert count == 5 and lean.finished and (lean.ledger["trained"] == 1).all()


def test_what_a_collate_function_adds_for_all_examples_goes_with_every_batch() -> None:
    def collate(examples: list[Any]) -> tuple[Any, ...]:
        return (*default_collate(examples), torch.tensor([1.0, 3.0]), "these")

    lean = leantrain.attach(seeded(lambda: nn.Linear(3, 2)), Noisy(), epochs=1, collate=collate, prepare=AtOnce())
    for batch in lean.loader(8):
        inputs, targets, class_weight, name = batch
        assert len(inputs) == len(targets) == len(batch) and class_weight.tolist() == [1.0, 3.0] and name == "these"
        lean.loss(batch)
    assert lean.finished


@pytest.mark.parametrize("operator", ["cutmix", "mixup"])
def test_a_run_of_composites_saved_in_mid_epoch_goes_on_to_the_bit(operator: str) -> None:
    def attached() -> leantrain.Lean:
        return leantrain.attach(seeded(normalised), blobs(), leantrain.MixTrain(operator), epochs=5)

    whole = attached()
    while not whole.finished:
        train(whole, whole.loader(16))
    cut = attached()
    for _ in range(3):
        train(cut, cut.loader(16))
    batches = iter(cut.loader(16))
    train(cut, [next(batches) for _ in range(2)])
    assert 0 < cut.position < len(cut.plan)
    again = attached()
    again.model.load_state_dict(cut.model.state_dict())
    again.load_state_dict(cut.state_dict())
    while not again.finished:
        train(again, again.loader(16))
    assert same(whole.state_dict(), again.state_dict())
    assert same(dict(whole.model.state_dict()), dict(again.model.state_dict()))


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit; not-a-number equals itself."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(*(torch.nan_to_num(t, nan=-1.0) for t in (one, other)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class TwoHeads(NamedTuple):
    logits: Tensor
    aux_logits2: Tensor | None
    aux_logits1: Tensor | None


class Helped(nn.Module):
    """Auxiliary heads in training, as torchvision's GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: Tensor) -> TwoHeads | Tensor:
        self.answers = [head(x) for head in self.heads]
        return TwoHeads(*self.answers) if self.training else self.answers[0]


@pytest.mark.parametrize("method", ["plain", "mixup", "mixtrain-mixup[select=all,ratio=equal]"])
def test_auxiliary_heads_count_as_in_their_authors_papers(method: str) -> None:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    model = seeded(Helped)
    lean = leantrain.attach(model, TensorDataset(x, (x.sum(1) > 0).long()), method, epochs=1)
    batch = next(iter(lean.loader(16)))
    loss = lean.loss(batch)
    answer = lean._presenter.answer(batch)
    whole = sum(
        share * lean._minimised(head.repeat(len(batch) // len(head), 1), answer, batch).sum() / batch.total
        for share, head in zip((1.0, 0.3, 0.3), model.answers, strict=True)
    )
    assert torch.allclose(loss, whole)
    loss.backward()
    assert all(head.weight.grad is not None for head in model.heads)
    clean = nn.functional.cross_entropy(answer.logits, batch.targets, reduction="none")
    assert torch.allclose(lean.ledger["loss"][batch.index], clean)  # what is recorded is the answer's own

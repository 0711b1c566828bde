"""Scores: what is measured is what the definitions say, the model is left alone, and the file can be trusted."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from leantrain import data, history
from leantrain.cli import cli
from leantrain.config import TrainConfig
from leantrain.cost import BACKWARD, FORWARD
from leantrain.display import Quiet
from leantrain.errors import LeanError
from leantrain.models import build
from leantrain.scoring import Scores, compare_scores, from_run, load, score, score_images
from leantrain.scoring.compare import combined, spearman
from leantrain.scoring.figures import histogram
from leantrain.scoring.measures import el2n, forgetting, frozen, gradient_norms, loss, score_pass
from leantrain.scoring.summary import summarise
from leantrain.train import resolve
from program import SMALL, run


def call(*arguments: object) -> None:
    """The command inside this process; raises what `main` would print."""
    cli.main(args=[str(a) for a in arguments], standalone_mode=False)


def digits(limit: int = 160) -> data.ImageSet:
    return data.load("digits", train_limit=limit)


def settings(images: data.ImageSet, **changes: Any) -> TrainConfig:
    small: dict[str, Any] = {"model": "resnet8", "width": 4, "batch_size": 32, "precision": "fp32", "device": "cpu"}
    return resolve(TrainConfig(**{**small, **changes}), images)


def small_scores(images: data.ImageSet, kind: str = "el2n", **changes: Any) -> Scores:
    how = {"models": 1, "epochs": 2, **{k: changes.pop(k) for k in ("models", "epochs", "gradients") if k in changes}}
    return score_images(settings(images, **changes), images, kind, **how)


def handmade(values: list[float], ids: list[str] | None = None, kind: str = "el2n") -> Scores:
    names = tuple(ids or map(str, range(len(values))))
    targets = torch.arange(len(values)) % 2
    made_with = {"data": "digits", "seed": 3}
    return Scores(torch.tensor(values), names, targets, ("even", "odd"), kind, 12.5, 0.25, made_with)


def network() -> nn.Module:
    """A convolution, BatchNorm, dropout and a head: everything that a pass could disturb."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def seeded(seed: int = 0) -> nn.Module:
    """The network with statistics that are not those it was born with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
        model(torch.randn(32, 1, 8, 8) * 2 + 1)
    return model


def examples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=rng), torch.randint(0, 3, (count,), generator=rng)


# -- the measures ------------------------------------------------------------------------------------------------------


def test_el2n_is_the_length_of_the_error_vector() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [math.log(3), 0.0]])
    found = el2n(logits, torch.tensor([0, 0, 1]))
    assert found.tolist() == pytest.approx([math.sqrt(0.5), 0.25 * math.sqrt(2), 0.75 * math.sqrt(2)])
    assert el2n(torch.tensor([[-50.0, 50.0]]), torch.tensor([0])).item() == pytest.approx(math.sqrt(2))


def test_the_loss_is_the_cross_entropy_of_the_label() -> None:
    found = loss(torch.tensor([[math.log(3), 0.0]] * 2, dtype=torch.bfloat16), torch.tensor([0, 1]))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([-math.log(0.75), -math.log(0.25)], rel=0.01)


@pytest.mark.parametrize("name", ["own", "resnet8", "vit_tiny_patch16_224"])
def test_gradient_norms_are_those_of_a_loop_over_examples(name: str) -> None:
    inputs, targets = examples(5)
    inputs = inputs.repeat(1, 1, 2, 2)
    model = seeded() if name == "own" else build(name, classes=3, channels=1, image_size=16, seed=0)
    expected = []
    model.eval()
    for i in range(len(inputs)):
        model.zero_grad()
        F.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        expected.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)))
    model.zero_grad()
    assert gradient_norms(model, inputs, targets).tolist() == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_the_closed_form_is_the_gradient_of_the_last_layer_alone() -> None:
    model, (inputs, targets) = seeded(), examples(9)
    for part in model[:-1]:
        part.requires_grad_(False)
    exact = gradient_norms(model, inputs, targets, "all")
    torch.testing.assert_close(gradient_norms(model, inputs, targets, "last"), exact, rtol=1e-5, atol=1e-7)
    model[-1] = nn.Linear(24, 3, bias=False)
    exact = gradient_norms(model, inputs, targets, "all")
    torch.testing.assert_close(gradient_norms(model, inputs, targets, "last"), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_an_example_has_the_same_gradient_norm_in_whatever_batch(layers: str) -> None:
    model, (inputs, targets) = seeded(), examples(37)
    whole = gradient_norms(model, inputs, targets, layers, chunk=16)
    alone = torch.cat([gradient_norms(model, inputs[i : i + 1], targets[i : i + 1], layers) for i in range(37)])
    torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["el2n", "grand", "loss"])
def test_a_pass_gives_every_example_its_own_score_in_whatever_order_it_comes(kind: str) -> None:
    model, (inputs, targets) = seeded(), examples(37)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(0))
    batches = [(inputs[part], targets[part], part) for part in order.split(10)]  # the last one is short
    found = score_pass(model, batches, kind, 37)
    model.eval()
    logits = model(inputs).detach()
    expected = {"el2n": el2n(logits, targets), "loss": loss(logits, targets)}
    torch.testing.assert_close(
        found, expected[kind] if kind != "grand" else gradient_norms(model, inputs, targets), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("kind", "gradients"), [("el2n", "all"), ("loss", "all"), ("grand", "all"), ("grand", "last")])
def test_a_pass_changes_nothing_of_the_model_nor_of_torch_s_generators(kind: str, gradients: str) -> None:
    model, (inputs, targets) = seeded().train(), examples(12)
    model[1].eval()  # as one who fine-tunes does
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes, generator = [m.training for m in model.modules()], torch.get_rng_state()
    score_pass(model, [(inputs, targets, torch.arange(12))], kind, 12, gradients)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_a_frozen_model_drops_nothing_out_and_thaws_after_a_mistake_too() -> None:
    model, (inputs, _) = seeded().train(), examples(4)
    with frozen(model):
        assert torch.equal(model(inputs), model(inputs))
    with pytest.raises(RuntimeError), frozen(model):
        model(inputs[:, :, :0])
    assert all(m.training for m in model.modules())


def test_a_model_that_torch_func_cannot_take_apart_is_refused_with_the_way_out() -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.head(x if x.mean() > 0 else -x)  # depends on the values

    model, (inputs, targets) = Deciding(), examples(4)
    with pytest.raises(LeanError, match="Deciding.*use gradients=last"):
        gradient_norms(model, inputs, targets)
    assert gradient_norms(model, inputs[:1], targets[:1], "last").isfinite().all()


def test_the_closed_form_is_refused_where_no_linear_layer_answers() -> None:
    inputs, targets = examples(4)
    for model in (
        nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh()),
    ):
        with pytest.raises(LeanError, match="use gradients=all"):
            gradient_norms(model, inputs, targets, "last")


def test_a_model_without_a_trained_parameter_has_no_gradients() -> None:
    with pytest.raises(LeanError, match="unfreeze"):
        gradient_norms(seeded().requires_grad_(False), *examples(2))


def test_forgetting_counts_changes_from_right_to_wrong() -> None:
    right = torch.tensor(
        [
            [1, 1, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 0, 0, 0, 1],
        ]
    ).bool()
    assert forgetting(right).tolist() == [0, 2, 1, 4, 0]  # the fourth was never right: the number of epochs


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s.npz", "s.parquet"])
def test_a_file_gives_back_what_was_saved(tmp_path: Path, name: str) -> None:
    saved = handmade([0.1, 2.5, -1.0], ["a/ü.png", "b/2.png", "c, d"])
    saved.save(tmp_path / "new" / name)
    found = load(tmp_path / "new" / name)
    assert torch.equal(found.values, saved.values)
    assert torch.equal(found.targets, saved.targets)
    for field in ("ids", "classes", "kind", "cost", "seconds", "made_with"):
        assert getattr(found, field) == getattr(saved, field), field
    assert [p.name for p in (tmp_path / "new").iterdir()] == [name]


def test_values_come_in_the_order_that_is_asked_for() -> None:
    scores = handmade([1.0, 2.0, 3.0], ["a", "b", "c"])
    assert scores.values_for(["c", "a"]).tolist() == [3, 1]
    assert scores.targets[scores.rows(["b", "a"])].tolist() == [1, 0]
    assert torch.equal(scores.values_for(scores.ids), scores.values)


def test_examples_without_a_score_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(LeanError, match="2 of 3 examples have no score, the first of them 'x'"):
        handmade([1.0, 2.0]).values_for(["0", "x", "y"])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_not_written(tmp_path: Path, bad: float) -> None:
    with pytest.raises(LeanError, match="1 of 2 scores are not finite"):
        handmade([1.0, bad]).save(tmp_path / "s.npz")
    assert not list(tmp_path.iterdir())


def test_file_names_of_any_bytes_are_kept_by_npz_and_refused_by_parquet(tmp_path: Path) -> None:
    odd = handmade([1.0, 2.0], ["a", b"b\xff.png".decode("utf-8", "surrogateescape")])
    odd.save(tmp_path / "s.npz")
    assert load(tmp_path / "s.npz").ids == odd.ids
    with pytest.raises(LeanError, match="save as .npz instead"):
        odd.save(tmp_path / "s.parquet")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match=r"\.npz or \.parquet"):
        handmade([1.0, 2.0]).save(tmp_path / "s.csv")
    with pytest.raises(LeanError, match=r"\.npz or \.parquet"):
        load(tmp_path / "s.pkl")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_missing_cut_and_foreign_files_are_refused_in_one_sentence(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    with pytest.raises(LeanError, match="there is no scores file"):
        load(path)
    handmade([float(n) for n in range(500)]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"not a file of scores", whole[: len(whole) // 2], whole[:200] + b"\0" * 40 + whole[240:]):
        path.write_bytes(content)
        with pytest.raises(LeanError, match="is not a whole file of scores") as refusal:
            load(path)
        assert "\n" not in str(refusal.value)


def test_a_file_of_something_else_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "other.npz", loss=np.zeros(3))
    trapped: Any = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "trap.npz", values=trapped, ids=trapped, targets=trapped, leantrain_scores=trapped)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a"], "score": [1.0], "target": [0]}), tmp_path / "other.parquet")
    for name in ("other.npz", "trap.npz", "array.npz", "other.parquet"):
        with pytest.raises(LeanError, match="is not a whole file of scores"):
            load(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_ids_that_occur_twice_are_refused(tmp_path: Path) -> None:
    handmade([1.0, 2.0], ["a", "a"]).save(tmp_path / "s.npz")
    with pytest.raises(LeanError, match="more than once"):
        load(tmp_path / "s.npz")


# -- the ensemble ------------------------------------------------------------------------------------------------------


def test_scores_depend_on_the_seed_and_on_nothing_else() -> None:
    images = digits()
    generator = torch.get_rng_state()
    one = small_scores(images, models=2)
    torch.rand(3)
    assert torch.equal(one.values, small_scores(images, models=2).values)
    assert not torch.equal(one.values, small_scores(images, models=2, seed=1).values)
    torch.set_rng_state(generator)
    small_scores(images)
    assert torch.equal(torch.get_rng_state(), generator)
    assert one.ids == tuple(map(str, images.train.ids.tolist()))  # type: ignore[union-attr]
    assert torch.equal(one.targets, images.train.targets)
    assert one.made_with["fingerprint"] == images.fingerprint


def test_the_score_of_an_ensemble_is_the_mean_of_its_members() -> None:
    images = digits(40)
    both = small_scores(images, models=2).values
    first = small_scores(images, models=1).values
    second = 2 * both - first  # members do not depend on how many there are
    assert not torch.allclose(first, second)
    assert ((second > 0) & (second < math.sqrt(2) + 1e-5)).all()


@pytest.mark.parametrize(
    ("kind", "gradients", "per_pass"),
    [
        ("el2n", "all", FORWARD),
        ("loss", "all", FORWARD),
        ("grand", "all", FORWARD + BACKWARD),
        ("grand", "last", FORWARD),
        ("forgetting", "all", 0.0),
    ],
)
def test_the_cost_is_training_and_passes_of_all_members(kind: str, gradients: str, per_pass: float) -> None:
    scores = small_scores(digits(40), kind, models=2, epochs=3, gradients=gradients)
    assert scores.cost == pytest.approx(2 * 40 * (3 + per_pass))
    assert scores.seconds > 0
    assert scores.kind == kind
    assert scores.values.shape == (40,) and bool(scores.values.isfinite().all())


def test_images_in_a_folder_are_known_by_their_paths(tmp_path: Path) -> None:
    for name, shade in (("dark", 40), ("light", 200)):
        for part, count in (("train", 12), ("val", 2)):
            (tmp_path / part / name).mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (16, 16), (shade + n, shade, shade)).save(tmp_path / part / name / f"{n:02}.png")
    images = data.load(str(tmp_path))
    scores = small_scores(images, workers=1)
    assert scores.ids[0] == "train/dark/00.png"
    assert scores.classes == ("dark", "light")
    assert bool(scores.values.isfinite().all())


def test_progress_goes_from_nothing_to_all() -> None:
    class Told(Quiet):
        def __init__(self) -> None:
            self.steps: list[float] = []

        def step(self, examples: int, progress: float) -> None:
            self.steps.append(progress)

    told = Told()
    images = digits(40)
    score_images(settings(images), images, "el2n", models=2, epochs=2, display=told)
    assert told.steps == sorted(told.steps)
    assert told.steps[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "el3n"}, "'el3n' is not known.*Did you mean 'el2n'"),
        ({"models": 0}, "models is 0, but must be at least 1"),
        ({"epochs": 0}, "epochs is 0, but must be at least 1"),
        ({"kind": "forgetting", "epochs": 1}, "forgetting takes at least 2"),
        ({"gradients": "some"}, "gradients is 'some', but must be all or last"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"view": TensorDataset(*examples(3))}, "view has 3 examples and the data set 4"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_trained(change: dict[str, Any], message: str) -> None:
    def never() -> nn.Module:
        raise AssertionError("a model was made")

    with pytest.raises(LeanError, match=message):
        score(never, TensorDataset(*examples(4)), **{"epochs": 2, **change})


def test_wrong_labels_are_among_the_highest_scores() -> None:
    images = digits(800)
    assert isinstance(images.train, data.MemoryImages)
    flipped = torch.randperm(800, generator=torch.Generator().manual_seed(0))[:40]
    targets = images.train.targets.clone()
    targets[flipped] = (targets[flipped] + 5) % 10
    noisy = dataclasses.replace(images, train=dataclasses.replace(images.train, targets=targets))
    values = small_scores(noisy, width=8, epochs=6).values
    rank = values.argsort().argsort() / 799
    assert rank[flipped].mean() > 0.9


# -- in a loop of one's own --------------------------------------------------------------------------------------------


def bars(count: int = 60) -> TensorDataset:
    """Three classes told apart by where they are bright; the last five labels are wrong."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = 0.4 * torch.randn(count, 1, 8, 8, generator=rng)
    images += torch.eye(3)[labels].repeat_interleave(3, 1)[:, :8].view(count, 1, 1, 8)
    labels[-5:] = (labels[-5:] + 1) % 3
    return TensorDataset(images, labels)


@pytest.mark.parametrize("kind", ["el2n", "grand", "loss"])
def test_a_data_set_and_models_of_one_s_own_are_scored(kind: str) -> None:
    dataset = bars()
    scores = score(network, dataset, kind, models=2, epochs=12, batch_size=10, device="cpu")
    assert scores.ids[:3] == ("0", "1", "2")
    assert torch.equal(scores.targets, dataset.tensors[1])
    assert scores.classes == ("0", "1", "2")
    passing = FORWARD + (BACKWARD if kind == "grand" else 0)
    assert scores.cost == pytest.approx(2 * 60 * (12 + passing))
    rank = scores.values.argsort().argsort() / 59
    assert rank[-5:].mean() > 0.8


def test_forgetting_of_one_s_own_lies_between_none_and_the_epochs() -> None:
    values = score(network, bars(), "forgetting", models=1, epochs=4, batch_size=10, device="cpu").values
    assert set(values.tolist()) <= {0.0, 1.0, 2.0, 4.0}


def test_one_s_own_scores_depend_on_the_seed_only_and_leave_the_generators_alone() -> None:
    def scored(seed: int) -> Tensor:
        return score(network, bars(30), models=2, epochs=1, batch_size=10, seed=seed, device="cpu").values

    generator = torch.get_rng_state()
    one = scored(0)
    assert torch.equal(torch.get_rng_state(), generator)
    torch.rand(5)
    assert torch.equal(scored(0), one)
    assert not torch.equal(scored(1), one)


def test_models_are_asked_about_the_view_without_augmentation() -> None:
    class Dark(Dataset[Any]):
        """Says what it was asked for, and shows nothing."""

        classes = ("one", "two", "three")

        def __init__(self) -> None:
            self.asked: list[int] = []

        def __len__(self) -> int:
            return 30

        def __getitem__(self, i: int) -> dict[str, Any]:
            self.asked.append(i)
            return {"image": torch.zeros(1, 8, 8), "label": int(bars(30).tensors[1][i])}

    plain, noisy = Dark(), Dark()
    scores = score(network, noisy, models=1, epochs=1, batch_size=8, view=plain, device="cpu")
    assert plain.asked[-30:] == list(range(30))
    assert scores.classes == ("one", "two", "three")
    for label in range(3):  # they all look the same
        assert scores.values[scores.targets == label].std() < 1e-5


def test_a_maker_that_gives_one_model_again_and_again_is_refused() -> None:
    model = network()
    with pytest.raises(LeanError, match="the same model twice"):
        score(lambda: model, bars(12), models=2, epochs=1, device="cpu")


def test_training_that_blows_up_is_told() -> None:
    with pytest.raises(LeanError, match="did not stay finite.*try a smaller lr"):
        score(network, bars(), models=1, epochs=3, batch_size=10, lr=1e30, device="cpu")


# -- beside each other -------------------------------------------------------------------------------------------------


def test_spearman_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([5.0, 6.0, 7.0, 8.0, 7.0])
    assert spearman(x, y) == pytest.approx(0.8207826817)  # ranks 1, 2, 3.5, 5, 3.5
    assert spearman(x, x**3) == pytest.approx(1)
    assert spearman(x, -x) == pytest.approx(-1)
    assert spearman(x, np.ones(5)) is None


def test_the_overlap_counts_what_both_would_prune() -> None:
    a, b = handmade([0.0, 1.0, 2.0, 3.0]), handmade([0.0, 3.0, 1.0, 2.0], kind="grand")
    found = compare_scores(a, b)
    at = dict(zip(found["fractions"], found["overlap"], strict=True))
    assert (at[0.25], at[0.5], at[0.75], at[1.0]) == (1.0, 0.5, pytest.approx(2 / 3), 1.0)
    assert found["spearman"] == pytest.approx(0.4)
    assert (found["a"], found["b"], found["common"]) == ("el2n", "grand", 4)


def test_the_combined_rank_is_lowest_where_both_are_low() -> None:
    a, b = handmade([0.0, 1.0, 2.0, 3.0]), handmade([0.0, 3.0, 1.0, 2.0], kind="grand")
    assert combined(a, b).values.tolist() == pytest.approx([0.25, 0.75, 0.625, 0.875])  # ranks 1 2 3 4 and 1 4 2 3


def test_the_same_scores_agree_wholly_and_unrelated_ones_by_chance() -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = (handmade(torch.rand(4000, generator=rng).tolist()) for _ in range(2))
    assert compare_scores(one, one)["overlap"] == pytest.approx([1.0] * 100)
    found = compare_scores(one, other)
    assert abs(found["spearman"]) < 0.05
    assert found["overlap"] == pytest.approx(found["fractions"], abs=0.06)
    assert found["chance"] == pytest.approx(found["fractions"])


def test_equal_scores_agree_by_chance_only() -> None:
    found = compare_scores(handmade([1.0] * 200), handmade([2.0] * 200))
    assert found["spearman"] is None
    assert found["overlap"] == pytest.approx(found["fractions"])


def test_scores_are_matched_by_id() -> None:
    a, b = handmade([1.0, 2.0, 3.0, 9.0], ["a", "b", "c", "d"]), handmade([3.0, 1.0, 2.0], ["c", "a", "b"])
    found = compare_scores(a, b)
    assert (found["common"], found["only_a"], found["only_b"]) == (3, 1, 0)
    assert found["spearman"] == pytest.approx(1)
    with pytest.raises(LeanError, match="no example in common"):
        compare_scores(a, handmade([1.0], ["z"]))
    with pytest.raises(LeanError, match="no example in common"):
        compare_scores(a, dataclasses.replace(a, classes=("cat", "dog")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "half"
    call("train", *SMALL, "--epochs", 5, "--method", "random-backprop[keep=0.5]", "--out", out)
    return out


def test_use_is_how_many_epochs_trained_on_an_example(trained: Path) -> None:
    scores = from_run(trained)
    seen = np.stack([~np.isnan(history.read_epoch(trained / "history", epoch)["loss"]) for epoch in range(5)])
    assert scores.values.tolist() == seen.sum(0).tolist()
    assert scores.values.sum() == 5 * 80
    assert scores.kind == "use"
    assert scores.ids == tuple(map(str, digits().train.ids.tolist()))  # type: ignore[union-attr]


def test_a_folder_without_a_run_or_a_history_and_changed_data_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="holds no run"):
        from_run(tmp_path)
    text = (trained / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(LeanError, match="has no history"):
        from_run(tmp_path)
    (tmp_path / "history").symlink_to(trained / "history")
    (tmp_path / "config.yaml").write_text(text.replace("train_limit: 160", "train_limit: 150"))
    with pytest.raises(LeanError, match="is not what the run in"):
        from_run(tmp_path)


# -- numbers and pictures ----------------------------------------------------------------------------------------------


def test_a_summary_tells_each_class_and_both_ends() -> None:
    found = summarise(handmade([float(n) for n in range(40)]))
    assert found["mean"] == 19.5
    assert found["quantiles"]["0.5"] == 19.5
    assert found["classes"]["even"] == {"examples": 20, "mean": 19.0, "median": 19.0, "lowest_quarter": 0.25}
    assert [row["id"] for row in found["lowest"]] == [str(n) for n in range(20)]
    assert [row["id"] for row in found["highest"]] == [str(n) for n in range(39, 19, -1)]
    assert found["cost_epochs"] == 12.5 / 40


def test_constant_scores_can_be_drawn() -> None:
    assert histogram(handmade([1.0] * 8)).texts


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the command wrote a file of scores, in a process of its own."""
    folder = tmp_path_factory.mktemp("scored")
    done = run("score", *SMALL, "--models", 2, "--score-epochs", 2, "--out", "s.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_the_command_writes_scores_pictures_and_a_summary(scored: Path) -> None:
    scores = load(scored / "s.npz")
    assert len(scores) == 160
    assert scores.made_with["models"] == 2
    assert scores.made_with["train_limit"] == 160
    assert {p.name for p in (scored / "s").iterdir()} == {"histogram.png", "gallery.png", "classes.png", "summary.json"}
    for picture in (scored / "s").glob("*.png"):
        with Image.open(picture) as opened:
            assert opened.size[0] == 900
    summary = json.loads((scored / "s" / "summary.json").read_text())
    assert summary["cost_epochs"] == pytest.approx(2 * (2 + FORWARD))
    assert len(summary["lowest"]) == len(summary["highest"]) == 20
    assert sum(row["examples"] * row["lowest_quarter"] for row in summary["classes"].values()) == pytest.approx(40)


def test_the_command_prints_a_table_and_says_how_to_use_the_file(scored: Path) -> None:
    table, told = (scored / "stdout").read_text(), (scored / "stderr").read_text()
    assert "EL2N of 160 examples" in table
    assert "in the lowest 25%" in table
    assert "\x1b" not in table + told
    assert "cost 4.67 epochs" in told.splitlines()[0]
    assert "leantrain train --data digits --train-limit 160 --method 'el2n[scores=s.npz]'" in told
    assert [line.split(":")[0] for line in told.splitlines() if line.startswith("model ")] == [
        "model 1 of 2",
        "model 2 of 2",
    ]


def test_an_existing_file_is_not_overwritten(scored: Path, tmp_path: Path) -> None:
    before = (scored / "s.npz").read_bytes()
    for taken in (scored / "s.npz", scored / "s.parquet"):  # the second would share the pictures' folder
        with pytest.raises(LeanError, match="is there already; choose another --out"):
            call("score", *SMALL, "--out", taken)
    assert (scored / "s.npz").read_bytes() == before


def test_json_is_all_that_is_printed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("score", "--from-run", trained, "--out", tmp_path / "use.parquet", "--json")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "use" / "summary.json").read_text())
    assert "use is to look at and to compare" in printed.err
    assert torch.equal(load(tmp_path / "use.parquet").values, from_run(trained).values)


def test_two_files_are_compared(
    scored: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_run(trained).save(tmp_path / "use.npz")
    call("score", "--compare", scored / "s.npz", tmp_path / "use.npz", "--out", tmp_path / "out")
    assert "Spearman rank correlation: " in capsys.readouterr().out
    written = {"overlap.png", "compare.json", "combined.npz", "combined.png"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == written
    assert load(tmp_path / "out" / "combined.npz").made_with["of"] == ["el2n", "use"]
    call("score", "--compare", scored / "s.npz", tmp_path / "use.npz", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "compare.json").read_text())
    assert found["common"] == 160


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "mixtrain"), "the score 'mixtrain' is not known"),
        (("--models", "0"), "models is 0"),
        (("--method", "forgetting", "--score-epochs", "1"), "forgetting takes at least 2"),
        (("--gradients", "first"), "must be all or last"),
        (("--out", "scores.txt"), r"\.npz or \.parquet"),
        (("--train-limit", "1"), "--train-limit is 1"),
        (("--compare", "a.npz", "b.npz", "--models", "2"), "--compare takes no --models"),
        (("--from-run", "here", "--method", "el2n"), "--from-run takes no --method"),
        (("--compare", "a.npz", "b.npz", "--from-run", "here"), "--compare takes no --from-run"),
        (("--compare", "a.npz", "b.npz"), "there is no scores file 'a.npz'"),
        (("--from-run", "here"), "'here' holds no run"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    flags: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LeanError, match=message):
        call("score", *flags)
    assert not list(tmp_path.iterdir())


def test_without_out_the_file_is_named_after_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("score", *SMALL, "--method", "forgetting", "--models", 1, "--score-epochs", 2, "--seed", 3)
    assert (tmp_path / "scores-digits-forgetting-seed3.npz").exists()
    assert (tmp_path / "scores-digits-forgetting-seed3" / "summary.json").exists()

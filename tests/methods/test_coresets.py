"""Coresets: what is chosen, how it is weighed, when it is chosen anew, and what that costs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.coresets import Looked, facility_location, glister, quotas, similarity, stands_for, validation_gains
from leantrain.errors import LeanError
from leantrain.estimate import expected_cost
from leantrain.ledger import Ledger
from leantrain.methods import parse_method
from leantrain.methods.coreset import FacilityLocation

CORESETS = ("facility-location", "glister", "grand-coreset")


def looked_at(n: int = 60, classes: int = 3, seed: int = 0) -> Looked:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % classes
    return Looked(targets, torch.randn(n, 5, generator=rng).relu(), torch.randn(n, classes, generator=rng))


def gradients(looked: Looked) -> Tensor:
    """Each example's own gradient of a last layer that has these features and gives these logits, by autograd."""
    rows = []
    for features, logits, target in zip(looked.features, looked.logits, looked.targets, strict=True):
        weight = torch.zeros(looked.logits.shape[1], len(features) + 1, requires_grad=True)
        shown = torch.cat([features, torch.ones(1)])
        F.cross_entropy(weight @ shown + logits, target).backward()
        assert weight.grad is not None
        rows.append(weight.grad.flatten())
    return torch.stack(rows)


def test_products_of_gradients_are_known_without_making_them() -> None:
    looked = looked_at()
    own = gradients(looked)
    distance = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.allclose(similarity(looked.errors, looked.features), distance.max() - distance, atol=1e-3)
    assert torch.allclose(looked.gradient_norms, own.norm(dim=1), atol=1e-5)
    held = torch.arange(60) < 12
    slope = own[held].mean(0)
    assert torch.allclose(validation_gains(looked, held, torch.empty(0).long(), 0.1), own @ slope, atol=1e-5)


def test_the_greedy_search_finds_what_plain_greedy_finds() -> None:
    near = similarity(None, torch.randn(120, 4, generator=torch.Generator().manual_seed(1)))
    chosen, covered = facility_location(near, 40), torch.zeros(120)
    for found in chosen:
        gains = (near - covered).clamp(min=0).sum(1)
        assert gains[found] == pytest.approx(gains.max().item(), rel=1e-5)
        covered = torch.maximum(covered, near[found])
    assert chosen.unique().numel() == 40
    assert sorted(facility_location(near, 120).tolist()) == list(range(120))
    weight = stands_for(near, chosen)
    assert int(weight.sum()) == 120 and int(weight.min()) >= 1


@pytest.mark.slow
def test_the_objective_is_that_of_apricot(tmp_path: Path) -> None:
    """In a process of its own, as the threads of what it imports slow torch's down."""
    if importlib.util.find_spec("apricot") is None:
        pytest.skip("apricot-select is not installed")
    near = similarity(None, torch.randn(2000, 10, generator=torch.Generator().manual_seed(2)).softmax(1))
    np.save(tmp_path / "near.npy", near.double().numpy())
    code = (
        "import apricot, numpy as np\n"
        "search = apricot.FacilityLocationSelection(200, metric='precomputed', optimizer='lazy')\n"
        "found = search.fit(np.load('near.npy'))\n"
        "np.save('found.npy', found.ranking)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=200)
    theirs = torch.from_numpy(np.load(tmp_path / "found.npy"))
    ours, other = (near[chosen].max(0).values.sum() for chosen in (facility_location(near, 200), theirs))
    assert ours >= 0.999 * other


def test_large_classes_are_cut_into_parts_of_which_each_gives_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leantrain.methods.coreset.LARGEST", 7)
    method, looked = FacilityLocation(keep=0.5), looked_at()
    chosen, weight = method.choose(Ledger(60), looked, torch.Generator().manual_seed(0))
    assert torch.bincount(looked.targets[chosen]).tolist() == [10, 10, 10] and chosen.unique().numel() == 30
    assert weight is not None and weight.mean() == pytest.approx(1.0) and weight.min() > 0


def test_glister_chooses_what_helps_the_held_out_part() -> None:
    """Half of the labels are wrong, but not in the held-out part: a step on wrong ones would not lower its loss."""
    rng = torch.Generator().manual_seed(4)
    truth = torch.arange(200) % 2
    features = F.one_hot(truth, 2).float() + 0.1 * torch.randn(200, 2, generator=rng)
    held = torch.arange(200) < 40
    wrong = (torch.arange(200) % 4 < 2) & ~held
    targets = torch.where(wrong, 1 - truth, truth)
    looked = Looked(targets, features, torch.zeros(200, 2))
    chosen = glister(looked, held, torch.tensor([40, 40]), rounds=5, rate=0.1)
    assert not wrong[chosen].any() and not held[chosen].any()
    assert torch.bincount(targets[chosen]).tolist() == [40, 40]


def test_the_held_out_gradient_moves_with_what_is_chosen() -> None:
    looked, held = looked_at(), torch.arange(60) < 12
    rest = torch.arange(12, 60)
    assert not torch.allclose(
        validation_gains(looked, held, rest, 5.0), validation_gains(looked, held, rest[:0], 5.0), atol=1e-3
    )


@pytest.mark.parametrize("counts", [[50, 1, 3], [1, 2, 40]])
@pytest.mark.parametrize("name", CORESETS)
def test_no_class_vanishes(name: str, counts: list[int]) -> None:
    targets = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    rng = torch.Generator().manual_seed(0)
    looked = Looked(targets, torch.randn(len(targets), 4, generator=rng), torch.randn(len(targets), 3, generator=rng))
    ledger = Ledger(len(targets))
    method = parse_method(f"{name}[keep=0.1]")
    method.init(ledger)
    chosen, _ = method.choose(ledger, looked, rng)
    assert set(targets[chosen].tolist()) == {0, 1, 2} and chosen.unique().numel() == len(chosen)
    assert quotas(targets, 0.1).tolist() == [max(1, round(0.1 * count)) for count in counts]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def attached(method: str, epochs: int = 6, budget: float | None = None) -> leantrain.Lean:
    rng = torch.Generator().manual_seed(0)
    targets = torch.arange(80) % 4
    data = TensorDataset(torch.randn(80, 1, 4, 4, generator=rng) + targets.view(-1, 1, 1, 1), targets)
    return leantrain.attach(network(), data, method, epochs=epochs, budget=budget)


def train(lean: leantrain.Lean) -> list[set[int]]:
    """What each epoch trained on."""
    optimizer, seen = torch.optim.SGD(lean.model.parameters(), lr=0.1), list[set[int]]()
    while not lean.finished:
        seen.append(set())
        for batch in lean.loader(16):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen[-1] |= set(batch.index.tolist())
    return seen


@pytest.mark.parametrize("name", CORESETS)
def test_it_is_chosen_anew_every_few_epochs_and_all_looks_are_paid_for(name: str) -> None:
    lean = attached(f"{name}[keep=0.6,every=3]")
    asked: list[int] = []
    lean.model.register_forward_hook(lambda module, given, out: asked.append(0 if module.training else len(given[0])))
    seen = train(lean)
    assert all(len(part) == 48 for part in seen)
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4] == seen[5]
    assert sum(asked) == 2 * 80
    assert lean.cost == pytest.approx(6 * 48 + 2 * 80 / 3)
    assert lean.report()["selection_cost"] == 0.0 and "measuring_seconds" not in lean.report()
    if name == "glister":
        held = set(lean.ledger["0.held"].nonzero().squeeze(1).tolist())
        assert len(held) == 8 and not held & set.union(*seen)  # never trained on
    expected = expected_cost(parse_method(f"{name}[keep=0.6,every=3]"), examples=80, epochs=6, batch_size=16)
    assert expected * 80 == pytest.approx(lean.cost)


def test_weights_are_how_many_an_example_stands_for() -> None:
    lean = attached("facility-location[keep=0.5]", epochs=1)
    plan = lean.start_epoch(16)
    assert plan.weight is not None and plan.weight.mean() == pytest.approx(1.0)
    counts = plan.weight / plan.weight.min()
    assert torch.allclose(counts, counts.round()) and counts.max() > 1
    assert attached("facility-location[keep=0.5,weighted=false]", epochs=1).start_epoch(16).weight is None


def test_grand_takes_the_largest_gradients() -> None:
    lean = attached("grand-coreset[keep=0.5]", epochs=1)
    model = lean.model.eval()
    norms = leantrain.scoring.kinds.grand.gradient_norms(model, *lean._dataset.source.tensors, "last")
    model.train()
    lean.start_epoch(16)
    chosen = lean.ledger["0.chosen"]
    assert norms[chosen].min() >= norms[~chosen].max()


def test_a_budget_pays_for_the_looks_too() -> None:
    lean = attached("facility-location[keep=0.5,every=2]", epochs=8, budget=0.5)
    train(lean)
    assert lean.cost == pytest.approx(0.5 * 8 * 80, abs=16) and lean.progress == 1.0


def test_a_model_without_a_linear_head_is_refused() -> None:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 4), nn.Flatten())
    data = TensorDataset(torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    with pytest.raises(LeanError, match="is a Conv2d"):
        leantrain.attach(convolution, data, "glister", epochs=1)
    with pytest.raises(LeanError, match="more than the whole set"):
        parse_method("glister[keep=0.95]")

"""Freezing: the first layers do not learn, by their share of the arithmetic, and their backward pass is saved."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain import _torchvision
from leantrain.errors import LeanError
from leantrain.models import build
from leantrain.tuning import layers_in_order


def network() -> nn.Sequential:
    """Three convolutions of 9, 54 and 54 multiplications a pixel and channel, and a classifier of 24 in all."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU()]
    body += [nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


TOTAL = 16 * 16 * 6 * (9 + 54 + 54) + 24
FIRST, SECOND = 16 * 16 * 6 * 9 / TOTAL, 16 * 16 * 6 * (9 + 54) / TOTAL


def attached(method: str, budget: float | None = None, epochs: int = 2) -> leantrain.Lean:
    data = TensorDataset(torch.randn(48, 1, 16, 16), torch.arange(48) % 4)
    return leantrain.attach(network(), data, method, epochs=epochs, budget=budget)


def moved(lean: leantrain.Lean) -> set[str]:
    """Train to the end; the layers whose parameters are others than before."""
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in lean.model.named_parameters()}
    while not lean.finished:
        for batch in lean.loader(8):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {n.split(".")[0] for n, p in lean.model.named_parameters() if not torch.equal(p, before[n])}


@pytest.mark.parametrize(
    ("share", "learnt", "fixed"),
    [
        (0.05, {"0", "1", "3", "4", "6", "10"}, 0.0),  # the first convolution is more than that
        (0.1, {"3", "4", "6", "10"}, FIRST),
        (0.6, {"6", "10"}, SECOND),
        (0.99, {"6", "10"}, SECOND),
        (0.9999, {"10"}, 1 - 24 / TOTAL),
    ],
)
def test_the_layers_that_fit_into_the_share_stay_and_cost_no_backward_pass(
    share: float, learnt: set[str], fixed: float
) -> None:
    lean = attached(f"freezing[share={share}]")
    assert moved(lean) == learnt
    assert lean.cost_share == pytest.approx(1 - fixed * 2 / 3)
    assert all(parameter.requires_grad for parameter in lean.model.parameters())


def test_a_backward_pass_ends_where_the_first_learning_layer_begins() -> None:
    lean = attached("freezing[share=0.6]")
    answers = dict[str, bool]()
    for name, layer in lean.model.named_children():
        layer.register_forward_hook(lambda _, given, answer, name=name: answers.update({name: answer.requires_grad}))
    lean.loss(next(iter(lean.loader(8)))).backward()
    assert [name for name, needed in answers.items() if needed] == ["6", "7", "8", "9", "10"]


def test_fixed_layers_go_on_taking_statistics() -> None:
    lean = attached("freezing[share=0.6]")
    norm = lean.model.get_submodule("1")
    before = norm.running_mean.clone()
    moved(lean)
    assert not torch.equal(norm.running_mean, before)


def test_what_it_saves_pays_for_more_passes_under_a_budget() -> None:
    alone, chained = attached("plain", 0.5, epochs=8), attached("freezing", 0.5, epochs=8)
    assert "0" in moved(alone)
    assert "0" not in moved(chained)
    assert chained.cost_share == pytest.approx(0.5, rel=0.02) == pytest.approx(alone.cost_share, rel=0.02)
    assert chained.ledger["trained"].sum() > alone.ledger["trained"].sum()


def torchvision_vit() -> nn.Module:
    """Its attention is torch's own, which uses the weights of a layer that it never calls."""
    _torchvision.prepare()
    from torchvision.models import VisionTransformer

    made: nn.Module = VisionTransformer(64, 8, 2, 2, hidden_dim=32, mlp_dim=128, num_classes=4)
    return made


@pytest.mark.parametrize("name", ["test_vit", "torchvision", "test_convnext", "mobilenetv2_035"])
def test_published_networks_are_fixed_from_their_input_on(name: str) -> None:
    """Positions and class tokens are the model's own parameters, and come before every layer."""
    model = torchvision_vit() if name == "torchvision" else build(name, classes=4, image_size=64)
    layers = layers_in_order(model, torch.randn(2, 3, 64, 64))
    ends = [layer.end for layer in layers]
    assert ends == sorted(ends) and ends[-1] == 1.0
    held = {id(p) for layer in layers for p in layer.module.parameters(recurse=False)}
    assert held == {id(parameter) for parameter in model.parameters()}
    data = TensorDataset(torch.randn(8, 3, 64, 64), torch.arange(8) % 4)
    lean = leantrain.attach(model, data, "freezing[share=0.5]", epochs=1)
    lean.loss(next(iter(lean.loader(8)))).backward()
    without = [p for layer in layers if layer.end <= 0.5 for p in layer.module.parameters(recurse=False)]
    assert without and all(parameter.grad is None for parameter in without)
    assert any(parameter.grad is not None for parameter in model.parameters())
    assert lean.cost_share == pytest.approx(1 - 2 / 3 * 0.5, abs=0.15)


def test_a_model_without_a_matrix_is_refused() -> None:
    data = TensorDataset(torch.randn(8, 1, 16, 16), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(LeanError, match="none of its layers can be fixed"):
        leantrain.attach(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), data, "freezing", epochs=2)


@pytest.mark.parametrize("method", [None, "freezing", "lean"])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4)], ids=["batchnorm", "groupnorm"])
def test_a_budget_alone_says_what_is_for_a_model_that_comes_with_weights(norm: nn.Module, method: str | None) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), copy.deepcopy(norm), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    data = TensorDataset(torch.randn(32, 1, 16, 16), torch.arange(32) % 2)

    def said(saved: dict[str, Any] | None = None) -> list[str]:
        lean = leantrain.attach(model, data, method, epochs=1, budget=0.5)
        if saved is not None:
            lean.load_state_dict(saved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for batch in lean.loader(batch_size=8):
                lean.loss(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        states.append(lean.state_dict())
        return [str(warning.message) for warning in found if "comes with weights" in str(warning.message)]

    states = list[dict[str, Any]]()
    assert not said()  # from nothing
    again = said()  # with the weights of that
    assert len(again) == (method is None)
    assert all("method='freezing'" in text for text in again)
    assert not said(states[0])  # a run that goes on has not come from elsewhere

"""FixRes: small images first, then only the classifier and BatchNorm at full size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.errors import LeanError
from leantrain.estimate import expected_cost
from leantrain.methods import parse_method


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


def attached(method: str = "fixres[scale=0.5,tune=0.25]", budget: float | None = None) -> leantrain.Lean:
    data = TensorDataset(torch.randn(48, 1, 16, 16), torch.arange(48) % 4)
    return leantrain.attach(network(), data, method, epochs=4, budget=budget)


def train(lean: leantrain.Lean) -> list[tuple[int, set[str], float]]:
    """The side shown, what learnt, and the cost, step by step."""
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    steps, sides = [], list[int]()
    lean.model.register_forward_pre_hook(lambda module, given: sides.append(given[0].shape[-1]))
    while not lean.finished:
        for batch in lean.loader(8):
            before = {name: p.detach().clone() for name, p in lean.model.named_parameters()}
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            moved = {name for name, p in lean.model.named_parameters() if not torch.equal(p, before[name])}
            steps.append((sides[-1], moved, batch.cost / len(batch)))
    return steps


EVERYTHING = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "7.weight", "7.bias"}
TUNED = {"1.weight", "1.bias", "7.weight", "7.bias"}


def test_only_classifier_and_batchnorm_learn_at_full_size() -> None:
    lean = attached()
    steps = train(lean)
    assert [side for side, _, _ in steps] == [8] * 18 + [16] * 6
    assert all(moved == EVERYTHING for _, moved, _ in steps[:18])
    assert all(moved == TUNED for _, moved, _ in steps[18:])  # no momentum, no weight decay on the others
    assert [cost for _, _, cost in steps] == pytest.approx([0.25] * 18 + [2 / 3] * 6)
    assert all(p.requires_grad for p in lean.model.parameters())
    share = parse_method("fixres[scale=0.5,tune=0.25]").expected_share
    assert lean.cost_share == pytest.approx(share) == 0.75 * 0.25 + 0.25 * 2 / 3
    assert expected_cost(lean.method, examples=48, epochs=4, batch_size=8, side=16) == pytest.approx(
        4 * share, abs=0.02
    )


def test_fine_tuning_may_begin_inside_an_epoch_and_is_a_share_of_a_budget() -> None:
    steps = train(attached("fixres[scale=0.5,tune=0.125]"))
    assert [side for side, _, _ in steps] == [8] * 21 + [16] * 3
    lean = attached(budget=0.3)
    tuned = sum(8 * cost for side, _, cost in train(lean) if side == 16)
    assert lean.cost_share == pytest.approx(0.3, abs=0.05) and tuned / lean.cost == pytest.approx(0.25, abs=0.1)


def test_a_model_without_a_matrix_has_nothing_to_tune() -> None:
    data = TensorDataset(torch.randn(8, 1, 16, 16), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(LeanError, match="no layer that could be its classifier"):
        leantrain.attach(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), data, "fixres", epochs=2)

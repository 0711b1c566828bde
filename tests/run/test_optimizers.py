"""Optimisers: torch's to the bit, and none copies weights in channels_last, as torch's fused ones do on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from leantrain.run.config import TrainConfig
from leantrain.run.optimizers import build_optimizer

CPU = torch.device("cpu")


def network() -> nn.Module:
    """Weights of every layout: an ordinary kernel, 1×1, depthwise, a matrix, vectors, and one that never learns."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model.register_parameter("unused", nn.Parameter(torch.ones(2, 3, 3, 3)))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def backward(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 3, 9, 9, generator=generator).contiguous(memory_format=torch.channels_last)
    model(inputs).square().mean().backward()


def settings(optimizer: str, momentum: float = 0.9) -> TrainConfig:
    return TrainConfig(optimizer=optimizer, momentum=momentum, lr=0.1, weight_decay=0.01)


def of_torch(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """What `build_optimizer` makes, of torch's own kind."""
    ours = build_optimizer(config, model, CPU)
    kind: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    more = {"momentum": config.momentum, "nesterov": config.momentum > 0} if config.optimizer == "sgd" else {}
    groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in ours.param_groups]
    made: torch.optim.Optimizer = kind(groups, lr=0.1, fused=True, **more)
    return made


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.9), ("adamw", 0.9)])
def test_weights_are_those_of_torchs_optimiser_to_the_bit(optimizer: str, momentum: float) -> None:
    config, ours, torchs = settings(optimizer, momentum), network(), network()
    made = build_optimizer(config, ours, CPU), of_torch(config, torchs)
    for _ in range(4):
        for model, one in zip((ours, torchs), made, strict=True):
            backward(model)
            one.step()
            one.zero_grad(set_to_none=True)
    start = network().state_dict()
    for name, value in ours.named_parameters():
        assert value.equal(torchs.get_parameter(name))
        if name == "unused" or name.endswith("weight"):
            assert value.equal(start[name]) == (name == "unused")
        assert value.stride() == start[name].stride()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_what_an_optimiser_keeps_is_of_the_weights_alone_and_goes_on_after_a_checkpoint(optimizer: str) -> None:
    config, whole, cut = settings(optimizer), network(), network()
    first = build_optimizer(config, whole, CPU)
    for _ in range(3):
        backward(whole)
        first.step()
        first.zero_grad()
    assert set(first.state) <= set(whole.parameters())  # and no view of one

    before = build_optimizer(config, cut, CPU)
    backward(cut)
    before.step()
    after = build_optimizer(config, cut, CPU)
    after.load_state_dict(before.state_dict())
    for _ in range(2):
        cut.zero_grad()
        backward(cut)
        after.step()
    assert all(a.equal(b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def copies(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """How often a step copies a kernel."""
    backward(model)
    optimizer.step()  # which makes what it keeps
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as made:
        optimizer.step()
    return sum(event.name == "aten::copy_" and len(event.input_shapes[0]) == 4 for event in made.events())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_no_kernel_is_copied(optimizer: str) -> None:
    model = network()
    assert copies(model, build_optimizer(settings(optimizer), model, CPU)) == 0
    assert copies(model, of_torch(settings(optimizer), model)) > 0  # or these optimisers need not be

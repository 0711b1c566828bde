"""Precision: the network computes in it, losses stay in float32, and fp16 scales them so that no gradient is lost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.run.config import TrainConfig
from leantrain.run.optimizers import build_optimizer
from leantrain.run.precision import Precision
from leantrain.wrappers import unwrapped

CPU = torch.device("cpu")


def step(name: str, clip: float | None = None, times: float = 1.0) -> tuple[list[Tensor], Precision]:
    """The weights of a small network after one step, and what made it."""
    torch.manual_seed(0)
    model, precision = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), Precision(name, CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)  # as the loop's
    logits = precision.wrapped(model)(torch.randn(32, 8))
    precision.backward(F.cross_entropy(logits.float(), torch.arange(32) % 3) * times)
    precision.step(optimizer, clip, model.parameters())
    return [p.detach().clone() for p in model.parameters()], precision


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_network_computes_in_the_precision_that_was_chosen(name: str, dtype: torch.dtype) -> None:
    model = nn.Linear(4, 2)
    assert Precision(name, CPU).wrapped(model)(torch.randn(3, 4)).dtype == dtype
    assert model.weight.dtype == torch.float32


def test_fp32_wraps_nothing_and_the_others_are_seen_through() -> None:
    model = nn.Linear(4, 2)
    assert Precision("fp32", CPU).wrapped(model) is model
    assert unwrapped(Precision("bf16", CPU).wrapped(model)) is model


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_step_in_lower_precision_is_nearly_one_in_fp32(name: str, clip: float | None) -> None:
    exact, near = step("fp32", clip)[0], step(name, clip)[0]
    before = step("fp32", times=0.0)[0]
    for start, a, b in zip(before, exact, near, strict=True):
        assert not torch.equal(start, a)
        torch.testing.assert_close(b - start, a - start, rtol=0.05, atol=0.05 * float((a - start).abs().max()))


def test_gradients_get_no_longer_than_the_clip() -> None:
    before, after = step("fp32", times=0.0)[0], step("fp32", 0.01, times=1000.0)[0]
    length = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]).norm()
    assert float(length) == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_fp16_keeps_gradients_that_would_be_zero() -> None:
    """A loss times 1e-7 has gradients below what fp16 holds; they are scaled, so the step is the exact one."""
    before = step("fp32", times=0.0)[0]
    exact, near = step("fp32", times=1e-7)[0], step("fp16", times=1e-7)[0]
    moved = [float((a - b).abs().max()) for a, b in zip(exact, before, strict=True)]
    assert max(moved) > 0
    for a, b, most in zip(exact, near, moved, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0.1 * most)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_fp16_makes_no_step_that_is_not_finite_and_scales_less_from_then_on(clip: float | None) -> None:
    before = step("fp32", times=0.0)[0]
    after, precision = step("fp16", clip, times=1e30)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    fresh = Precision("fp16", CPU)
    assert precision.state_dict()["scale"] == 0.5 * fresh.state_dict()["scale"]

    fresh.load_state_dict(precision.state_dict())  # as a checkpoint does
    assert fresh.state_dict() == precision.state_dict()
    assert Precision("bf16", CPU).state_dict() == {}


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_step_after_one_that_fp16_did_not_make_is_the_first(optimizer: str, clip: float | None) -> None:
    def trained(*scales: float) -> list[Tensor]:
        torch.manual_seed(0)
        model, precision = nn.Linear(8, 3), Precision("fp16", CPU)
        made = build_optimizer(TrainConfig(optimizer=optimizer, lr=0.1, weight_decay=0.0, precision="fp16"), model, CPU)
        for scale in scales:
            logits = precision.wrapped(model)(torch.ones(4, 8))
            precision.backward(F.cross_entropy(logits.float(), torch.arange(4) % 3) * scale)
            precision.step(made, clip, model.parameters())
            made.zero_grad()
        return [p.detach() for p in model.parameters()]

    for after, alone in zip(trained(1e30, 1.0, 1.0), trained(1.0, 1.0), strict=True):
        torch.testing.assert_close(after, alone, rtol=1e-3, atol=1e-4)

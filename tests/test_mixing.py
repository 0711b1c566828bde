"""Composites show what they say they show: exact shares, every pixel of one constituent, nothing lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leantrain.mixing import (
    DRAWS,
    SMALLEST_SHARE,
    CutMix,
    Mixer,
    MixUp,
    adaptive_shares,
    area_shares,
    cutmix,
    mixup,
    rectangle_owner,
    strip_owner,
)
from leantrain.rng import uniform


def draws_for(count: int, k: int = 2, epoch: int = 0) -> Tensor:
    return uniform(0, epoch, torch.arange(count), k * DRAWS, "mix")


def constituents(k: int, count: int, height: int = 8, width: int = 8) -> Tensor:
    """Constituent j of composite b is the constant picture 10·j + b / 100, so that pixels tell where they come from."""
    values = torch.arange(k).view(k, 1) * 10.0 + torch.arange(count) / 100
    return values.reshape(-1, 1, 1, 1).expand(-1, 3, height, width).contiguous()


def test_mixup_is_the_weighted_mean() -> None:
    inputs = constituents(3, 4)
    shares = torch.tensor([[0.5, 0.2, 1.0, 0.1], [0.25, 0.3, 0.0, 0.1], [0.25, 0.5, 0.0, 0.8]])
    expected = sum(shares[j].view(4, 1, 1, 1) * inputs.view(3, 4, 3, 8, 8)[j] for j in range(3))
    torch.testing.assert_close(mixup(inputs, shares), expected)


@pytest.mark.parametrize("patch", ["half", "rect"])
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("ratio", ["equal", "beta", 0.3])
def test_cutmix_shows_at_each_pixel_the_constituent_that_owns_it(patch: str, k: int, ratio: float | str) -> None:
    inputs = constituents(k, 50, 12, 10)
    mixed = CutMix(ratio=ratio, patch=patch).mix(inputs, k, torch.zeros(k, 50), draws_for(50, k))
    assert mixed.owner is not None
    assert mixed.owner.shape == (50, 12, 10)
    assert mixed.owner.max() < k
    for b in range(50):
        for j in range(k):
            where = mixed.owner[b] == j
            assert (mixed.inputs[b][:, where] == inputs[j * 50 + b, 0, 0, 0]).all()
            assert mixed.shares[j, b] == pytest.approx(where.float().mean().item(), abs=1e-6)
    torch.testing.assert_close(mixed.shares.sum(0), torch.ones(50))


def test_by_default_each_of_two_gets_exactly_a_random_half() -> None:
    owner = strip_owner(torch.full((2, 400), 0.5), 8, 8, draws_for(400))
    assert (area_shares(owner, 2) == 0.5).all()
    halves = {tuple(o.flatten().tolist()) for o in owner}
    assert len(halves) == 4  # left, right, top, bottom
    first = (owner[:, 0, 0] == 0).float().mean()
    assert 0.4 < first < 0.6


def test_strips_of_an_odd_picture_report_the_share_that_was_really_covered() -> None:
    owner = strip_owner(torch.full((2, 8), 0.5), 7, 7, draws_for(8))
    shares = area_shares(owner, 2)
    assert set(((shares * 49).round() % 7).flatten().tolist()) == {0.0}
    assert (shares != 0.5).all()


def test_a_clipped_rectangle_counts_what_is_left_of_it() -> None:
    shares = torch.tensor([[0.75], [0.25]])
    draws = torch.zeros(1, 2 * DRAWS)  # centre in the corner: a quarter of the 8×8 rectangle remains
    owner = rectangle_owner(shares, 16, 16, draws)
    assert area_shares(owner, 2).flatten().tolist() == [1 - 16 / 256, 16 / 256]


def test_later_rectangles_are_pasted_over_earlier_ones() -> None:
    shares = torch.tensor([[0.2], [0.5], [0.3]])
    owner = rectangle_owner(shares, 16, 16, torch.full((1, 3 * DRAWS), 0.5))
    assert owner[0, 8, 8] == 2
    assert set(owner.unique().tolist()) == {0, 1, 2}


def test_adaptive_mixing_favours_the_harder_constituent() -> None:
    shares = adaptive_shares(torch.tensor([[1.0, 3.0, 5.0, float("nan"), 0.0], [1.0, 1.0, 0.0, 2.0, 0.0]]))
    assert shares[0].tolist() == pytest.approx([0.5, 0.75, (1.0 / (1 + SMALLEST_SHARE)), 0.5, 0.5])
    torch.testing.assert_close(shares.sum(0), torch.ones(5))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e30), min_size=2, max_size=5))
def test_adaptive_shares_are_always_shares(losses: list[float]) -> None:
    shares = adaptive_shares(torch.tensor(losses).unsqueeze(1))
    assert shares.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert (shares > 0.9 * SMALLEST_SHARE / (1 + SMALLEST_SHARE * len(losses))).all()


def test_infinite_loss_does_not_spoil_the_composite() -> None:
    mixed = MixUp().mix(constituents(2, 3), 2, torch.tensor([[float("inf"), 1, 2], [1, float("nan"), 2]]), draws_for(3))
    assert mixed.inputs.isfinite().all()
    assert mixed.shares[0].tolist() == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize("mixer", [CutMix(), CutMix(patch="rect"), MixUp()])
def test_memory_format_and_dtype_stay(mixer: Mixer) -> None:
    inputs = torch.rand(12, 3, 8, 8).to(torch.bfloat16).to(memory_format=torch.channels_last)
    mixed = mixer.mix(inputs, 2, torch.ones(2, 6), draws_for(6))
    assert mixed.inputs.dtype == torch.bfloat16
    assert mixed.inputs.is_contiguous(memory_format=torch.channels_last)


def test_a_composite_depends_on_its_own_examples_only() -> None:
    inputs = torch.rand(20, 3, 8, 8)
    index = torch.arange(100, 110)

    def mix(keep: Tensor) -> Tensor:
        both = torch.cat([inputs[:10][keep], inputs[10:][keep]])
        return CutMix().mix(both, 2, torch.ones(2, len(keep)), uniform(0, 4, index[keep], 2 * DRAWS, "mix")).inputs

    whole = mix(torch.arange(10))
    some = torch.tensor([7, 2, 5])
    assert mix(some).equal(whole[some])


def test_cutmix_of_one_owner_is_that_constituent() -> None:
    inputs = torch.rand(8, 3, 6, 6)
    assert cutmix(inputs, torch.ones(4, 6, 6, dtype=torch.uint8)).equal(inputs[4:])

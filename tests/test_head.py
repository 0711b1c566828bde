"""A new classifier on a model that knows something already: fitted in closed form, for one forward pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leantrain.head
from leantrain.errors import LeanError
from leantrain.head import fit_head, least_squares


def answered(rows: Tensor, wanted: Tensor, ridge: float, asked: Tensor) -> Tensor:
    """Ridge regression by the book, its level free."""
    middle, level = rows.mean(0), wanted.mean(0)
    centred = rows - middle
    damped = centred.T @ centred + ridge * torch.eye(rows.shape[1], dtype=rows.dtype)
    return level + (asked - middle) @ torch.linalg.solve(damped, centred.T @ (wanted - level))


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 40), st.integers(2, 40), st.integers(0, 10_000))
def test_what_it_says_of_a_row_that_is_left_out_is_what_a_fit_without_it_answers(n: int, d: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=rng, dtype=torch.float64) + 2
    wanted = rows[:, :2] + torch.randn(n, 2, generator=rng, dtype=torch.float64)
    fit = least_squares(rows, wanted)
    fitted = rows @ fit.weight + fit.bias
    largest = float(torch.linalg.eigvalsh((rows - rows.mean(0)).T @ (rows - rows.mean(0)))[-1])
    candidates = [share * largest for share in leantrain.head.RIDGES]  # one of them is the one it took
    ridge = min(candidates, key=lambda one: float((answered(rows, wanted, one, rows) - fitted).abs().max()))
    assert torch.allclose(answered(rows, wanted, ridge, rows), fitted, atol=1e-6)
    for row in range(0, n, 5):
        others = torch.arange(n) != row
        assert torch.allclose(answered(rows[others], wanted[others], ridge, rows[row]), fit.left_out[row], atol=1e-6)


class Known(nn.Module):
    """Its features tell three classes apart, by where in the image it is light; its classifier knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(3))
        self.head = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).flatten(1))
        return y


def batches(n: int = 120, noise: float = 0.5) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    targets = torch.arange(n) % 3
    inputs = noise * torch.randn(n, 1, 9, 9, generator=rng)
    for label in range(3):
        inputs[targets == label, :, 3 * label : 3 * label + 3] += 1
    return list(zip(inputs.split(32), targets.split(32), strict=True))


def test_a_fitted_head_answers_images_that_it_has_not_seen() -> None:
    model = Known()
    found = fit_head(model, batches())
    inputs, targets = (torch.cat(part) for part in zip(*batches(300)[4:], strict=True))
    accuracy = (model.eval()(inputs).argmax(1) == targets).float().mean()
    assert found.examples == 120
    assert accuracy > 0.95
    assert found.accuracy == pytest.approx(float(accuracy), abs=0.05)


def test_its_answers_are_as_sure_as_they_are_right() -> None:
    """A head that is too sure of itself would send no gradient where it is right, and a large one where it is wrong."""
    sure, unsure = Known(), Known()
    fit_head(sure, batches(noise=0.3))
    promised = fit_head(unsure, batches(noise=6.0)).accuracy
    assert promised < 0.9
    for model, noise, low, high in ((sure, 0.3, 0.85, 1.0), (unsure, 6.0, 0.3, 0.75)):
        inputs, _ = (torch.cat(part) for part in zip(*batches(300, noise)[4:], strict=True))
        with torch.no_grad():
            assert low < float(model.eval()(inputs).softmax(1).amax(1).mean()) <= high


def test_all_but_the_head_stays_as_it_is() -> None:
    model = Known().train()
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    fit_head(model, batches())
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}
    assert model.training and all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_examples_in_other_batches_give_the_same_head() -> None:
    one, other = Known(), Known()
    inputs, targets = (torch.cat(part) for part in zip(*batches(), strict=True))
    fit_head(one, batches())
    fit_head(other, [(inputs, targets)])
    assert torch.allclose(one.head.weight, other.head.weight, atol=1e-4)


def test_no_examples_and_other_heads_are_refused_with_a_sentence() -> None:
    with pytest.raises(LeanError, match="no examples to fit"):
        fit_head(Known(), [])
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(LeanError, match="Conv2d"):
        fit_head(conv, batches())


def test_features_that_say_nothing_or_are_not_finite_bring_no_such_weights() -> None:
    model = Known()
    nn.init.zeros_(model.body[0].weight)
    found = fit_head(model, batches())
    assert found.accuracy < 0.5 and bool(model.head.weight.isfinite().all())
    nn.init.constant_(model.body[0].weight, torch.nan)
    with pytest.raises(LeanError, match="not finite"):
        fit_head(model, batches())


def test_batchnorm_with_kept_statistics_answers_in_training_as_in_evaluation() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(196, 3))
    (inputs, _), *_ = batches()
    model.train()
    leantrain.keep_statistics(model)
    answer = model(inputs)
    answer.sum().backward()
    assert model.training and model[1].weight.grad is not None  # scale and shift go on learning
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert torch.equal(answer, model.eval()(inputs))

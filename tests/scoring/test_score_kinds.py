"""What is measured is what the definitions say, and the model is left alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from scoring_helpers import examples, seeded
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode
from leantrain.models import build
from leantrain.scoring import score_pass
from leantrain.scoring.kinds.el2n import el2n
from leantrain.scoring.kinds.forgetting import forgetting
from leantrain.scoring.kinds.grand import gradient_norms
from leantrain.scoring.kinds.loss import loss


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
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_precision_have_gradient_norms_too(layers: str, dtype: torch.dtype) -> None:
    inputs, targets = examples(9)
    found = gradient_norms(seeded().to(dtype), inputs.to(dtype), targets, layers)
    exact = gradient_norms(seeded(), inputs, targets, layers)
    torch.testing.assert_close(found, exact, rtol=0.05 if dtype is torch.bfloat16 else 1e-5, atol=1e-3)


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


@pytest.mark.parametrize("kind", ["el2n", "loss", "grand", "grand[gradients=last]"])
def test_a_pass_changes_nothing_of_the_model_nor_of_torch_s_generators(kind: str) -> None:
    model, (inputs, targets) = seeded().train(), examples(12)
    model[1].eval()  # as fine-tuning scripts do
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes, generator = [m.training for m in model.modules()], torch.get_rng_state()
    score_pass(model, [(inputs, targets, torch.arange(12))], kind, 12)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_a_frozen_model_drops_nothing_out_and_thaws_after_a_mistake_too() -> None:
    model, (inputs, _) = seeded().train(), examples(4)
    with eval_mode(model):
        assert torch.equal(model(inputs), model(inputs))
    with pytest.raises(RuntimeError), eval_mode(model):
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


def test_a_score_that_training_records_cannot_be_asked_of_a_model() -> None:
    inputs, targets = examples(4)
    with pytest.raises(LeanError, match="forgetting is read from the records of a training"):
        score_pass(seeded(), [(inputs, targets, torch.arange(4))], "forgetting", 4)

"""`lean`: a budget in, a schedule out; and what it does with models that take one size only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.data import TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import leantrain
from drafting import Planner
from leantrain import _torchvision
from leantrain.errors import LeanWarning
from leantrain.forms import FORMS, WHOLE, Form
from leantrain.ledger import Ledger
from leantrain.methods import Moment
from leantrain.methods.growing import Growth
from leantrain.methods.lean import shares, ways
from leantrain.models import build
from leantrain.plan import Plan
from leantrain.pools import FittingPools
from leantrain.rng import generator
from leantrain.tokens import Tokens, find_tokens


def images(n: int = 96, side: int = 32) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 3, side, side, generator=rng), torch.arange(n) % 4)


class FixedPool(nn.Module):
    """Ends as most networks written for CIFAR-10 do: a pool of the last map, as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 4, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.avg_pool2d(self.stem(x).relu(), 8).flatten(1))
        return y


def vit(dynamic: bool) -> nn.Module:
    _torchvision.prepare()
    import timm

    options = {"img_size": 32, "patch_size": 4, "depth": 2, "num_classes": 4, "dynamic_img_size": dynamic}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **options)
    return model


def named(form: Form) -> str:
    return " ".join(f"{kind} {value:g}" for kind, value in form.parts) or "whole"


def train(lean: leantrain.Lean, batch_size: int = 8) -> dict[str, float]:
    """Train to the end; what was spent in each form, as shares of the run's cost."""
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.01)
    spent: dict[str, float] = {}
    while not lean.finished:
        for batch in lean.loader(batch_size):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            name = named(batch.form)
            spent[name] = spent.get(name, 0.0) + batch.cost
    return {name: cost / lean.cost for name, cost in spent.items()}


# -- the schedule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "sides"),
    [
        (32, (12, 16, 24)),
        (28, (12, 16, 24)),
        (64, (24, 32, 48)),
        (128, (48, 64, 96)),
        (192, (64, 96, 128)),
        (224, (96, 96, 160)),  # those of EfficientTrain++
        (256, (96, 128, 192)),
        (20, (12, 12, 16)),
        (8, (8, 8, 8)),
    ],
)
def test_sides_are_twelve_pixels_or_multiples_of_eight_or_thirty_two(side: int, sides: tuple[int, ...]) -> None:
    shrunk, larger, tokens = ways(side, 0.5)
    assert [round(value * side) for value in shrunk.values] == [*sides, side]
    assert [round(value * side) for value in larger.values] == [*(one for one in sides if one > sides[0]), side]
    assert tokens.values == (0.25, 0.5, 0.75, 1.0)
    for way in (shrunk, larger, tokens):
        assert sum(way.shares) == pytest.approx(1.0)


def test_a_smaller_budget_spends_more_of_itself_on_smaller_examples() -> None:
    spent = [shares(budget) for budget in (2.0, 1.0, 0.7, 0.5, 1 / 3, 0.2, 0.01)]
    assert all(sum(parts) == pytest.approx(1.0) and min(parts) > 0.04 for parts in spent)
    assert [parts[0] for parts in spent] == sorted(parts[0] for parts in spent)
    assert shares(0.5) == pytest.approx((0.15, 0.15, 0.4, 0.3))


@pytest.mark.parametrize("side", [32, 64, 128, 224])
def test_a_third_of_the_cost_pays_for_as_many_passes_as_full_training_makes(side: int) -> None:
    assert ways(side, 1 / 3)[0].passes / 3 == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("options", "total"),
    [({"budget": 0.5}, 6.0), ({"budget": 0.33}, 3.96), ({"method": "progressive-resizing"}, 6.28), ({}, 12.0)],
)
def test_what_a_run_will_cost_in_each_form_is_known_before_it_starts(options: dict[str, Any], total: float) -> None:
    lean = leantrain.attach(FixedPool(), images(192), epochs=12, **options)
    expected = lean.expected_costs(8)
    assert sum(expected.values()) == pytest.approx(total, rel=0.03)
    spent = train(lean)
    assert {named(form): cost / total for form, cost in expected.items()} == pytest.approx(spent, abs=0.03)
    assert sum(lean.expected_costs(8).values()) == 0  # nothing is left


def test_the_rest_of_a_run_is_judged_from_where_it_stands() -> None:
    lean = leantrain.attach(FixedPool(), images(), epochs=40, budget=0.5)
    while lean.progress < 0.5:
        for batch in lean.loader(8):
            lean.loss(batch)
    left = 1 - lean.progress
    assert left > 0.3
    shares = {named(form): cost / (20 * left) for form, cost in lean.expected_costs(8).items()}
    assert shares == pytest.approx({"shrunk 0.75": 1 - 0.3 / left, "whole": 0.3 / left}, abs=0.03)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_050", "convnext_atto"])
def test_what_large_images_cost_at_a_smaller_size_is_the_arithmetic_that_they_take(name: str) -> None:
    def arithmetic(side: int) -> float:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, side, side))
        return float(counter.get_total_flops())

    model = build(name, classes=4, channels=3, image_size=224).eval()
    for value in ways(224, 0.5)[0].values:
        share = arithmetic(round(224 * value)) / arithmetic(224)
        assert share == pytest.approx(FORMS["shrunk"].size(value), rel=0.02)


def test_passes_are_counted_by_what_an_example_costs() -> None:
    assert Growth("shrunk", (0.5, 1.0), (0.5, 0.5)).passes == pytest.approx(0.5 / 0.25 + 0.5)
    assert Growth("tokens", (0.5, 1.0), (0.5, 0.5)).passes == pytest.approx(0.5 / 0.5 + 0.5)
    assert FORMS["tokens"] is Tokens


@pytest.mark.parametrize("epochs", [1, 3, 12])
@pytest.mark.parametrize("budget", [0.2, 1 / 3, 0.5, 0.8])
def test_the_budget_is_kept_and_spent_as_planned(epochs: int, budget: float) -> None:
    model = build("resnet8", classes=4, channels=3, image_size=32, width=4)
    lean = leantrain.attach(model, images(), epochs=epochs, budget=budget)
    assert str(lean.method) == "lean"
    spent = train(lean)
    # Within one per cent, or the four examples that half a batch is in a run of a few hundred.
    assert lean.cost == pytest.approx(budget * epochs * 96, rel=0.01, abs=4)
    assert lean.progress == 1.0
    expected = shares(budget)
    names = ("shrunk 0.375", "shrunk 0.5", "shrunk 0.75", "whole")
    one_batch = 8 / (budget * epochs * 96)
    assert [spent.get(name, 0.0) for name in names] == pytest.approx(expected, abs=0.02 + one_batch)


@pytest.mark.parametrize("budget", [0.25, 0.5])
def test_behind_freezing_half_of_the_cost_is_spent_at_three_quarters_of_the_side(budget: float) -> None:
    model = build("resnet8", classes=4, channels=3, image_size=32, width=4)
    lean = leantrain.attach(model, images(), "freezing + lean", epochs=12, budget=budget)
    spent = train(lean)
    assert lean.cost == pytest.approx(budget * 12 * 96, rel=0.01, abs=4)
    small = sum(share for name, share in spent.items() if "shrunk 0.75" in name)
    assert all("learning" in name for name in spent) and len(spent) == 2
    assert small == pytest.approx(0.5, abs=0.05)


def test_a_frozen_transformer_of_one_size_sees_three_quarters_of_its_tokens() -> None:
    spent = train(leantrain.attach(vit(dynamic=False), images(), "freezing + lean", epochs=8, budget=0.5))
    assert sum(share for name, share in spent.items() if "tokens 0.75" in name) == pytest.approx(0.5, abs=0.06)
    assert not any("tokens 0.5" in name or "tokens 0.25" in name for name in spent)


def planned(method: str, losses: list[float], progress: float) -> Plan:
    ledger = Ledger(len(losses))
    values = torch.tensor(losses)
    ledger.record(torch.arange(len(losses)), values, values < 1, WHOLE, 0)
    moment = Moment(1, progress, 16, 8, side=32, left=1e6, budget=0.5, offer=ways(32, 0.5)[0].forms)
    return Planner(method, ledger).plan(moment, generator(0, 1))


def test_what_is_learnt_is_skipped_most_of_the_time_and_counts_for_what_is_skipped() -> None:
    losses = [0.05] * 2000 + [0.15] * 500  # the mean, 0.07, does not matter
    made = planned("lean", losses, 0.3)
    learnt = made.order < 2000
    assert int((~learnt).sum()) == 500
    assert int(learnt.sum()) == pytest.approx(0.3 * 2000, rel=0.1)
    assert made.weight is not None
    assert made.weight[learnt].tolist() == pytest.approx([1 / 0.3] * int(learnt.sum()))
    assert bool((made.weight[~learnt] == 1).all())
    assert planned("lean", losses, 0.9).examples == 2500  # at the end all are trained on
    assert planned("lean", [0.05] * 40, 0.3).examples > 0


def test_what_another_method_chose_or_mixed_is_not_skipped_again() -> None:
    losses = [0.05] * 2000 + [0.15] * 500
    easy = sum(loss < 0.07 for loss in losses)
    assert planned("infobatch + lean", losses, 0.3).examples == pytest.approx(2500 - easy / 2, rel=0.05)
    assert planned("mixtrain-cutmix[select=all] + lean", losses, 0.3).examples == 2500
    assert {form.value("shrunk") for form in planned("lean", losses, 0.0).forms} == {0.375}
    assert {form.value("shrunk") for form in planned("mixtrain-cutmix[select=all] + lean", losses, 0.0).forms} == {0.5}
    assert planned("selective-backprop + lean", losses, 0.3).examples == 2500


def test_a_compiled_model_is_compiled_at_most_once_for_every_size() -> None:
    torch.compiler.reset()
    compiled = CompileCounter()
    model = build("resnet8", classes=4, image_size=32, width=2, seed=0)
    lean = leantrain.attach(torch.compile(model, backend=compiled), images(70), "lean", epochs=6, budget=0.5)
    assert len(train(lean, 16)) == 4
    # torch makes one graph for all sizes after the first, whatever number of examples a batch has
    assert 1 <= compiled.frame_count <= 3


def test_without_a_budget_lean_takes_half() -> None:
    lean = leantrain.attach(FixedPool(), images(), "lean", epochs=8)
    train(lean)
    assert lean.budget == 0.5 and lean.cost_share == pytest.approx(0.5, rel=0.01)


def test_nothing_said_is_plain_training() -> None:
    assert str(leantrain.attach(FixedPool(), images(), epochs=1).method) == "plain"


# -- models that take one size only ------------------------------------------------------------------------------------


def test_a_pool_of_the_whole_map_is_made_to_fit() -> None:
    lean = leantrain.attach(FixedPool(), images(), epochs=6, budget=0.5)
    assert lean.note is None
    assert set(train(lean)) == {"shrunk 0.375", "shrunk 0.5", "shrunk 0.75", "whole"}


def test_a_model_that_does_not_take_the_smallest_size_is_shown_the_next_one_instead() -> None:
    class Squares(nn.Module):
        """Sees squares of 16 pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 16, 16)
            self.head = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.stem(x).relu().mean((2, 3)))
            return y

    lean = leantrain.attach(Squares(), images(), epochs=6, budget=0.5)
    assert lean.note is None
    spent = train(lean)
    assert set(spent) == {"shrunk 0.5", "shrunk 0.75", "whole"}
    assert spent["shrunk 0.5"] == pytest.approx(0.3, abs=0.05)


def test_a_pool_that_fits_stays_as_it_is() -> None:
    inputs = torch.randn(2, 3, 8, 8)
    with FittingPools():
        for pool in (F.avg_pool2d, F.max_pool2d):
            assert pool(inputs, 3).shape == (2, 3, 2, 2)
            assert pool(inputs, 8).shape == (2, 3, 1, 1)
            assert pool(inputs, 9).shape == (2, 3, 1, 1)  # an error outside
            assert pool(input=inputs, kernel_size=9).shape == (2, 3, 1, 1)
        torch.testing.assert_close(F.avg_pool2d(inputs, 9), inputs.mean((2, 3), keepdim=True))
        torch.testing.assert_close(F.max_pool2d(inputs, 9), inputs.amax((2, 3), keepdim=True))
    with pytest.raises(RuntimeError):
        F.avg_pool2d(inputs, 9)


def test_a_transformer_of_one_size_drops_tokens() -> None:
    lean = leantrain.attach(vit(dynamic=False), images(48), epochs=8, budget=0.5)
    spent = train(lean)
    names = ("tokens 0.25", "tokens 0.5", "tokens 0.75", "whole")
    assert [spent[name] for name in names] == pytest.approx(shares(0.5), abs=0.06)
    assert lean.cost_share == pytest.approx(0.5, rel=0.01)
    assert set(train(leantrain.attach(vit(dynamic=True), images(48), epochs=4, budget=0.5))) >= {"shrunk 0.5"}


def test_images_that_are_small_already_are_shown_whole() -> None:
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    with pytest.warns(LeanWarning, match="images of 12 pixels are too small"):
        lean = leantrain.attach(tiny, images(32, 12), epochs=4, budget=0.5)
    assert train(lean) == {"whole": pytest.approx(1.0)}


def test_what_takes_neither_is_shown_whole_and_told_so() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.warns(LeanWarning, match="lean shows no example smaller, so its budget pays for fewer passes: .*12×12"):
        lean = leantrain.attach(flat, images(), epochs=8, budget=0.5)
    assert train(lean) == {"whole": pytest.approx(1.0)}
    assert 3 <= lean.epoch < 7 and lean.cost_share == pytest.approx(0.5)


# -- dropping tokens ---------------------------------------------------------------------------------------------------


def test_tokens_are_found_in_timm_and_torchvision() -> None:
    inputs = images(2).tensors[0]
    block, patches, prefix = find_tokens(vit(dynamic=False), inputs)
    assert (type(block).__name__, patches, prefix) == ("Block", 64, 1)
    _torchvision.prepare()
    from torchvision.models.vision_transformer import VisionTransformer

    other = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=4)
    block, patches, prefix = find_tokens(other, inputs)
    assert (type(block).__name__, patches, prefix) == ("EncoderBlock", 16, 1)


def test_every_block_gets_the_kept_tokens_and_the_class_token() -> None:
    model = vit(dynamic=False)
    lengths: list[int] = []
    for block in model.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda module, args, out: lengths.append(out.shape[1]))
    lean = leantrain.attach(model, images(16), "token-dropping[keep=0.25]", epochs=1)
    lengths.clear()
    for batch in lean.loader(8):
        lean.loss(batch).backward()
    assert lengths == [17] * 4
    assert lean.cost == pytest.approx(16 * 0.25)


def test_other_tokens_are_kept_in_every_epoch_and_the_same_again_in_an_equal_run() -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        lean = leantrain.attach(vit(dynamic=False).eval(), images(8), "token-dropping", epochs=2)
        found = []
        for _ in range(2):
            for batch in lean.loader(8):
                order = batch.index.argsort()
                lean.loss(batch.take(order))
            found.append(float(lean.ledger["loss"].mean()))
        return found

    first, second = losses()
    assert first != second
    assert losses() == [first, second]


def test_no_tokens_no_dropping() -> None:
    with pytest.raises(leantrain.LeanError, match="no blocks that pass the tokens of an image on"):
        leantrain.attach(FixedPool(), images(), "token-dropping", epochs=1)
    with pytest.raises(leantrain.LeanError, match="parts of single examples"):
        leantrain.attach(vit(dynamic=False), images(), "token-dropping + mixtrain-cutmix", epochs=1)


def test_a_class_token_of_any_name_stays() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 8, 8)
            self.class_embedding = nn.Parameter(torch.zeros(8))
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
            )
            self.head = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.class_embedding.expand(len(x), 1, -1), tokens], dim=1)
            for layer in self.layers:
                tokens = layer(tokens)
            y: Tensor = self.head(tokens[:, 0])
            return y

    block, patches, prefix = find_tokens(model := Own(), images(2).tensors[0])
    assert block is model.layers[0] and (patches, prefix) == (16, 1)


def test_bytes_that_the_loop_converts_are_refused_with_a_remedy_or_trained_whole() -> None:
    data = TensorDataset(torch.zeros(16, 3, 32, 32, dtype=torch.uint8), torch.arange(16) % 4)
    with pytest.raises(leantrain.LeanError, match="as example="):
        leantrain.attach(vit(dynamic=False), data, "token-dropping", epochs=1)
    with pytest.warns(LeanWarning, match="only float images"):
        leantrain.attach(vit(dynamic=False), data, epochs=1, budget=0.5)


def test_blocks_that_are_computed_twice_are_not_given_other_tokens_the_second_time() -> None:
    model = vit(dynamic=False)
    model.set_grad_checkpointing(True)  # type: ignore[operator]
    with pytest.raises(leantrain.LeanError, match="gradient checkpointing"):
        leantrain.attach(model, images(), "token-dropping", epochs=1)


def test_what_another_method_shows_is_no_leave_for_lean() -> None:
    class NotBelow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-1] >= 20, "too small"
            y: Tensor = self.head(x.mean((2, 3)))
            return y

    with pytest.warns(LeanWarning, match="lean shows no example smaller"):
        lean = leantrain.attach(NotBelow(), images(), "input-scaling[size=20] + lean", epochs=4)
    assert set(train(lean)) == {"shrunk 0.625"}


def test_a_refused_way_leaves_no_hook_on_the_model() -> None:
    flat = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), nn.Flatten(), nn.Linear(4 * 8 * 8, 4))
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in flat.modules()]
    with pytest.warns(LeanWarning, match="shows no example smaller"):
        leantrain.attach(flat, images(), "random-backprop + lean", epochs=2)
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in flat.modules()] == hooks

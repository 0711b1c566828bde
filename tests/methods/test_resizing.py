"""Methods that show examples smaller: the size at each moment, what it costs, and what the model is given."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from drafting import Planner
from leantrain.batch import Batch
from leantrain.clock import Stopwatch
from leantrain.errors import LeanError
from leantrain.forms import Attached, Form
from leantrain.ledger import Ledger
from leantrain.methods import Moment, ProgressiveResizing, parse_method
from leantrain.models import build
from leantrain.rng import generator
from leantrain.shrinking import Shrunk, size_step


def images(n: int = 24, side: int = 32, width: int | None = None) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 3, side, width or side, generator=rng), torch.arange(n) % 4)


def sizes_shown(lean: leantrain.Lean, epochs: int, batch_size: int = 12) -> list[tuple[int, ...]]:
    """Train, and say the size of every batch as the model got it."""
    shown: list[tuple[int, ...]] = []

    def note(model: nn.Module, given: tuple[Tensor, ...]) -> None:
        if model.training:  # and not a size that is tried
            shown.append(tuple(given[0].shape[-2:]))

    hook = lean.model.register_forward_pre_hook(note)
    loader = lean.loader(batch_size)
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    hook.remove()
    return shown


def resnet8() -> nn.Module:
    return build("resnet8", classes=4, channels=3, image_size=32, width=4)


def test_size_grows_with_the_progress_and_the_last_part_is_whole() -> None:
    lean = leantrain.attach(resnet8(), images(), "progressive-resizing", epochs=10)
    # Of two batches an epoch. 20, 40 and 40 % of the cost are 42, 37 and 21 % of the passes.
    assert sizes_shown(lean, 10) == [(16, 16)] * 8 + [(24, 24)] * 8 + [(32, 32)] * 4
    assert lean.cost == pytest.approx(12 * (8 * 0.25 + 8 * 0.5625 + 4))
    assert lean.progress == 1.0


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 16])
def test_the_size_grows_inside_an_epoch_too_so_that_few_epochs_are_enough(epochs: int) -> None:
    planner = Planner("progressive-resizing", Ledger(4000))
    spent: dict[float, float] = {}
    for epoch in range(epochs):
        plan = planner.plan(Moment(epoch, epoch / epochs, epochs, 4, 32), generator(0, epoch))
        sizes = [plan[b].form.size for b in range(len(plan))]
        assert sizes == sorted(sizes)
        for form, cost in zip(plan.form_of.tolist(), plan.costs().tolist(), strict=True):
            spent[plan.forms[form].size] = spent.get(plan.forms[form].size, 0.0) + cost
    assert sizes[-1] == 1.0
    shares = [cost / sum(spent.values()) for _, cost in sorted(spent.items())]
    assert shares == pytest.approx([0.2, 0.4, 0.4], abs=0.01)


def test_input_scaling_shows_one_size_throughout() -> None:
    lean = leantrain.attach(resnet8(), images(), "input-scaling[size=22]", epochs=2)
    assert sizes_shown(lean, 2) == [(22, 22)] * 4
    assert lean.cost == pytest.approx(2 * 24 * (22 / 32) ** 2)
    by_default = leantrain.attach(resnet8(), images(), "input-scaling", epochs=1)
    assert set(sizes_shown(by_default, 1)) == {(23, 23)}  # 32 over 1.4


def test_sizes_are_those_that_the_model_takes() -> None:
    vit = build("vit_tiny_patch16_224", classes=4, channels=3, image_size=32)  # patches of 4 at this size
    lean = leantrain.attach(vit, images(), "input-scaling[size=22]", epochs=1)
    step = size_step(vit)
    assert step > 1
    (size,) = set(sizes_shown(lean, 1))
    assert size[0] % step == 0 and abs(size[0] - 22) <= step / 2
    assert lean.cost == pytest.approx(24 * (size[0] / 32) ** 2)  # counted by what is really shown


def test_oblong_images_keep_their_shape() -> None:
    lean = leantrain.attach(resnet8(), images(side=32, width=48), "input-scaling[size=16]", epochs=1)
    assert set(sizes_shown(lean, 1)) == {(16, 24)}


def test_shrinking_is_antialiased() -> None:
    stripes = (torch.arange(32) % 2).float().expand(1, 1, 32, 32).clone()  # the finest pattern there is
    batch = Batch((stripes, None), torch.zeros(1), None, Form.of(shrunk=0.5), 0, 0, 1.0, 0.25)
    run = Attached(nn.Conv2d(1, 1, 3), stripes, None, None, Ledger(1), 0, Stopwatch())
    shown: list[Tensor] = []

    def ask(inputs: Tensor) -> leantrain.Answer:
        shown.append(inputs)
        return leantrain.Answer(inputs.flatten(1))

    Shrunk(run).show(stripes, 0.5, batch, ask)
    (small,) = shown
    assert small.shape == (1, 1, 16, 16)
    torch.testing.assert_close(small[..., 1:-1], torch.full((1, 1, 16, 14), 0.5), atol=0.02, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(32, 32), (28, 36), (64, 64), (65, 65)])  # up to 64 by matrix products
@pytest.mark.parametrize("scale", [0.5, 0.75])
def test_small_images_are_shrunk_as_torch_does_it(channels: int, sides: tuple[int, int], scale: float) -> None:
    pictures = torch.randn(3, channels, *sides).contiguous(memory_format=torch.channels_last)
    smaller = [round(side * scale) for side in sides]
    expected = F.interpolate(pictures, size=smaller, mode="bilinear", antialias=True)
    form = Shrunk(Attached(nn.Conv2d(channels, 1, 3), pictures, None, None, Ledger(1), 0, Stopwatch()))
    batch = Batch((pictures, None), torch.zeros(3), None, Form.of(shrunk=scale), 0, 0, 3.0, scale**2)
    shown: list[Tensor] = []

    def ask(inputs: Tensor) -> leantrain.Answer:
        shown.append(inputs)
        return leantrain.Answer(inputs.flatten(1))

    with torch.autocast("cpu", torch.bfloat16):  # of which the pictures are left out
        form.show(pictures, scale, batch, ask)
    (small,) = shown
    torch.testing.assert_close(small, expected, atol=1e-5, rtol=0)
    assert small.is_contiguous(memory_format=torch.channels_last)


def test_the_ledger_says_which_losses_come_from_small_images() -> None:
    lean = leantrain.attach(resnet8(), images(), "progressive-resizing", epochs=5)
    sizes_shown(lean, 1)
    assert lean.ledger["size"].unique().tolist() == [25]
    sizes_shown(lean, 4)
    assert lean.ledger["size"].unique().tolist() == [100]
    assert lean.ledger["constituents"].unique().tolist() == [1]


def test_what_cannot_be_shrunk_is_refused_at_once() -> None:
    flat = TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(LeanError, match="only float images"):
        leantrain.attach(nn.Linear(6, 2), flat, "progressive-resizing", epochs=1)

    class Fixed(nn.Module):
        image_size = 32

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :4]

    with pytest.raises(LeanError, match="takes images of 32 pixels only"):
        leantrain.attach(Fixed(), images(), "progressive-resizing", epochs=1)
    with pytest.raises(LeanError, match="size is 40, but the images have 32"):
        leantrain.attach(resnet8(), images(), "input-scaling[size=40]", epochs=1)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.raises(LeanError, match="cannot be shown 16×16 pixels"):
        leantrain.attach(linear, images(), "progressive-resizing", epochs=1)


@pytest.mark.parametrize(("epochs", "budget"), [(3, 0.3), (16, 0.05), (10, 0.5), (4, 2.0), (1, 0.26)])
def test_a_budget_ends_at_full_size_too(epochs: int, budget: float) -> None:
    lean = leantrain.attach(resnet8(), images(), "progressive-resizing", epochs=epochs, budget=budget)
    shown = []
    while not lean.finished:
        shown += sizes_shown(lean, 1, batch_size=4)
    assert shown[-1] == (32, 32)
    assert shown == sorted(shown)
    assert lean.cost == pytest.approx(24 * epochs * budget, abs=1)


@pytest.mark.parametrize("options", ["", "[small=0.4,middle=0.4]", "[first=0.25,second=0.5,small=0.1,middle=0.3]"])
@pytest.mark.parametrize("budget", [None, 0.5])
def test_shares_are_of_the_runs_cost_with_and_without_a_budget(options: str, budget: float | None) -> None:
    method = parse_method(f"progressive-resizing{options}")
    assert isinstance(method, ProgressiveResizing)
    lean = leantrain.attach(resnet8(), images(), method, epochs=60, budget=budget)
    spent: dict[float, float] = {}
    while not lean.finished:
        for batch in lean.loader(12):
            lean.loss(batch)
            spent[batch.form.size] = spent.get(batch.form.size, 0.0) + batch.cost
    shares = [share / lean.cost for _, share in sorted(spent.items())]
    expected = [method.small, method.middle, 1 - method.small - method.middle]
    assert shares == pytest.approx(expected, abs=0.02)
    if budget is None:
        assert lean.cost_share == pytest.approx(method.expected_share, abs=0.03)


def test_shares_of_the_run_must_fit() -> None:
    with pytest.raises(LeanError, match="more than the whole run"):
        parse_method("progressive-resizing[small=0.7,middle=0.5]")

"""PruneTrain: channels are really removed, from all that holds them, and nothing else changes."""

from __future__ import annotations

import copy
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.channels import Channels
from leantrain.errors import LeanError
from leantrain.models import build
from leantrain.models.nets import SmallResNet
from program import SMALL, run

SIDE = 16


def images(n: int = 24) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 4
    return TensorDataset(torch.randn(n, 3, SIDE, SIDE, generator=rng) + labels.view(-1, 1, 1, 1), labels)


def resnet(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return SmallResNet(1, classes=4, channels=3, width=width, dropout=0.0)


def made(name: str) -> nn.Module:
    return build(name, classes=4, channels=3, image_size=SIDE, width=8 if name == "resnet8" else None)


def silence(channels: Channels, which: slice = slice(1, None, 2)) -> int:
    """Set the weights of some channels of every bundle to zero; how many channels that are."""
    count = 0
    with torch.no_grad():
        for one in channels.bundles:
            gone = list(range(one.full))[which][: one.full - one.least]
            count += len(gone)
            for slot in one.slots:
                if slot.role != "carries":
                    weight = channels._tensor(slot.tensor).movedim(slot.dim, 0)
                    weight.view(one.full, slot.inner, *weight.shape[1:])[gone] = 0.0
    return count


def shaken(model: nn.Module) -> nn.Module:
    """With statistics and biases as training leaves them, so that a wrong entry of them shows."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5) if "var" in name or "weight" in name else tensor.normal_()
    return model


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def work(model: nn.Module, example: Tensor) -> float:
    """Multiplications of convolutions and linear layers, counted while they are done."""
    done = [0.0]

    def note(layer: nn.Module, given: Any, output: Tensor) -> None:
        done[0] += output.numel() * math.prod(layer.weight.shape[1:]) / len(example)

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        model(example)
    for handle in handles:
        handle.remove()
    return done[0]


# -- removing ----------------------------------------------------------------------------------------------------------

MODELS = ["resnet8", "test_resnet", "mobilenetv2_035", "torchvision/mobilenet_v3_small", "torchvision/squeezenet1_1"]


@pytest.mark.parametrize("name", MODELS)
def test_without_channels_that_are_zero_the_network_answers_the_same_and_does_less(name: str) -> None:
    model, example = shaken(made(name)).eval(), images(4).tensors[0]
    channels = Channels(model, example[:2])
    zero = silence(channels)
    before, size, whole = model(example), parameters(model), work(model, example)
    assert channels.remove_below(1e-4) == zero > 0
    torch.testing.assert_close(model(example), before, rtol=1e-4, atol=1e-4)
    assert parameters(model) < 0.8 * size
    assert channels.share == pytest.approx(work(model, example) / whole) and channels.share < 0.8
    for module in model.modules():  # what layers say of themselves is true
        if isinstance(module, nn.Conv2d):
            assert module.weight.shape[:2] == (module.out_channels, module.in_channels // module.groups)
        if isinstance(module, nn.BatchNorm2d):
            assert module.num_features == len(module.weight) == len(module.running_mean) == len(module.running_var)


def test_features_of_a_flattened_map_go_with_their_channel() -> None:
    body = [nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 5), nn.ReLU()]
    model, example = nn.Sequential(*body, nn.Linear(5, 4)), images(4).tensors[0]
    channels = Channels(model, example)
    assert [(one.full, max(slot.inner for slot in one.slots)) for one in channels.bundles] == [(6, 64), (5, 1)]
    silence(channels)
    before = model(example)
    channels.remove_below(1e-4)
    assert model[3].weight.shape == (3, 3 * 64)
    torch.testing.assert_close(model(example), before)


class Odd(nn.Module):
    """What must keep channels in their place: zeros beside them, a slice of them, a mean over them, a group of them."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.inside = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1)
        self.second = nn.Conv2d(6, 8, 1, groups=2 if what == "groups" else 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(self.inside(x).relu())
        if self.what == "pad":
            y = y + F.pad(x, (0, 0, 0, 0, 0, 4))
        if self.what == "slice":
            y = torch.cat([y[:, :4] + x, y[:, 4:]], 1)
        if self.what == "mean":
            y = y + x.mean(1, keepdim=True)
        z: Tensor = self.head(y.mean((2, 3)))
        return z


@pytest.mark.parametrize(
    ("what", "left"), [("plain", {4, 6, 8}), ("groups", {4}), ("pad", {6}), ("slice", {6}), ("mean", {6, 8})]
)
def test_channels_that_meet_something_else_stay(what: str, left: set[int]) -> None:
    assert {one.full for one in Channels(Odd(what), images(2).tensors[0]).bundles} == left


def test_a_channel_that_one_layer_of_a_shared_path_needs_stays() -> None:
    model = resnet()
    channels = Channels(model, images(2).tensors[0])
    silence(channels)
    with torch.no_grad():
        model.get_submodule("layer1.0.conv2").weight[3, 0, 0, 0] = 0.01  # of the path that the stem makes too
    channels.remove_below(1e-4)
    assert channels.widths["conv1.weight"] == 5 and channels.widths["layer1.0.conv1.weight"] == 4
    assert model.get_submodule("layer2.0.downsample.0").in_channels == 5


def test_some_channels_stay_whatever_their_weights() -> None:
    body = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1, stride=2), nn.ReLU()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    channels = Channels(model, images(2).tensors[0])
    silence(channels, slice(None))
    channels.remove_below(1.0)
    assert channels.widths == {"0.weight": 16, "3.weight": 1}  # a strided 1×1 convolution needs more in oneDNN


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_after_removing_is_that_of_the_whole_network_with_zeros(kind: type[torch.optim.Optimizer]) -> None:
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True} if kind is torch.optim.SGD else {}
    model, (inputs, targets) = resnet(), images(16).tensors
    optimizer = kind(model.parameters(), lr=0.05, weight_decay=1e-3, **options)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for _ in range(3):
        step(model, optimizer)
    channels = Channels(model, inputs[:2])
    silence(channels)
    whole = copy.deepcopy(model)
    other = kind(whole.parameters(), lr=0.05, weight_decay=1e-3, **options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    kept = {one.name: (channels.largest()[one.name] > 0).nonzero().squeeze(1) for one in channels.bundles}
    channels.remove_below(1e-4, optimizer)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert step(model, optimizer) == pytest.approx(step(whole, other), rel=1e-4)
    for name, tensor in whole.state_dict().items():
        for bundle, slot in channels._slots_of.get(name, []):
            tensor = tensor.index_select(slot.dim, kept[bundle])
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_growing_changes_no_answer_and_what_is_new_learns() -> None:
    model, (inputs, targets) = shaken(resnet()), images(16).tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    channels = Channels(model, inputs[:2])
    channels.resize({one.name: one.full // 2 for one in channels.bundles}, optimizer)
    before = model.eval()(inputs)
    full = {one.name: one.full for one in channels.bundles}
    channels.grow(full, torch.Generator().manual_seed(0), optimizer)
    torch.testing.assert_close(model(inputs), before, rtol=1e-4, atol=1e-5)
    assert channels.widths == full and channels.share == 1.0
    for _ in range(2):
        F.cross_entropy(model.train()(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    read = model.get_submodule("layer1.0.conv2").weight[:, 4:]
    assert (read != 0).all()


# -- the lasso ---------------------------------------------------------------------------------------------------------


def test_the_lasso_makes_the_share_of_the_first_loss_that_was_asked_for() -> None:
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lean = leantrain.attach(model, images(), "prune-train[penalty=0.2]", epochs=2, optimizer=optimizer)
    convs = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    groups = [w.flatten(1) for w in convs] + [w.transpose(0, 1).flatten(1) for w in convs[1:]]  # not the image's own
    norms = sum(group.norm(dim=1).sum().item() for group in [*groups, model.fc.weight.T])
    first = next(iter(lean.loader(8)))
    loss = lean.loss(first).item()
    lasso = lean._states[0]["coefficient"] * norms
    assert lasso / (loss + lasso) == pytest.approx(0.2, rel=1e-4)


def test_a_step_brings_groups_nearer_to_zero_and_not_across() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    channels = Channels(model, images(2).tensors[0])
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([3.0, 0.1, 0.0, 1.0]).view(4, 1, 1, 1) / math.sqrt(3))
        model[4].weight.fill_(0.5)
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    channels.shrink(2.0, optimizer)  # by 2 × 0.1 / (1 − 0.5)
    norms = model[0].weight.detach().flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor([2.6, 0.0, 0.0, 0.6]))
    assert (model[4].weight == 0.5).all()  # the step has left it alone, as it has no gradient


# -- training ----------------------------------------------------------------------------------------------------------

GROWING = "prune-train[grow=true,threshold=0.1]"


def attached(method: str, epochs: int = 4, **options: Any) -> tuple[leantrain.Lean, torch.optim.Optimizer]:
    """A run whose model has channels that are zero from the beginning, which nothing wakes."""
    model = resnet()
    silence(Channels(model, images(2).tensors[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return leantrain.attach(model, images(), method, epochs=epochs, optimizer=optimizer, **options), optimizer


def train(lean: leantrain.Lean, optimizer: torch.optim.Optimizer, stop_after: int = 10_000) -> list[float]:
    """What an example costs, step by step."""
    costs = list[float]()
    while not lean.finished:
        for batch in lean.loader(8):
            loss = lean.loss(batch)  # held while the next epoch begins, as in most loops
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            costs.append(batch.cost / len(batch))
            if len(costs) == stop_after:
                return costs
    return costs


def test_the_network_gets_smaller_while_it_trains_and_costs_say_so() -> None:
    lean, optimizer = attached("prune-train")
    whole = work(lean.model, images(2).tensors[0])
    costs = train(lean, optimizer)
    small = work(lean.model, images(2).tensors[0]) / whole
    assert small < 0.3 and costs == pytest.approx([1.0] * 3 + [small] * 9)
    assert lean.cost == pytest.approx(8 * sum(costs))
    assert lean.report()["network"] == pytest.approx(small) and lean.report()["channels"] == 0.5
    assert all(state.shape == p.shape for p, held in optimizer.state.items() for state in held.values())


def test_a_strong_lasso_drives_channels_to_zero() -> None:
    lean, optimizer = attached("prune-train[penalty=0.97]", epochs=6)
    train(lean, optimizer)
    assert lean.report()["channels"] < 0.5


def test_what_is_removed_stays_so_outside_of_start_and_until() -> None:
    lean, optimizer = attached("prune-train[start=0.25,until=0.75]")
    costs = train(lean, optimizer)
    assert costs[:6] == [1.0] * 6 and set(costs[6:]) == {costs[6]} and costs[6] < 0.3
    before = lean.model.get_submodule("conv1").weight.detach().clone()
    optimizer.zero_grad(set_to_none=False)
    lean._shrink(optimizer, (), {})
    assert torch.equal(lean.model.get_submodule("conv1").weight, before)  # nor is there a lasso


def test_channels_are_removed_every_few_epochs_only() -> None:
    lean, optimizer = attached("prune-train[every=2]")
    costs = train(lean, optimizer)
    assert costs[:6] == [1.0] * 6 and costs[6] < 0.3


def test_a_budget_is_kept_and_buys_more_epochs_of_the_smaller_network() -> None:
    lean, optimizer = attached("prune-train", budget=0.5)
    train(lean, optimizer)
    assert lean.cost_share == pytest.approx(0.5, abs=0.02) and lean.epoch >= 4


def test_a_network_that_grows_starts_small_is_pruned_and_ends_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    removed, remove = list[int](), Channels.remove_below
    monkeypatch.setattr(Channels, "remove_below", lambda self, *args: removed.append(remove(self, *args)))
    lean, optimizer = attached("prune-train[grow=true,begin=0.25,most=0.6]", epochs=8)
    shares = train(lean, optimizer)[::3]
    assert shares[0] == pytest.approx(1 / 16, abs=0.03)
    assert shares[0] < shares[1] < shares[2] < shares[3] <= 0.6
    assert shares[4:] == sorted(shares[4:], reverse=True)  # it grows in the first half of the run
    assert len(removed) == 7 and removed[0] == 14  # of each bundle's first quarter, the half that is zero
    lean, optimizer = attached("prune-train[grow=true,begin=0.9,most=0.3]")
    assert 0.2 < max(train(lean, optimizer, stop_after=1)) <= 0.3


@pytest.mark.parametrize("method", ["prune-train", GROWING, "mixtrain-cutmix + prune-train", "prune-train + fixres"])
def test_a_run_of_your_own_that_was_cut_goes_on_bit_for_bit(method: str) -> None:
    (whole, optimizer), (cut, cutting), (resumed, going_on) = (attached(method) for _ in range(3))
    train(whole, optimizer)
    train(cut, cutting, stop_after=5)
    file = io.BytesIO()
    torch.save([cut.state_dict(), cut.model.state_dict(), cutting.state_dict()], file)
    file.seek(0)
    for one, state in zip((resumed, resumed.model, going_on), torch.load(file, weights_only=True), strict=True):
        one.load_state_dict(state)  # the run before its model, to which it gives the widths
    train(resumed, going_on)
    assert whole.report()["prune-train/network" if "+" in method else "network"] < 1.0
    for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert resumed.cost == pytest.approx(whole.cost)


def test_what_fixres_keeps_as_it_is_the_lasso_leaves_alone() -> None:
    lean, optimizer = attached("prune-train + fixres[tune=0.5]")
    train(lean, optimizer, stop_after=11)
    before = {name: p.detach().clone() for name, p in lean.model.named_parameters()}
    train(lean, optimizer, stop_after=1)
    moved = {name for name, p in lean.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all("bn" in name or "downsample.1" in name or name.startswith("fc") for name in moved)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_smaller_network_is_saved_and_evaluated(tmp_path: Path) -> None:
    done = run("train", *SMALL, "--epochs", 3, "--method", "prune-train[threshold=0.5]", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["cost_epochs"] < 3
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["network"] < 0.8
    done = run("eval", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_accuracy"] == pytest.approx(result["test_accuracy"])


# -- what is refused ---------------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Has a width written into its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.conv(x).mean((2, 3)).reshape(-1, 6))
        return y


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            build("test_vit", classes=4, channels=3, image_size=SIDE),
            "VisionTransformer has no convolution whose channels",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 9), nn.ReLU(), nn.Linear(9, 4)), "no convolution whose channels"),
        (Fixed(), "Fixed cannot be run with fewer channels"),
        (torch.compile(Fixed()), "Fixed is compiled"),
    ],
)
def test_a_model_whose_channels_cannot_go_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.attach(model, images(), "prune-train", epochs=1, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_in_your_own_loop_it_must_know_the_optimiser() -> None:
    with pytest.raises(LeanError, match=r"momentum must lose the same; give it as attach\(optimizer=…\)"):
        leantrain.attach(resnet(), images(), "prune-train", epochs=1)
    with pytest.raises(LeanError, match="optimizer is 3, but must be an optimiser of torch's"):
        leantrain.attach(resnet(), images(), "prune-train", epochs=1, optimizer=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("prune-train + prune-train", "both remove channels of the model; use one of them"),
        ("prune-train[begin=0.5]", "begin=0.5 is for a network that grows; give grow=true"),
        ("prune-train[penalty=1]", "penalty is 1.0, but must be below 1"),
        ("prune-train[threshold=0]", "threshold is 0.0, but must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(method: str, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.methods.parse_method(method)

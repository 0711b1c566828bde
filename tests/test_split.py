"""Split propagation: each constituent of a composite gets its own answer; a plain batch never notices."""

from __future__ import annotations

import copy
import functools
import gc
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leantrain import _torchvision, models
from leantrain.errors import LeanError
from leantrain.split import Split, candidates
from leantrain.split.layout import Layout, regional_means

DOCS = Path(__file__).parents[1] / "docs" / "split.md"
FAMILIES = {  # family: models that stand for it, in the order of the table
    "ResNet": ("resnet8", "resnet18", "torchvision/resnet18"),
    "MobileNetV2": ("mobilenetv2_100", "torchvision/mobilenet_v2"),
    "EfficientNet": ("efficientnet_b0",),
    "RegNet": ("regnetx_002", "regnety_002"),
    "ConvNeXt": ("convnext_atto",),
    "DenseNet": ("densenet121",),
    "GoogLeNet": ("torchvision/googlenet",),
    "Swin": ("swin_tiny_patch4_window7_224",),
    "LeViT": ("levit_128s",),
    "ViT, average pool": ("vit_tiny_patch16_224, global_pool='avg'",),
    "ViT, class token": ("vit_tiny_patch16_224",),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224",),
    "XCiT": ("xcit_nano_12_p16_224",),
    "VGG": ("torchvision/vgg11",),
}
APART = {"class-token": ", its class tokens", "patch-tokens": ", after attention kept apart"}
REFUSED = {"DeiT, distilled", "XCiT", "VGG"}
WORKING = [name for family, names in FAMILIES.items() if family not in REFUSED for name in names]


@functools.cache
def build(name: str) -> nn.Module:
    if name.endswith("'avg'"):
        _torchvision.prepare()
        import timm

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            options: dict[str, Any] = {"img_size": 32, "patch_size": 4, "global_pool": "avg"}
            return timm.create_model(name.split(",")[0], num_classes=10, **options)
    return models.build(name, classes=10, image_size=32)


@pytest.fixture
def split_of() -> Iterator[Callable[..., Split]]:
    """Makes splits, and takes their hooks off the shared models afterwards."""
    made: list[Split] = []

    def make(model: nn.Module, size: int = 32, **options: Any) -> Split:
        made.append(Split(model, torch.zeros(1, 3, size, size), **options))
        return made[-1]

    yield make
    for split in made:
        split.remove()


def images(rows: int = 2, size: int = 32, seed: int = 0) -> Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


def halves(rows: int, size: int = 32, at: int | None = None) -> Tensor:
    """Constituent 0 on the left, 1 on the right."""
    owner = torch.zeros(rows, size, size, dtype=torch.uint8)
    owner[:, :, size // 2 if at is None else at :] = 1
    return owner


def run(split: Split, model: nn.Module, x: Tensor, owner: Tensor, constituents: int = 2) -> Tensor:
    with split.regions(owner, constituents):
        output: Tensor = model(x)
    return output


class Small(nn.Module):
    """A user's own CNN, 16 pixels to a map of 8×8; how it pools is the test's choice."""

    def __init__(self, pool: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 2, 1)
        self.relu = nn.ReLU()  # runs twice
        self.pool = pool
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        out: Tensor = self.fc(self.pool(x).flatten(1))
        return out


class Patches(nn.Sequential):
    """A CNN whose cells see their own 4×4 pixels only."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 4, 4),
            nn.ReLU(),
            nn.Conv2d(16, 16, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        )


# --- an image alone in its composite gets the model's own output -----------------------------------------------------


@pytest.mark.parametrize("name", WORKING)
def test_an_image_alone_in_its_composite_gets_the_models_own_output(name: str, split_of: Any) -> None:
    model = copy.deepcopy(build(name))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = 1.0
        model(images(4))  # the statistics of a model that has trained
        split, x = split_of(model.eval()), images(3, seed=1)
        own = model(x)
        for constituent in range(2):
            owner = torch.full((3, 32, 32), constituent, dtype=torch.uint8)
            both = run(split, model, x, owner).unflatten(0, (2, 3))
            torch.testing.assert_close(both[constituent], own, rtol=1e-4, atol=1e-5 * own.abs().max().item())
            assert both.isfinite().all()
        apart = run(split, model, x, halves(3)).unflatten(0, (2, 3))
        assert not torch.equal(apart[0], apart[1])
    assert split.error < 1e-5
    assert min(split.map_size) >= 4


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: x.mean((2, 3)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.avg_pool2d(x, 8),  # cannot take a map of one cell
        nn.AvgPool2d(8),
        nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()),
    ],
    ids=["mean", "F.adaptive_avg_pool2d", "F.avg_pool2d", "nn.AvgPool2d", "Sequential"],
)
def test_a_users_own_model_pools_as_it_likes(pool: Callable[[Tensor], Tensor]) -> None:
    model, x = Small(pool), images(4, 16)
    split = Split(model, x)
    assert split.map_size == (8, 8)
    assert split.layer == ("pool" if isinstance(pool, nn.Module) else "relu")
    both = run(split, model, x, torch.ones(4, 16, 16, dtype=torch.uint8))
    torch.testing.assert_close(both[4:], model(x))


CALLED = {
    "mean": lambda x: F.relu(x).mean((2, 3)),
    "torch.mean": lambda x: torch.mean(F.relu(x), dim=(2, 3)),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(F.relu(x), (1, 1)),
    "avg_pool2d": lambda x: F.avg_pool2d(F.relu(x), 8),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_pool_that_is_a_function_is_found_behind_others(name: str) -> None:
    """As in DenseNet's usual CIFAR version, where no module gives the map that is pooled."""

    class Functional(Small):
        def forward(self, x: Tensor) -> Tensor:
            x = self.conv2(F.relu(F.avg_pool2d(self.conv1(x), 1)))
            gate = F.adaptive_avg_pool2d(x, 1).sigmoid()  # a pool that is not the last one
            out: Tensor = self.fc(self.pool(x * gate).flatten(1))
            return out

    model, x = Functional(CALLED[name]), images(4, 16)
    split = Split(model, x)
    assert split.map_size == (8, 8)
    assert split.layer == name.removeprefix("torch.") + "()"
    both = run(split, model, x, torch.ones(4, 16, 16, dtype=torch.uint8))
    torch.testing.assert_close(both[4:], model(x))
    both.sum().backward()
    assert model.conv1.weight.grad is not None
    apart = run(split, model, x, halves(4, 16))
    assert not torch.equal(apart[:4], apart[4:])
    if name == "avg_pool2d":  # compiling takes a while
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(run(split, compiled, x, halves(4, 16)), apart)
        torch.testing.assert_close(compiled(x), model(x))


def test_the_last_map_can_be_named_or_the_pool_itself() -> None:
    model, x, outputs = Patches(), images(2, 16), []
    for layer, name in ((None, "4"), ("3", "3"), ("4", "4")):
        split = Split(model, x, layer=layer)
        assert split.layer == name
        outputs.append(run(split, model, x, halves(2, 16)))
        split.remove()
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])


def test_a_head_that_starts_at_zero_hides_nothing() -> None:
    right, wrong = Small(lambda x: x.mean((2, 3))), Small(lambda x: x.amax((2, 3)))
    for model in (right, wrong):
        nn.init.zeros_(model.fc.weight)
    assert Split(right, images(2, 16)).layer == "relu"
    with pytest.raises(LeanError, match="no global average pool"):
        Split(wrong, images(2, 16))


def test_images_need_not_be_square() -> None:
    for pool in (nn.AdaptiveAvgPool2d(1), lambda x: x.mean((2, 3))):
        assert Split(Small(pool), torch.zeros(2, 3, 16, 24)).map_size == (8, 12)


@pytest.mark.parametrize("name", ["resnet8", "vit_tiny_patch16_224"])
def test_a_batch_may_have_another_size_than_the_example(name: str, split_of: Any) -> None:
    model = copy.deepcopy(build(name)).eval()
    with torch.no_grad():
        both = run(split_of(model), model, images(2, 24), halves(2, 24) * 0)
        torch.testing.assert_close(both[:2], model(images(2, 24)), rtol=1e-4, atol=1e-5)


# --- the regions -----------------------------------------------------------------------------------------------------


def reference(x: Tensor, owner: Tensor, constituents: int) -> Tensor:
    """Regional means of (B, C, h, w) the slow way, pixel by pixel."""
    rows, channels, h, w = x.shape
    ph, pw = owner.shape[1] // h, owner.shape[2] // w
    means = torch.zeros(constituents * rows, channels)
    for j in range(constituents):
        for b in range(rows):
            total, pixels = torch.zeros(channels), 0
            for row in range(owner.shape[1]):
                for column in range(owner.shape[2]):
                    if owner[b, row, column] == j:
                        total += x[b, :, row // ph, column // pw]
                        pixels += 1
            means[j * rows + b] = total / max(pixels, 1)
    return means


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), constituents=st.integers(1, 3), layout=st.sampled_from(["NCHW", "NHWC", "NLC"]))
def test_a_region_is_pooled_in_proportion_whatever_its_border_and_layout(
    seed: int, constituents: int, layout: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 4, 6, generator=generator)
    owner = torch.randint(constituents, (2, 12, 18), generator=generator, dtype=torch.uint8)
    laid = {"NCHW": x, "NHWC": x.permute(0, 2, 3, 1), "NLC": x.flatten(2).transpose(1, 2)}[layout]
    if layout == "NLC":
        laid = torch.cat([torch.full((2, 2, 3), 9.0), laid], dim=1)  # prefix tokens, which are no part of the map
    means = regional_means(laid, Layout(layout, 2 if layout == "NLC" else 0), owner, constituents)
    torch.testing.assert_close(means, reference(x, owner, constituents))


def test_a_border_inside_a_cell_gives_the_cell_to_both() -> None:
    x = torch.tensor([[[[1.0, 2.0, 4.0, 8.0]] * 4]])
    owner = halves(1, 16, at=6)  # the second column of cells is half and half
    left, right = regional_means(x, Layout("NCHW"), owner, 2).flatten()
    assert left.item() == pytest.approx((1 + 0.5 * 2) / 1.5)
    assert right.item() == pytest.approx((0.5 * 2 + 4 + 8) / 2.5)


def test_rows_are_constituent_major_for_three_constituents() -> None:
    model, x = Patches(), images(2, 16)
    owner = torch.tensor([0, 1, 2, 2], dtype=torch.uint8).repeat_interleave(4).expand(16, 16)
    owner = torch.stack([owner, owner.T])
    output = run(Split(model, x), model, x, owner, 3)
    assert output.shape == (6, 5)
    for j, (start, stop) in enumerate([(0, 4), (4, 8), (8, 16)]):
        torch.testing.assert_close(output[2 * j], model(x[:1, :, :, start:stop])[0])
        torch.testing.assert_close(output[2 * j + 1], model(x[1:, :, start:stop])[0])


@pytest.mark.parametrize("name", ["cnn", "vit_tiny_patch16_224"])
def test_a_constituent_without_pixels_gives_finite_numbers_forward_and_backward(name: str, split_of: Any) -> None:
    model = Patches() if name == "cnn" else copy.deepcopy(build(name))
    x = images(2).requires_grad_()
    output = run(split_of(model), model, x, torch.zeros(2, 32, 32, dtype=torch.uint8), 3)
    F.cross_entropy(output, torch.zeros(6, dtype=torch.long)).backward()
    assert output.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# --- the gradients ---------------------------------------------------------------------------------------------------


def test_where_no_cell_sees_across_the_border_gradients_are_those_of_the_halves_trained_apart() -> None:
    model, left, right = Patches(), images(4, 16, seed=1), images(4, 16, seed=2)
    labels = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
    share = torch.tensor([0.25, 0.75])
    owner = halves(4, 16, at=4)
    composite = torch.where(owner[:, None] == 0, left, right)

    losses = F.cross_entropy(run(Split(model, left), model, composite, owner), labels.flatten(), reduction="none")
    (losses.unflatten(0, (2, 4)) * share[:, None]).sum().backward()
    together = [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model.zero_grad()
    alone = copy.deepcopy(model)
    for j, half in enumerate((left[..., :4], right[..., 4:])):
        (share[j] * F.cross_entropy(alone(half), labels[j], reduction="sum")).backward()
    apart = [p.grad for p in alone.parameters()]
    assert len(together) == len(apart)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)


# --- class tokens ----------------------------------------------------------------------------------------------------


def test_constituents_of_a_class_token_vit_do_not_interfere(split_of: Any) -> None:
    model = copy.deepcopy(build("vit_tiny_patch16_224")).eval()
    split, owner = split_of(model), halves(2)
    assert (split.kind, split.layer, split.map_size, split.leaks) == ("class-token", "blocks", (8, 8), "")
    one, other = images(2), torch.where(owner[:, None] == 1, images(2, seed=1), images(2))
    with torch.no_grad():
        first, second = (run(split, model, x, owner).unflatten(0, (2, 2)) for x in (one, other))
    torch.testing.assert_close(first[0], second[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(first[1], second[1], rtol=1e-2)


def test_a_class_token_vit_answers_as_if_it_had_only_that_constituents_patches(split_of: Any) -> None:
    model: Any = copy.deepcopy(build("vit_tiny_patch16_224")).eval()
    x, owner = images(2), halves(2, at=12)
    patches = (torch.arange(64) % 8 >= 3).long()  # the owner of each patch
    with torch.no_grad():
        both = run(split_of(model), model, x, owner).unflatten(0, (2, 2))
        embedded = model.patch_embed(x).flatten(1, 2) + model.pos_embed[:, 1:]
        token = (model.cls_token + model.pos_embed[:, :1]).expand(2, -1, -1)
        for j in range(2):
            tokens = torch.cat([token, embedded[:, patches == j]], dim=1)
            for block in model.blocks:
                tokens = block(tokens)
            torch.testing.assert_close(both[j], model.head(model.norm(tokens)[:, 0]), rtol=1e-4, atol=1e-5)


def test_a_patch_belongs_to_whoever_owns_most_of_it_and_on_a_tie_to_the_first(split_of: Any) -> None:
    model = copy.deepcopy(build("vit_tiny_patch16_224")).eval()
    split, x = split_of(model), images(1)
    with torch.no_grad():
        whole, tie, most = (run(split, model, x, halves(1, at=at)) for at in (16, 14, 13))
    assert torch.equal(tie, whole)  # the patch from 12 to 16 is half and half
    assert not torch.allclose(most, whole)


def test_registers_and_torchvisions_transformers_are_copied_per_constituent_too() -> None:
    _torchvision.prepare()
    import timm
    from torchvision.models.vision_transformer import VisionTransformer

    small: dict[str, Any] = {"patch_size": 4, "num_classes": 5, "embed_dim": 32, "depth": 2, "num_heads": 2}
    registers = timm.models.VisionTransformer(img_size=32, reg_tokens=2, no_embed_class=True, **small)
    torchvisions = VisionTransformer(32, 4, 2, 2, 32, 64, num_classes=5)
    nn.init.normal_(torchvisions.heads.head.weight)
    for model, layer in ((registers, "blocks"), (torchvisions, "encoder.layers")):
        split, owner, x = Split(model.eval(), images(2)), halves(3), images(3)
        assert (split.kind, split.layer, split.map_size) == ("class-token", layer, (8, 8))
        other = torch.where(owner[:, None] == 1, images(3, seed=1), x)
        first, second = (run(split, model, i, owner).unflatten(0, (2, 3)) for i in (x, other))
        torch.testing.assert_close(first[0], second[0], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(first[1], second[1], rtol=1e-2)
        torch.testing.assert_close(run(split, model, x, owner * 0)[:3], model(x), rtol=1e-4, atol=1e-5)


def test_a_transformer_that_averages_its_patches_answers_as_if_it_had_only_that_constituents(split_of: Any) -> None:
    model: Any = copy.deepcopy(build("vit_tiny_patch16_224, global_pool='avg'")).eval()
    split, x, owner = split_of(model), images(2), halves(2, at=12)
    assert (split.kind, split.map_size, split.leaks) == ("patch-tokens", (8, 8), "")
    assert split.leak() < 1e-4
    patches = (torch.arange(64) % 8 >= 3).long()  # the owner of each patch
    with torch.no_grad():
        both = run(split, model, x, owner).unflatten(0, (2, 2))
        embedded = model.patch_embed(x) + model.pos_embed[:, 1:]
        token = (model.cls_token + model.pos_embed[:, :1]).expand(2, -1, -1)
        for j in range(2):
            tokens = torch.cat([token, embedded[:, patches == j]], dim=1)
            for block in model.blocks:
                tokens = block(tokens)
            wanted = model.head(model.fc_norm(model.norm(tokens)[:, 1:].mean(1)))
            torch.testing.assert_close(both[j], wanted, rtol=1e-4, atol=1e-5)


# --- squeeze-and-excite ----------------------------------------------------------------------------------------------


def excited(kind: str) -> nn.Sequential:
    """A CNN of cells that see their own 4×4 pixels only, but for its squeeze-and-excite."""
    _torchvision.prepare()
    from timm.layers import EffectiveSEModule, SEModule
    from torchvision.ops import SqueezeExcitation

    excite = {
        "timm": lambda: SEModule(16, rd_channels=8, norm_layer=nn.BatchNorm2d),
        "effective": lambda: EffectiveSEModule(16),
        "torchvision": lambda: SqueezeExcitation(16, 8),
    }[kind]()
    layers = list(Patches())
    return nn.Sequential(*layers[:2], excite, *layers[2:])


@pytest.mark.parametrize("kind", ["timm", "effective", "torchvision"])
def test_squeeze_and_excite_squeezes_each_region_by_itself(kind: str) -> None:
    model, x = excited(kind).eval(), images(3, 16)
    split = Split(model, x)
    assert (split.leaks, split.leak()) == ("", pytest.approx(0, abs=1e-5))
    both = run(split, model, x, halves(3, 16, at=4))
    torch.testing.assert_close(both[:3], model(x[..., :4]))
    torch.testing.assert_close(both[3:], model(x[..., 4:]))
    before = model(x)
    split.remove()
    assert torch.equal(model(x), before)  # plain batches never noticed


@pytest.mark.parametrize("kind", ["timm", "torchvision"])
def test_a_pool_that_is_a_function_is_told_from_the_squeezes_before_it(kind: str) -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = excited(kind)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers[-1](F.relu(self.layers[:4](x)).mean((2, 3)))
            return out

    model, x, owner = Functional().eval(), images(3, 16), halves(3, 16, at=4)
    split = Split(model, x)
    assert (split.layer, split.leaks, split.leak()) == ("mean()", "", pytest.approx(0, abs=1e-5))
    both = run(split, model, x, owner)
    torch.testing.assert_close(both[:3], model(x[..., :4]))
    torch.testing.assert_close(both[3:], model(x[..., 4:]))
    if kind == "timm":  # compiling takes a while
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(run(split, compiled, x, owner), both)


def test_a_squeeze_that_does_more_than_gate_is_left_alone_and_named() -> None:
    from timm.layers import SEModule

    layers = list(Patches())
    model = nn.Sequential(*layers[:2], SEModule(16, rd_channels=8, add_maxpool=True), *layers[2:]).eval()
    split = Split(model, images(2, 16))
    assert split.leaks == "squeeze-and-excite"
    assert split.leak() > 0.001


def test_a_large_leak_is_said_in_words_and_a_small_one_is_not() -> None:
    assert Split(Patches(), images(2, 16)).warning() is None
    wide = nn.Sequential(nn.Conv2d(3, 8, 31, 1, 15), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    assert "does not keep the images of a composite well apart" in (Split(wide, images(2, 16)).warning() or "")


# --- what it leaves alone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet8", "torchvision/mobilenet_v2", "vit_tiny_patch16_224", "levit_128s"])
def test_a_plain_batch_is_bitwise_the_same_with_hooks_and_after_them(name: str) -> None:
    model, x = copy.deepcopy(build(name)).eval(), images(3)
    with torch.no_grad():
        before = model(x)
        split = Split(model, x)
        assert torch.equal(model(x), before)
        run(split, model, x, halves(3))
        assert torch.equal(model(x), before)
        split.remove()
        assert torch.equal(model(x), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_making_one_leaves_no_trace() -> None:
    model = copy.deepcopy(build("resnet8")).train()
    model.get_submodule("layer1").eval()  # frozen by its user
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    Split(model, images())
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_model_with_hooks_can_be_copied_and_saved_whole() -> None:
    model, x = Patches(), images(2, 16)
    split = Split(model, x)
    average = copy.deepcopy(model)  # as an average of weights does
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))
    with split.regions(halves(2, 16), 2):
        assert model(x).shape == (4, 5)
        assert average(x).shape == (2, 5)


# --- in company ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet8", "vit_tiny_patch16_224"])
def test_under_bf16_autocast_it_splits_and_gradients_flow(name: str, split_of: Any) -> None:
    model, x = copy.deepcopy(build(name)).train(), images(4)
    split = split_of(model)
    with torch.autocast("cpu", torch.bfloat16):
        output = run(split, model, x, halves(4))
    assert output.dtype == torch.bfloat16
    F.cross_entropy(output.float(), torch.arange(8)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    precise = run(split, model, x, halves(4))
    assert F.cosine_similarity(output.float().flatten(), precise.flatten(), dim=0) > 0.99


def test_a_model_in_bf16_is_tried_in_bf16() -> None:
    model = Patches().bfloat16()
    split = Split(model, images(2, 16))  # as a loader gives them
    assert run(split, model, images(2, 16).bfloat16(), halves(2, 16)).dtype == torch.bfloat16


def test_wrapped_models_keep_their_names_and_split_inside(tmp_path: Path) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1).setup(Patches())
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrap in (lambda module: fabric, nn.parallel.DistributedDataParallel):
            model = wrap(Patches())
            split = Split(model, images(2, 16))
            assert split.layer == "4"
            output = run(split, model, images(2, 16), halves(2, 16))
            assert output.shape == (4, 5)
            output.sum().backward()
            assert all(p.grad is not None for p in model.parameters())
            # Gone before the group: a wrapper that lets go of it last may wait for ever, as it holds the GIL meanwhile.
            del model, split, output
            gc.collect()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])  # aot_eager: with a backward, at a tenth of the time
def test_a_compiled_model_gives_what_the_eager_one_gives_plain_and_split(backend: str) -> None:
    model: nn.Module = excited("torchvision") if backend == "aot_eager" else Patches().requires_grad_(False)
    x, owner = images(4, 16), halves(4, 16, at=6)
    eager = Split(model, x)
    wanted = [model(x), run(eager, model, x, owner), run(eager, model, x, owner.mT.contiguous()), model(x)]
    eager.remove()
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    split = Split(compiled, x)
    got = [
        compiled(x),
        run(split, compiled, x, owner),
        run(split, compiled, x, owner.mT.contiguous()),
        compiled(x),
    ]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    if backend == "aot_eager":
        weights = list(model.parameters())
        gradients = [torch.autograd.grad(outputs[1].square().sum(), weights) for outputs in (got, wanted)]
        torch.testing.assert_close(gradients[0], gradients[1])


# --- what it refuses -------------------------------------------------------------------------------------------------


def flat(size: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (size // 2) ** 2, 5))


class Twice(Patches):
    """Answers twice in train mode, as GoogLeNet with its auxiliary heads."""

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return (out, out) if self.training else out


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (Small(lambda x: x.amax((2, 3))), {}, "no global average pool in Small; use split=false$"),
        (flat(16), {}, "no global average pool in Sequential; use split=false$"),
        (Patches(), {"layer": "0"}, "does not fit layer '0' of Patches: what follows is more than an average"),
        (Patches(), {"layer": "5"}, "layer '5' of Patches gives no map; .* split_layer=…, such as 3, or use split=f"),
        (Small(lambda x: x.mean((2, 3))), {"layer": "conf2"}, r"no layer 'conf2'\. Did you mean 'conv2'\?"),
        (nn.Sequential(nn.AvgPool2d(2), *Patches()), {}, "map of Sequential is 2×2, too small to separate two images"),
        (nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2), *Patches()), {}, "is 1×1, too small .* use larger images"),
        (nn.DataParallel(Patches()), {}, "use DistributedDataParallel or split=false"),
        (Twice(), {}, "Twice gives tuple for 2 images, .* turn auxiliary outputs off"),
        (nn.Sequential(*list(Patches())[:4]), {}, r"gives a tensor of shape \(2, 16, 4, 4\) for 2 images"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), *Patches()), {}, r"does not take inputs of shape \(2, 3, 16, 16\)"),
    ],
    ids=["max-pool", "flatten", "too-early", "no-map", "typo", "2x2", "1x1", "DataParallel", "aux", "map", "channels"],
)
def test_a_model_that_cannot_be_split_is_refused_with_a_remedy(
    model: nn.Module, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(LeanError, match=sentence):
        Split(model, images(2, 16), **options)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_wrong_calls_are_refused_with_the_value() -> None:
    model = Patches()
    with pytest.raises(LeanError, match=r"not \(3, 16, 16\) torch.float32"):
        Split(model, torch.zeros(3, 16, 16))
    split = Split(model, images(2, 16))
    with pytest.raises(LeanError, match=r"owner has shape \(16, 16\)"), split.regions(halves(1, 16)[0], 2):
        pass
    with pytest.raises(LeanError, match="owner is for 3 composites, but the model got 2"):
        run(split, model, images(2, 16), halves(3, 16))
    with pytest.raises(LeanError, match="not reached"), split.regions(halves(2, 16), 2):
        pass
    assert model(images(2, 16)).shape == (2, 5)  # whatever went wrong inside, it is over outside


def test_gradient_checkpointing_would_lose_the_attention_masks_and_is_refused(split_of: Any) -> None:
    model: Any = copy.deepcopy(build("vit_tiny_patch16_224"))
    split = split_of(model)
    model.set_grad_checkpointing(True)
    with pytest.raises(LeanError, match="turn gradient checkpointing off"):
        run(split, model, images(2), halves(2))


def test_candidates_are_the_layers_that_fit() -> None:
    assert candidates(Patches(), images(2, 16)) == ["3"]  # a ReLU, and so no average, follows the others
    assert candidates(build("resnet8"), images())[-1] == "layer3"


# --- the table in the docs -------------------------------------------------------------------------------------------


def table() -> str:
    """What docs/split.md says of every family, from the real models at 32 pixels."""
    lines = [
        "| family | model | splits at | last map at 32 px | all-ones error | works "
        "| layers that see the whole composite |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family, names in FAMILIES.items():
        for name in names:
            try:
                split = Split(build(name), torch.zeros(1, 3, 32, 32))
            except LeanError as error:
                lines.append(f"| {family} | `{name}` | | | | refused: {str(error).split(';')[0]} | |")
                continue
            split.remove()
            bound = "< 1e-5" if split.error < 1e-5 else f"{split.error:.0e}"
            h, w = split.map_size
            where = f"`{split.layer}`" + APART.get(split.kind, "")
            lines.append(f"| {family} | `{name}` | {where} | {h}×{w} | {bound} | yes | {split.leaks or 'none'} |")
    return "\n".join(lines)


def test_the_docs_table_is_what_the_models_do() -> None:
    start, end = "<!-- table: tests/test_split.py -->\n", "\n<!-- end of table -->"
    text, made = DOCS.read_text(), table()
    before, rest = text.split(start)
    written, after = rest.split(end)
    if os.environ.get("LEANTRAIN_WRITE_DOCS"):
        DOCS.write_text(before + start + made + end + after)
        written = made
    assert written == made, "run LEANTRAIN_WRITE_DOCS=1 pytest tests/test_split.py -k docs"

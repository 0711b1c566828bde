"""Models by name: right for small images, reproducible from a seed, and clear about what they cannot do."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leantrain import _torchvision, models
from leantrain.errors import LeanError
from leantrain.models.small import probe
from leantrain.shrinking import size_step

CNNS = [
    "resnet8",
    "resnet20",
    "resnet18",
    "resnet26d",  # three-convolution stem, average-pooled shortcuts
    "resnetblur18",  # strides inside blur pools
    "resnet50",
    "mobilenetv2_100",
    "efficientnet_b0",
    "tf_mobilenetv3_small_minimal_100",  # TensorFlow's padding
    "convnext_atto",
    "regnetx_002",
    "densenet121",
    "inception_v3",
    "torchvision/googlenet",
    "torchvision/resnet18",
    "torchvision/mobilenet_v2",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/squeezenet1_1",
    "torchvision/swin_v2_t",
]
TRANSFORMERS = ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "swin_tiny_patch4_window7_224", "levit_128s"]


def run(model: nn.Module, size: int, channels: int = 3, batch: int = 2) -> torch.Tensor:
    output: torch.Tensor = model(torch.randn(batch, channels, size, size))
    return output


def last_map(model: nn.Module, size: int) -> int:
    return probe(model, 3, size).map_side


# --- small images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CNNS, *TRANSFORMERS])
def test_at_32_pixels_the_last_map_is_at_least_4_by_4_and_the_model_trains(name: str) -> None:
    model = models.build(name, classes=10, image_size=32)
    assert model.training
    assert last_map(model, 32) >= 4
    output = run(model, 32)
    outputs = output if isinstance(output, tuple) else (output,)  # a distilled model answers twice in train mode
    assert all(out.shape == (2, 10) for out in outputs)
    sum(out.square().mean() for out in outputs).backward()  # type: ignore[union-attr]
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert next(model.parameters()).grad is not None


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "torchvision/mobilenet_v2", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [28, 32, 64, 224])
def test_every_usual_size_and_number_of_channels_gives_one_answer_per_class(
    name: str, channels: int, size: int
) -> None:
    model = models.build(name, classes=7, channels=channels, image_size=size).eval()
    assert run(model, size, channels, batch=1).shape == (1, 7)


def test_resnets_get_the_cifar_stem_up_to_64_pixels_and_keep_their_own_beyond() -> None:
    for name in ("resnet18", "torchvision/resnet18"):
        small, large = (models.build(name, classes=10, image_size=size) for size in (64, 65))
        assert small.get_submodule("conv1").kernel_size == (3, 3)
        assert isinstance(small.get_submodule("maxpool"), nn.Identity)
        assert large.get_submodule("conv1").kernel_size == (7, 7)
        assert isinstance(large.get_submodule("maxpool"), nn.MaxPool2d)


def test_only_the_earliest_strides_go() -> None:
    small = models.build("mobilenetv2_100", classes=10, image_size=32)
    large = models.build("mobilenetv2_100", classes=10, image_size=224)
    strides = [[m.stride[0] for m in model.modules() if isinstance(m, nn.Conv2d)] for model in (small, large)]
    assert strides[1].count(2) == 5
    assert strides[0].count(2) == 3
    last_three = [i for i, stride in enumerate(strides[1]) if stride == 2][-3:]
    assert [i for i, stride in enumerate(strides[0]) if stride == 2] == last_three


def test_even_an_8_pixel_image_keeps_a_4_by_4_map_in_our_own_nets() -> None:
    assert last_map(models.build("resnet20", classes=10, image_size=8), 8) == 4


def test_a_model_that_cannot_take_the_size_is_refused_with_a_remedy() -> None:
    with pytest.raises(LeanError, match=r"vit_b_16 cannot .* 32 px .*map of 2×2.*--model resnet8"):
        models.build("torchvision/vit_b_16", classes=10, image_size=32)
    with pytest.raises(LeanError, match=r"inception_v3 cannot .* 70 px .*use larger ones"):
        models.build("inception_v3", classes=10, image_size=70)


def test_size_step_says_which_other_sizes_a_model_takes() -> None:
    for name, step, other in (
        ("resnet8", 1, 19),
        ("mobilenetv2_100", 1, 19),
        ("repvgg_a0", 1, 19),
        ("pvt_v2_b0", 1, 19),
        ("vit_tiny_patch16_224", 4, 20),
        ("levit_128s", 32, 32),
    ):
        model = models.build(name, classes=10, image_size=32).eval()
        assert size_step(model) == step
        assert run(model, other, batch=1).shape == (1, 10)


# --- our own nets ----------------------------------------------------------------------------------------------------


def test_width_sets_the_first_stage_and_the_usual_sizes_are_known() -> None:
    assert models.parameter_count(models.build("resnet8", classes=10, image_size=32)) == 308_650
    assert models.parameter_count(models.build("resnet20", classes=10, image_size=32)) == 272_474
    wide = models.build("resnet8", classes=10, image_size=32, width=48)
    assert wide.get_submodule("fc").in_features == 4 * 48


def test_features_and_head_make_up_the_forward_pass() -> None:
    model: models.SmallResNet = models.build("resnet8", classes=10, image_size=32).eval()  # type: ignore[assignment]
    images = torch.randn(2, 3, 32, 32)
    features = model.forward_features(images)
    assert features.shape == (2, 128, 8, 8)
    assert torch.equal(model.forward_head(features), model(images))
    assert torch.equal(model.fc(model.forward_head(features, pre_logits=True)), model(images))


def test_dropout_acts_in_training_alone() -> None:
    for name in ("resnet8", "resnet18", "torchvision/mobilenet_v2"):
        model = models.build(name, classes=10, image_size=32, dropout=0.5)
        assert any(isinstance(m, nn.Dropout) and m.p == 0.5 for m in model.modules()) or model.drop_rate == 0.5
        model.eval()
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(model(images), model(images))


# --- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "torchvision/squeezenet1_1", "vit_tiny_patch16_224"])
def test_the_seed_alone_decides_the_weights_and_global_generators_stay_as_they_were(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first = models.build(name, classes=10, image_size=32, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # type: ignore[index]
    torch.manual_seed(2)
    again = models.build(name, classes=10, image_size=32, seed=3).state_dict()
    other = models.build(name, classes=10, image_size=32, seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "torchvision/squeezenet1_1"])
def test_saved_weights_come_back_and_a_head_for_other_classes_starts_fresh(name: str, tmp_path: Path) -> None:
    source = models.build(name, classes=10, image_size=32, seed=1)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = models.build(name, classes=10, image_size=32, weights=tmp_path / "w.safetensors")
    assert all(torch.equal(value, same.state_dict()[key]) for key, value in source.state_dict().items())
    with pytest.warns(UserWarning, match="start from scratch"):
        other = models.build(name, classes=4, image_size=32, weights=tmp_path / "w.safetensors")
    differing = {k for k, v in source.state_dict().items() if v.shape != other.state_dict()[k].shape}
    assert len(differing) == 2
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in source.state_dict().items() if k not in differing)


@pytest.mark.parametrize("key", ["model", "state_dict", None])
def test_a_checkpoint_is_unwrapped(key: str | None, tmp_path: Path) -> None:
    source = models.build("resnet8", classes=10, image_size=32, seed=1)
    torch.save({key: source.state_dict(), "epoch": 3} if key else source.state_dict(), tmp_path / "w.pt")
    loaded = models.build("resnet8", classes=10, image_size=32, weights=tmp_path / "w.pt")
    assert torch.equal(loaded.get_submodule("fc").weight, source.get_submodule("fc").weight)


def test_a_large_image_resnets_weights_fit_a_small_one_but_for_the_stem(tmp_path: Path) -> None:
    torch.save(models.build("resnet18", classes=10, image_size=224, seed=1).state_dict(), tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=r"conv1\.weight"):
        models.build("resnet18", classes=10, image_size=32, weights=tmp_path / "w.pth")


class Malice:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.victim,))


def test_code_in_a_weights_file_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"model": Malice(tmp_path / "victim")}, tmp_path / "evil.pt")
    with pytest.raises(LeanError, match="cannot be read as plain tensors"):
        models.build("resnet8", classes=10, image_size=32, weights=tmp_path / "evil.pt")
    assert not (tmp_path / "victim").exists()


def test_weights_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    def load(file: str) -> None:
        models.build("resnet8", classes=10, image_size=32, weights=tmp_path / file)

    with pytest.raises(LeanError, match=r"no weights file .*none\.pt"):
        load("none.pt")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(LeanError, match="cannot be read"):
        load("text.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(LeanError, match="holds no state dict"):
        load("list.pt")
    torch.save(models.build("resnet20", classes=10, image_size=32, width=32).state_dict(), tmp_path / "deeper.pt")
    with pytest.raises(LeanError, match=r"has unknown \d+ .*layer1\.1"):
        load("deeper.pt")
    torch.save(models.build("resnet8", classes=10, image_size=32, width=16).state_dict(), tmp_path / "thin.pt")
    with pytest.raises(LeanError, match=r"another shape .*--width"):
        load("thin.pt")
    torch.save({"fc.bias": torch.zeros(10)}, tmp_path / "part.pt")
    with pytest.raises(LeanError, match=r"lacks \d+"):
        load("part.pt")


def test_a_failing_download_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for proxy in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with pytest.raises(LeanError, match=r"published weights of torchvision/resnet18 .*--weights FILE"):
        models.build("torchvision/resnet18", classes=10, image_size=32, pretrained=True)


def test_published_weights_are_kept_but_for_a_small_images_stem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what torchvision would download already in its cache."""
    _torchvision.prepare()  # whichever test comes first
    from torchvision.models import ResNet18_Weights, resnet18

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = resnet18()
    cache = tmp_path / "hub" / "checkpoints" / ResNet18_Weights.DEFAULT.url.rsplit("/", 1)[1]
    cache.parent.mkdir(parents=True)
    torch.save(published.state_dict(), cache)
    with pytest.warns(UserWarning, match="new one starts from scratch") as caught:
        model = models.build("torchvision/resnet18", classes=5, channels=1, image_size=32, pretrained=True)
    assert len(caught) == 1
    assert torch.equal(model.get_submodule("layer4.1.conv2").weight, published.layer4[1].conv2.weight)
    assert run(model, 32, channels=1).shape == (2, 5)


def test_timms_published_weights_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the download replaced, once by weights and once by a missing network."""
    published = models.build("resnet18", classes=1000, image_size=224, seed=1).state_dict()
    fetch = "timm.models._builder.load_state_dict_from_hf"
    monkeypatch.setattr(fetch, lambda *args, **kwargs: dict(published))
    with pytest.warns(UserWarning, match="new one starts from scratch"):
        model = models.build("resnet18", classes=5, channels=1, image_size=32, pretrained=True)
    assert torch.equal(model.get_submodule("layer4.1.conv2").weight, published["layer4.1.conv2.weight"])
    assert run(model, 32, channels=1).shape == (2, 5)

    tries = []

    def unreachable(*args: object, **kwargs: object) -> None:
        tries.append(args)
        raise OSError("Name or service not known")

    monkeypatch.setattr(fetch, unreachable)
    with pytest.raises(LeanError, match=r"resnet18 .*\(Name or service not known\).*--weights FILE"):
        models.build("resnet18", classes=5, image_size=32, pretrained=True)
    assert len(tries) == 1  # each takes most of a minute


# --- names and numbers -----------------------------------------------------------------------------------------------


def test_names_holds_ours_timms_and_torchvisions() -> None:
    known = models.names()
    assert {"resnet8", "resnet20", "resnet18", "torchvision/googlenet"} <= set(known)
    assert len(known) == len(set(known))
    assert models.names("resnet8*") == ["resnet8"]
    assert "torchvision/vgg11" in models.names("torchvision/v*")
    assert models.names("nonesuch*") == []


@pytest.mark.parametrize(("wrong", "right"), [("resnt18", "resnet18"), ("torchvision/resnet19", "torchvision/resnet1")])
def test_a_mistyped_name_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(LeanError, match=f"no model '{wrong}'.*Did you mean '{right}"):
        models.build(wrong, classes=10, image_size=32)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"classes": 1}, "classes must be at least 2, not 1"),
        ({"channels": 0}, "channels must be at least 1, not 0"),
        ({"image_size": 7}, "image_size must be at least 8, not 7"),
        ({"width": 0}, "width must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be .* not 1.0"),
        ({"dropout": -0.1}, "dropout must be .* not -0.1"),
        ({"pretrained": True}, "resnet8 has no published weights"),
        ({"pretrained": True, "weights": Path("w.pt")}, "exclude each other"),
        ({"name": "resnet18", "width": 64}, "width 64 cannot be set for resnet18"),
        ({"name": "torchvision/resnet18", "dropout": 0.1}, "resnet18 takes no dropout"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changed: dict[str, object], sentence: str) -> None:
    arguments: dict[str, object] = {"name": "resnet8", "classes": 10, "image_size": 32} | changed
    with pytest.raises(LeanError, match=sentence):
        models.build(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "examples", "device", "name"),
    [
        (32, 50_000, "cpu", "resnet8"),
        (64, 50_000, "cuda:0", "resnet18"),
        (224, 10_000, "cpu", "resnet18"),
        (224, 10_000, "cuda", "resnet18"),
        (224, 1_000_000, "cuda", "resnet50"),
    ],
)
def test_the_default_suits_the_device_and_the_data(size: int, examples: int, device: str, name: str) -> None:
    assert models.default_model(size, examples, device) == name


def test_narrow_models_train_on_two_threads() -> None:
    # In a process of its own, as what went wrong here (uxlfoundation/oneDNN#6035) ends the process.
    code = """
import torch
from leantrain.models import build
torch.set_num_threads(2)
for width in (4, 8, 12):
    model = build("resnet8", classes=10, channels=1, image_size=32, width=width).to(memory_format=torch.channels_last)
    for _ in range(3):
        inputs = torch.randn(119, 1, 32, 32).contiguous(memory_format=torch.channels_last)
        model(inputs).square().sum().backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shortcut_of_few_channels_is_the_strided_convolution() -> None:
    shortcut, inputs = models.Shortcut(8, 4, 1, stride=2, bias=False), torch.randn(3, 8, 9, 7)
    torch.testing.assert_close(shortcut(inputs), torch.nn.functional.conv2d(inputs, shortcut.weight, stride=2))

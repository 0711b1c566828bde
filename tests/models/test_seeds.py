"""The models of the papers train with both of MixTrain's operators; how far they keep two images apart is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain import _torchvision, models
from leantrain.errors import LeanWarning
from leantrain.models.weights import load_weights

SIZE = 32
NARROW_VIT: dict[str, Any] = {"img_size": SIZE, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 2}

NARROW_SWIN: dict[str, Any] = {
    "img_size": SIZE,
    "patch_size": 1,
    "window_size": 4,
    "embed_dim": 12,
    "depths": (1, 1, 2, 1),
}


def timms(name: str, **options: Any) -> nn.Module:
    _torchvision.prepare()
    import timm

    model: nn.Module = timm.create_model(name, **{"num_classes": 10, **options})
    return model


def resnet(block: str, layers: tuple[int, ...]) -> nn.Module:
    """timm's ResNet of that depth, an eighth as wide, with the stem that small images get."""
    _torchvision.prepare()
    from timm.models import resnet as timm_resnet

    from leantrain.models.small import fit

    kind = getattr(timm_resnet, block)
    model = timm_resnet.ResNet(kind, layers, num_classes=10, channels=(8, 16, 32, 64))
    fit(model, "resnet", 3, SIZE)
    return model


def fine_tuned_vit(file: Path) -> nn.Module:
    """A ViT from a file of weights for 20 other classes."""
    model, other = (timms("vit_small_patch16_224", num_classes=classes, **NARROW_VIT) for classes in (10, 20))
    save_file(other.state_dict(), file)
    with pytest.warns(match="start from scratch"):
        load_weights(model, file)
    assert torch.equal(model.get_parameter("blocks.0.mlp.fc1.weight"), other.get_parameter("blocks.0.mlp.fc1.weight"))
    return model


SEEDS: dict[str, tuple[Callable[[Path], nn.Module], float, float]] = {  # and the least and the largest leak
    "ResNet-18": (lambda _: resnet("BasicBlock", (2, 2, 2, 2)), 0.2, 1.3),
    "ResNet-34": (lambda _: resnet("BasicBlock", (3, 4, 6, 3)), 0.2, 1.3),
    "ResNet-50": (lambda _: resnet("Bottleneck", (3, 4, 6, 3)), 0.2, 1.3),
    "MobileNetV2": (lambda _: models.build("mobilenetv2_035", classes=10, image_size=SIZE), 0.2, 1.3),
    "EfficientNet-B0": (lambda _: models.build("efficientnet_b0", classes=10, image_size=SIZE), 0.2, 1.3),
    "ViT-small, class token": (lambda _: timms("vit_small_patch16_224", **NARROW_VIT), 0.0, 1e-4),
    "ViT-small, average pool": (lambda _: timms("vit_small_patch16_224", **NARROW_VIT, global_pool="avg"), 0.0, 1e-4),
    "Swin-tiny": (lambda _: timms("swin_tiny_patch4_window7_224", **NARROW_SWIN), 0.05, 0.9),
    "GoogLeNet": (lambda _: models.build("torchvision/googlenet", classes=10, image_size=SIZE), 0.2, 1.3),
    "ViT from a file": (lambda folder: fine_tuned_vit(folder / "vit.safetensors"), 0.0, 1e-4),
}


def two_steps(lean: leantrain.Lean) -> list[float]:
    """Two optimiser steps on composites alone; the losses before each."""
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.02)
    losses = []
    for batch in lean.loader(batch_size=2):
        assert batch.form.constituents == 2
        loss = lean.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", SEEDS)
def test_a_seeds_model_takes_two_steps_with_both_operators_and_leaks_as_documented(name: str, tmp_path: Path) -> None:
    make, least, largest = SEEDS[name]
    rng = torch.Generator().manual_seed(0)
    images = TensorDataset(torch.randn(8, 3, SIZE, SIZE, generator=rng), torch.arange(8))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(tmp_path)
    for operator in ("cutmix", "mixup"):
        before = [parameter.clone() for parameter in model.parameters()]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", LeanWarning)
            lean = leantrain.attach(model, images, f"mixtrain-{operator}[select=all]", epochs=1)
        leak = 0.0 if lean.split is None else lean.split.leak()
        losses = two_steps(lean)
        assert len(losses) == 2
        assert all(torch.tensor(losses).isfinite())
        moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
        assert sum(moved) > 0.9 * len(moved)  # the last block of an average pool does not use its class token
        if operator == "cutmix":
            assert lean.split is not None
            assert least <= leak <= largest
            told = [one for one in said if "well apart" in str(one.message)]
            assert bool(told) == (leak >= 0.5) == (lean.note is not None)
            lean.split.remove()

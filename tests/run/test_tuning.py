"""Training that starts from weights takes what suits them: how images are shown, and how gently it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from leantrain import models
from leantrain.models import published
from leantrain.run.config import TrainConfig
from leantrain.run.setup import default_epochs, load_images, resolve, tuning_epochs
from program import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 48-pixel images."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label, brightness in (("dark", 60), ("light", 180)):
        (root / label).mkdir()
        for number in range(20):
            pixels = rng.normal(brightness, 30, (48, 48, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights as somebody publishes them, for 1,000 classes."""
    file = tmp_path_factory.mktemp("weights") / "test_resnet.safetensors"
    save_file(models.build("test_resnet", classes=1000, image_size=128).state_dict(), file)
    return file


def resolved(**settings: Any) -> tuple[TrainConfig, Any]:
    config = TrainConfig(threads=1, workers=0, **settings)
    images = load_images(config)
    return resolve(config, images), images


def test_defaults_suit_the_weights(folder: Path, weights: Path) -> None:
    config, images = resolved(data=str(folder), model="test_resnet", weights=str(weights))
    known = published("test_resnet")
    assert known is not None
    assert (images.mean, images.std) == (known.mean, known.std)
    assert images.image_size == 128  # twice their own and more, so that a 32-fold reduction leaves a map
    assert (config.optimizer, config.weight_decay) == ("adamw", 0.05)
    assert config.lr == pytest.approx(0.002 * (config.batch_size / 128) ** 0.5)
    assert config.epochs == tuning_epochs(32) < default_epochs(32)
    nothing, plain = resolved(data=str(folder), model="test_resnet")
    assert (nothing.optimizer, nothing.weight_decay, nothing.epochs) == ("sgd", 5e-4, default_epochs(32))
    assert plain.image_size == 48


def test_what_the_user_says_wins(folder: Path, weights: Path) -> None:
    gentle, _ = resolved(data=str(folder), model="test_resnet", weights=str(weights), optimizer="sgd")
    assert gentle.lr == pytest.approx(0.02 * gentle.batch_size / 128)
    given: dict[str, Any] = {"optimizer": "sgd", "lr": 0.03, "weight_decay": 0.0, "epochs": 2, "image_size": 64}
    config, images = resolved(data=str(folder), model="test_resnet", weights=str(weights), **given)
    assert {name: getattr(config, name) for name in given} == given
    assert images.image_size == 64


def test_every_published_model_says_how_it_was_shown_images() -> None:
    half = published("tf_efficientnet_lite0")
    assert half is not None and half.mean == (0.5, 0.5, 0.5) and half.side == 224
    vision = published("torchvision/resnet18")
    assert vision is not None and vision.mean[0] == pytest.approx(0.485)
    assert published("resnet8") is None  # ours are not published
    assert published("no_such_model") is None


def test_weights_of_our_own_run_are_shown_what_they_were_trained_on(folder: Path, tmp_path: Path) -> None:
    save_file(models.build("resnet8", classes=2, image_size=48, width=4).state_dict(), tmp_path / "own.safetensors")
    config, images = resolved(data=str(folder), model="resnet8", width=4, weights=str(tmp_path / "own.safetensors"))
    _, plain = resolved(data=str(folder), model="resnet8", width=4)
    assert images.image_size == 48
    assert images.mean == plain.mean
    assert config.optimizer == "adamw"


def test_a_tuned_model_is_evaluated_as_it_was_trained_and_lean_works(
    folder: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    common = ("--data", folder, "--model", "test_resnet", "--weights", weights, "--threads", 1, "--workers", 0)
    done = run("train", *common, "--epochs", 3, "--budget", 0.5, "--out", out)
    assert done.returncode == 0, done.stderr
    evaluated = run("eval", out, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    result = json.loads((out / "result.json").read_text())
    assert json.loads(evaluated.stdout)["test_accuracy"] == pytest.approx(result["test_accuracy"])
    assert json.loads(evaluated.stdout)["test_loss"] == pytest.approx(result["test_loss"], rel=1e-4)
    assert result["cost_epochs"] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("model", "optimizer", "lr"),
    [
        ("resnet8", None, 0.6),
        ("resnet18", None, 0.6),
        ("torchvision/resnet50", None, 0.6),
        ("resnext50_32x4d", None, 0.6),
        ("vit_small_resnet26d_224", None, 0.1),
        ("mobilenetv2_035", None, 0.1),
        ("mobilenetv2_035", "adamw", 0.001),
    ],
)
def test_only_resnets_learn_at_the_high_rate(model: str, optimizer: str | None, lr: float) -> None:
    config, _ = resolved(data="digits", model=model, optimizer=optimizer, batch_size=128)
    assert config.lr == pytest.approx(lr)

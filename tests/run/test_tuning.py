"""Training that starts from weights takes what suits them: how images are shown, and how gently it learns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from leantrain import models
from leantrain.models import published
from leantrain.run.config import TrainConfig, read_yaml
from leantrain.run.loop import Run
from leantrain.run.setup import default_epochs, load_images, resolve, tuning_epochs
from leantrain.run.tuning import fitted_examples, has_new_head
from program import run, run_process


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
    assert config.lr == pytest.approx(0.001 * (config.batch_size / 128) ** 0.5)
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


def trained(
    folder: Path, weights: Path, out: Path, *more: object, start: Callable[..., Any] = run
) -> tuple[dict[str, Any], str]:
    """A run from these weights: its result, and what it said."""
    common = ("--data", folder, "--model", "test_resnet", "--weights", weights, "--threads", 1, "--workers", 0)
    done = start("train", *common, "--epochs", 3, "--eval-every", 3, *more, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "result.json").read_text()), done.stderr


def test_a_new_head_is_fitted_first_and_the_budget_pays_for_it(folder: Path, weights: Path, tmp_path: Path) -> None:
    plain, said = trained(folder, weights, tmp_path / "plain", "--method", "plain")
    assert "head: fitted to 28 images" in said  # a tenth of what the run costs pays for no more
    assert plain["cost"] == pytest.approx(3 * 32 + 28 / 3)
    half, said = trained(folder, weights, tmp_path / "half", "--budget", 0.5)
    assert "head: fitted to 14 images" in said
    assert half["method"] == "freezing"
    assert half["cost"] == pytest.approx(0.5 * 3 * 32, abs=4)
    without, said = trained(folder, weights, tmp_path / "without", "--method", "plain", "--no-fit-head")
    assert "head:" not in said
    assert without["cost"] == 3 * 32


def test_a_head_is_new_where_published_weights_are_for_other_classes(folder: Path) -> None:
    config, images = resolved(data=str(folder), model="test_resnet", pretrained=True)
    example = torch.zeros(2, 3, 128, 128)
    few = models.build("test_resnet", classes=2, image_size=128)
    assert has_new_head(config, images, few, example)
    few.pretrained_cfg = {"num_classes": 2}
    assert not has_new_head(config, images, few, example)
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    assert not has_new_head(config, images, convolution, example)  # nothing that least squares could fit


def test_too_few_examples_fit_no_head() -> None:
    settings = TrainConfig(fit_head=True, epochs=15, budget=0.5)
    assert fitted_examples(settings, 1000, 10) == 1000
    assert fitted_examples(settings, 100_000, 10) == 4096
    assert fitted_examples(settings, 100_000, 1000) == 10_000
    assert fitted_examples(dataclasses.replace(settings, budget=0.01), 1000, 10) == 0
    assert fitted_examples(dataclasses.replace(settings, fit_head=False), 1000, 10) == 0


def test_a_head_that_came_with_the_weights_is_kept(folder: Path, weights: Path, tmp_path: Path) -> None:
    trained(folder, weights, tmp_path / "first")
    again, said = trained(folder, tmp_path / "first" / "model.safetensors", tmp_path / "again")
    assert "head:" not in said
    assert again["cost"] == 3 * 32


def test_batchnorm_keeps_the_statistics_of_the_weights(folder: Path, weights: Path, tmp_path: Path) -> None:
    published_ones = load_file(weights)
    names = [name for name in published_ones if name.endswith(("running_mean", "running_var"))]
    for kept, flags in ((True, ()), (False, ("--no-keep-statistics",))):
        trained(folder, weights, tmp_path / str(kept), *flags)
        after = load_file(tmp_path / str(kept) / "model.safetensors")
        assert all(torch.equal(after[name], published_ones[name]) is kept for name in names)


def test_a_tuned_run_that_is_cut_resumes_to_the_same_bits(folder: Path, weights: Path, tmp_path: Path) -> None:
    whole, _ = trained(folder, weights, tmp_path / "whole", "--budget", 0.5)
    cut = tmp_path / "cut"
    config = TrainConfig(**{**read_yaml(tmp_path / "whole" / "config.yaml"), "out": str(cut)})
    one = Run(config, load_images(config), cut)
    one.write_config()
    one.train_epoch()
    done = run("train", "--out", cut, "--resume")
    assert done.returncode == 0, done.stderr
    assert "head:" not in done.stderr
    assert json.loads((cut / "result.json").read_text())["cost"] == whole["cost"]
    ends = [load_file(out / "model.safetensors") for out in (tmp_path / "whole", cut)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_comparison_of_budgets_takes_the_method_of_tuning(folder: Path, weights: Path, tmp_path: Path) -> None:
    common = ("--data", folder, "--model", "test_resnet", "--weights", weights, "--threads", 1, "--workers", 0)
    done = run("compare", *common, "--epochs", 3, "--seeds", 1, "--budgets", 0.5, "--json", "--out", tmp_path / "both")
    assert done.returncode == 0, done.stderr
    labels = [row["label"] for row in json.loads(done.stdout)["rows"]]
    assert labels == ["plain", "freezing @ 0.5", "plain, equal budget (0.5)"]


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


@pytest.mark.slow
def test_two_processes_fit_the_head_that_one_fits(folder: Path, weights: Path, tmp_path: Path) -> None:
    ends = []
    for devices in (1, 2):
        words = ("--budget", 0.5, "--devices", devices)
        result, said = trained(folder, weights, tmp_path / str(devices), *words, start=(run, run_process)[devices - 1])
        fitted = [line for line in said.splitlines() if line.startswith("head: fitted to 14 images")]
        assert len(fitted) == 1  # one of them speaks
        ends.append((result["cost"], fitted))
    assert ends[0] == ends[1]

"""Precision, accumulation, pinned memory, memory format: with every method, and exact where promised."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leantrain.data import ImageSet
from leantrain.methods import METHODS
from leantrain.options import options_of
from leantrain.run import machine
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve
from program import run as command


@functools.cache
def images_of(train_limit: int | None) -> ImageSet:
    return load_images(TrainConfig(train_limit=train_limit))


def make_run(**settings: Any) -> Run:
    own: dict[str, Any] = {"model": "test_vit"} if "token-dropping" in settings.get("method", "") else {"width": 2}
    config = TrainConfig(**{**own, "train_limit": 50, "batch_size": 8, "epochs": 2, "threads": 1, **settings})
    images = images_of(config.train_limit)
    return Run(resolve(config, images), images)


def short(name: str) -> str:
    """A method whose scores, where it makes any, come from little training."""
    few = {"models": 1, "score_epochs": 1}
    known = {option.name for option in options_of(METHODS[name])}
    options = ",".join(f"{key}={value}" for key, value in few.items() if key in known)
    return f"{name}[{options}]" if options else name


@pytest.mark.parametrize(
    "method", ["infobatch", "mixtrain-cutmix[select=all]", "mixtrain-mixup[select=all]", "selective-backprop"]
)
@pytest.mark.parametrize("how", ["parts", "batches"])
def test_accumulation_is_the_large_batch_to_rounding(method: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # BatchNorm's statistics are per part, and would differ; 50 examples leave a short last batch of 2.
    monkeypatch.setattr(nn, "BatchNorm2d", functools.partial(nn.GroupNorm, 1))
    shared: dict[str, Any] = {"method": method, "precision": "fp32", "lr": 0.05}
    whole = make_run(batch_size=24, **shared)
    other = {"batch_size": 24, "accumulate": 3} if how == "parts" else {"batch_size": 8, "accumulate_batches": 3}
    parts = make_run(**shared, **other)
    for run in (whole, parts):
        run.train_only()
    assert whole.steps == parts.steps
    assert whole.lean.cost == pytest.approx(parts.lean.cost)
    # Rounding that takes an activation over ReLU's kink moves a weight by 3e-5, a part too heavy by a tenth far more.
    for name, tensor in whole.module.state_dict().items():
        torch.testing.assert_close(tensor, parts.module.state_dict()[name], rtol=1e-4, atol=1e-4, msg=name)


def test_gathered_batches_make_fewer_steps_and_scale_the_default_learning_rate() -> None:
    single, gathered = make_run(precision="fp32"), make_run(precision="fp32", accumulate_batches=4)
    for run in (single, gathered):
        run.train_only()
    assert (single.steps, gathered.steps) == (14, 4)
    assert gathered.config.lr == 4 * (single.config.lr or 0)


EVERYTHING: dict[str, Any] = {
    "precision": "bf16",
    "accumulate": 2,
    "accumulate_batches": 2,
    "pin_memory": True,
    "channels_last": True,
    "train_limit": 12,
    "batch_size": 3,
}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # there is no GPU to pin it for
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_with_all_accelerators_at_once(method: str) -> None:
    run = make_run(method=short(method), **EVERYTHING)
    run._make_scores()
    run.train_only()
    assert 0 < run.steps <= 5
    assert run.lean.ledger["loss"][run.lean.ledger.seen_in(run.lean.epoch)].isfinite().all()


def test_emulated_bf16_is_warned_of_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for has, precision, warned in ((False, "bf16", True), (True, "bf16", False), (False, "fp32", False)):
        monkeypatch.setattr(machine, "_cpu_has_bf16", lambda has=has: has)
        assert (machine.precision_warning(precision, torch.device("cpu")) is not None) == warned
    monkeypatch.setattr(machine, "_cpu_has_bf16", lambda: False)
    out = ("--precision", "bf16", "--out", tmp_path / "o", "--epochs", 1, "--width", 1, "--train-limit", 20)
    ended = command("train", *out)
    assert ended.returncode == 0
    assert "only emulates; a step took 12 times as long" in ended.stderr


@pytest.mark.parametrize(
    ("model", "tiles", "precision"),
    [
        ("resnet8", False, "bf16"),
        ("mobilenetv2_050", False, "fp32"),
        ("mobilenetv2_050", True, "bf16"),
        ("convnext_atto", False, "bf16"),
    ],
)
def test_mobile_networks_train_in_fp32_where_bf16_has_no_tiles(
    model: str, tiles: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_cpu_has_bf16", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    images = images_of(50)
    assert resolve(TrainConfig(model=model, device="cpu"), images).precision == precision
    assert resolve(TrainConfig(model=model, device="cpu", precision="bf16"), images).precision == "bf16"

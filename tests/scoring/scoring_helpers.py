"""What the tests of scores share: small data sets, models and scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from leantrain import data
from leantrain.cli import cli
from leantrain.run.config import TrainConfig
from leantrain.run.scores import score_images
from leantrain.run.setup import resolve
from leantrain.scoring import Scores


def call(*arguments: object) -> None:
    """The command inside this process; raises what `main` would print."""
    cli.main(args=[str(a) for a in arguments], standalone_mode=False)


def digits(limit: int = 160) -> data.ImageSet:
    return data.load("digits", train_limit=limit)


def settings(images: data.ImageSet, **changes: Any) -> TrainConfig:
    small: dict[str, Any] = {"model": "resnet8", "width": 4, "batch_size": 32, "precision": "fp32", "device": "cpu"}
    return resolve(TrainConfig(**{**small, **changes}), images)


def small_scores(images: data.ImageSet, kind: str = "el2n", **changes: Any) -> Scores:
    how = {"models": 1, "epochs": 2, **{k: changes.pop(k) for k in ("models", "epochs", "gradients") if k in changes}}
    return score_images(settings(images, **changes), images, kind, **how)


def handmade(values: list[float], ids: list[str] | None = None, kind: str = "el2n") -> Scores:
    names = tuple(ids or map(str, range(len(values))))
    targets = torch.arange(len(values)) % 2
    made_with = {"data": "digits", "seed": 3}
    return Scores(torch.tensor(values), names, targets, ("even", "odd"), kind, 12.5, 0.25, made_with)


def network() -> nn.Module:
    """A convolution, BatchNorm, dropout and a head: everything that a pass could disturb."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def seeded(seed: int = 0) -> nn.Module:
    """The network with BatchNorm statistics that are not the initial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
        model(torch.randn(32, 1, 8, 8) * 2 + 1)
    return model


def examples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=rng), torch.randint(0, 3, (count,), generator=rng)


def bars(count: int = 60) -> TensorDataset:
    """Three classes that differ in where they are bright; the last five labels are wrong."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = 0.4 * torch.randn(count, 1, 8, 8, generator=rng)
    images += torch.eye(3)[labels].repeat_interleave(3, 1)[:, :8].view(count, 1, 1, 8)
    labels[-5:] = (labels[-5:] + 1) % 3
    return TensorDataset(images, labels)

"""From settings to what a run is made of: the data, the settings that were left open, the model."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leantrain import data
from leantrain.batch import Batch
from leantrain.channels import Channels
from leantrain.data import FileImages, Images, ImageSet
from leantrain.data.policies import PolicyImages
from leantrain.errors import LeanError
from leantrain.loader import InOrder, PlannedDataset, planned_dataloader
from leantrain.methods import choose_method
from leantrain.models import build, default_model, published
from leantrain.rng import generator
from leantrain.run import machine, processes
from leantrain.run.config import TrainConfig, default_workers
from leantrain.run.display import file_bar
from leantrain.run.folder import RunFolder
from leantrain.schedule import parse_schedule

TUNED = "resnet18"
"""The model whose published weights are taken where none is named."""

LEAST_SIDE = 128
"""Pixels at which a folder's images are shown at least where training starts from published weights: networks that
reduce an image 32-fold see a map of 4×4 then, as they were published."""

CHECK_SECONDS = 10.0
"""How long a look at the files may take before a run; 12 µs per file, where the disk is quick."""


def load_images(config: TrainConfig) -> ImageSet:
    """The data set that the settings name, normalised as published weights expect where training starts from them."""
    model = config.model or (TUNED if config.pretrained else None)
    known = published(model) if config.from_weights and model is not None else None
    images = data.load(
        config.data,
        config.data_root,
        train_limit=config.train_limit,
        validation=config.validation,
        seed=config.seed,
        skip_bad_images=config.skip_bad_images,
        image_size=config.image_size,
        least_size=0 if known is None else min(LEAST_SIDE, known.side),
        augment=config.augment,
        flip=config.flip,
        erase=config.erase,
    )
    if known is None or len(known.mean) != images.channels:
        return images
    return dataclasses.replace(images, mean=known.mean, std=known.std)


def check_files(images: ImageSet) -> None:
    """Look at the files of a set before anything is trained on it, the test part first, whose turn comes last.

    Raises:
        LeanError: one of them is no picture.
    """
    if images.bad_images:  # each was decoded already
        return
    train = images.train.part if isinstance(images.train, PolicyImages) else images.train
    parts = [part for part in (images.test, train) if isinstance(part, FileImages)]
    with file_bar(sum(map(len, parts))) as step:
        for part in parts:
            found = part.first_unreadable(CHECK_SECONDS / len(parts), step)
            if found is not None:
                raise LeanError(found)


def resolve(config: TrainConfig, images: ImageSet) -> TrainConfig:
    """Fill in what the user left open, to suit the data, the machine, and whether training starts from weights."""
    device = machine.choose_device(config.device)
    if config.sync_batchnorm and processes.count() > 1 and device.type != "cuda":
        # Before processes connect: one that refuses later may leave another waiting for it.
        raise LeanError(
            f"--sync-batchnorm needs GPUs, and the {processes.count()} processes train on {device.type}; drop it."
        )
    tuned = config.from_weights
    epochs = config.epochs or (tuning_epochs if tuned else default_epochs)(len(images.train))
    batch_size = config.batch_size or default_batch_size(len(images.train), epochs)
    optimizer = config.optimizer or ("adamw" if tuned else "sgd")
    step = batch_size * config.accumulate_batches
    model = config.model or (
        TUNED if config.pretrained else default_model(images.image_size, len(images.train), device.type)
    )

    def untrained() -> nn.Module:
        return build_model(dataclasses.replace(config, model=model), images, fresh=False)

    lr = tuning_lr(optimizer, step) if tuned else default_lr(optimizer, model) * step / 128
    decay = 0.05 if optimizer == "adamw" and tuned else 5e-4
    chosen: dict[str, Any] = {
        "device": str(device),
        "precision": machine.choose_precision(config.precision, device, untrained),
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": config.lr or lr,
        "weight_decay": decay if config.weight_decay is None else config.weight_decay,
        "fit_head": tuned if config.fit_head is None else config.fit_head,
        "keep_statistics": tuned if config.keep_statistics is None else config.keep_statistics,
        "workers": default_workers(images.in_memory) if config.workers is None else config.workers,
        "pin_memory": device.type == "cuda" if config.pin_memory is None else config.pin_memory,
    }
    parse_schedule(config.schedule)  # a mistake in either is reported before anything starts
    method, chosen["budget"] = choose_method(config.method, config.budget, tuned=tuned)
    chosen["method"] = str(method)
    return dataclasses.replace(config, **chosen)


def default_epochs(examples: int) -> int:
    """Small sets need more passes: about 800,000 examples in all, between 16 and 40 epochs."""
    return max(16, min(40, round(800_000 / examples)))


def default_lr(optimizer: str, model: str) -> float:
    """At batch size 128. ResNets (and ResNeXt, ResNeSt) take a high rate, with which MobileNetV2 hardly learns."""
    if optimizer != "sgd":
        return 0.001
    name = model.rsplit("/")[-1]
    return 0.6 if "resne" in name and not name.startswith(("vit_", "nf_", "inception_")) else 0.1


def with_batch_size(config: TrainConfig, batch_size: int) -> TrainConfig:
    """Resolved settings with another batch size, and the learning rate that goes with it."""
    assert config.lr is not None and config.batch_size is not None
    times = batch_size / config.batch_size
    if config.from_weights:
        optimizer = config.optimizer or "adamw"
        times = tuning_lr(optimizer, batch_size) / tuning_lr(optimizer, config.batch_size)
    return dataclasses.replace(config, batch_size=batch_size, lr=config.lr * times)


def tuning_epochs(examples: int) -> int:
    """What starts from weights needs fewer: about 60,000 examples in all, between 4 and 15 epochs."""
    return max(4, min(15, round(60_000 / examples)))


def tuning_lr(optimizer: str, batch_size: int) -> float:
    """Gentler than from nothing, and for Adam's kin with the square root of the batch size; docs/training.md."""
    if optimizer == "sgd":
        return 0.02 * batch_size / 128
    return 0.001 * math.sqrt(batch_size / 128)


def default_batch_size(examples: int, epochs: int) -> int:
    """The largest of 32, 64 and 128 with which a full run has 2,500 steps; small sets do better with more steps."""
    return max([size for size in (32, 64, 128) if examples * epochs >= 2500 * size], default=32)


def build_model(config: TrainConfig, images: ImageSet, *, fresh: bool = True) -> nn.Module:
    """The model that the settings name, for this data set.

    Args:
        fresh: load the published weights or those of a file where the settings ask for them; a saved model replaces
            them, so then they need not be there any more.
    """
    assert config.model is not None
    return build(
        config.model,
        classes=len(images.classes),
        channels=images.channels,
        image_size=images.image_size,
        width=config.width,
        dropout=config.dropout,
        pretrained=config.pretrained and fresh,
        weights=Path(config.weights) if config.weights is not None and fresh else None,
        seed=config.seed,
    )


def load_saved(model: nn.Module, folder: RunFolder, config: TrainConfig, images: ImageSet) -> None:
    """Give a model the weights that a run saved, which may have removed channels; refused where they do not fit."""
    try:
        load_resized(model, folder.weights(), images)
    except RuntimeError as error:
        raise LeanError(
            f"the weights in '{folder}' do not fit {config.model} with {len(images.classes)} classes of "
            f"{config.data} ({str(error).splitlines()[0].rstrip(':')}); use the data that it was trained on."
        ) from None


def load_resized(model: nn.Module, weights: dict[str, Tensor], images: ImageSet) -> None:
    """Load weights of a model that may have lost channels since it was built; their shapes say which widths it has.

    Raises:
        RuntimeError: it is no matter of channels that they differ.
    """
    now = model.state_dict()
    if any(name in now and now[name].shape != tensor.shape for name, tensor in weights.items()):
        like = next(model.parameters())
        example = torch.zeros(2, images.channels, images.image_size, images.image_size).to(like)
        with contextlib.suppress(LeanError):  # then loading says what does not fit
            Channels(model, example).resize_like(weights)
    model.load_state_dict(weights)


def evaluation_batches(part: Images, config: TrainConfig, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
    """Any part of a data set in order and without augmentation, through the same loader as training.

    Of several ranks, each gets its share of the batches.
    """
    sampler = InOrder(len(part), max(config.batch_size or 0, 256), rank, ranks)
    options = {"num_workers": config.workers or 0, "pin_memory": bool(config.pin_memory)}
    dataset = PlannedDataset(part, None, (0, 1))
    return iter(planned_dataloader(dataset, sampler, generator=generator(0, "evaluation"), **options))

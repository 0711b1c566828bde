"""The loading code that everybody writes first, to measure against: PIL images, transforms one by one, a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from leantrain import _torchvision
from leantrain.data import ImageSet, MemoryImages
from leantrain.rng import generator

_torchvision.prepare()

from PIL import Image  # noqa: E402
from torchvision import transforms  # noqa: E402

Transform = Callable[[Image.Image], Tensor]


def train_transform(images: ImageSet) -> Transform:
    """Random crop, mirror, normalise: `leantrain.data.Augment`'s work, by torchvision's classes."""
    made: Transform = transforms.Compose(
        [
            transforms.RandomCrop(images.image_size, padding=images.pad),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(images.mean, images.std),
        ]
    )
    return made


class PilImages(Dataset[tuple[Tensor, int]]):
    """Arrays as PIL images through a transform: line by line the work of `torchvision.datasets.CIFAR10`.

    (That class itself reads only the pickled copy of CIFAR-10.)
    """

    def __init__(self, images: MemoryImages, transform: Transform) -> None:
        self.data = np.ascontiguousarray(images.pixels.numpy())
        self.targets = images.targets.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def shuffled_loader(dataset: Any, batch_size: int, workers: int, seed: int) -> DataLoader[Any]:
    """The usual DataLoader. Workers persist, so that no chunk pays for starting them."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=generator(seed, "shuffle"),
    )

"""How fast do images come out of leantrain's loader, against torchvision's data sets in a DataLoader?

No model: batches of 128, cropped, mirrored and normalised, and thrown away. Two sets, with 0 and with 2 workers:

- CIFAR-10, decoded in memory: leantrain's planned loader and `Augment.train` on whole batches, against PIL images
  through torchvision transforms, as `torchvision.datasets.CIFAR10` does it
- EuroSAT-10k, a folder of 64-pixel JPEGs: the same two, against `torchvision.datasets.ImageFolder`

A chunk is one epoch; workers persist from one to the next. Contenders take turns in one process, ratios are taken
within a round and given as median (min–max).

    python benchmarks/loader.py

Result: 25× and 3.0× (CIFAR-10, 0 and 2 workers), 4.2× and 2.2× (JPEG folder); n, hardware and versions in
results/loader.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import Spread, alternate, finish, markdown, parser, progress, ratios
from _naive import PilImages, shuffled_loader, train_transform
from torch import nn
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

import leantrain
from leantrain import data
from leantrain.data import Augment, FileImages, ImageSet, MemoryImages
from leantrain.data.images import Folder


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows: list[tuple[str, int, str, str, str]] = []
    result: dict[str, Any] = {}
    for name, limit in (("cifar10", arguments.cifar_images), ("eurosat10k", arguments.jpeg_images)):
        progress(f"reading {name}")
        images = data.load(name, train_limit=limit, seed=arguments.seed)
        for workers in arguments.workers:
            contenders = {
                "torchvision": theirs(images, arguments.batch_size, workers, arguments.seed),
                "leantrain": ours(images, arguments.batch_size, workers, arguments.seed),
            }
            rates = alternate(contenders, arguments.rounds)
            speeds = {who: Spread.of(values) for who, values in rates.items()}
            factor = ratios(rates, "leantrain", "torchvision")
            rows.append(
                (name, workers, speeds["torchvision"].text(0), speeds["leantrain"].text(0), factor.text()),
            )
            result[f"{name}, {workers} workers"] = {
                "images": len(images.train),
                "ratio": factor._asdict(),
                "images_per_second": {who: speed._asdict() for who, speed in speeds.items()},
                "rounds": rates,
            }
    table = markdown(("set", "workers", "torchvision, images/s", "leantrain, images/s", "times as fast"), rows)
    finish("loader", arguments, table, result, n=arguments.rounds)


def ours(images: ImageSet, batch_size: int, workers: int, seed: int) -> Callable[[], int]:
    """One epoch of planned batches, augmented where they would be trained on."""
    lean = leantrain.attach(nn.Identity(), images.train, "plain", epochs=1000, seed=seed)
    loader = lean.loader(batch_size, num_workers=workers, persistent_workers=workers > 0)
    augment = Augment(images, seed, "cpu")

    def chunk() -> int:
        seen = 0
        for batch in loader:
            seen += len(augment.train(batch.inputs, batch.index, batch.epoch))
        return seen

    return chunk


def theirs(images: ImageSet, batch_size: int, workers: int, seed: int) -> Callable[[], int]:
    """One epoch of torchvision's way with the same images."""
    loader = shuffled_loader(_their_dataset(images), batch_size, workers, seed)

    def chunk() -> int:
        return sum(len(inputs) for inputs, _ in loader)

    return chunk


def _their_dataset(images: ImageSet) -> Any:
    transform = train_transform(images)
    if isinstance(images.train, MemoryImages):
        return PilImages(images.train, transform)
    assert isinstance(images.train, FileImages)
    assert isinstance(images.train.source, Folder)
    root = Path(images.train.source.root)
    folder = ImageFolder(str(root / "train"), transform)
    wanted = {str(root / path) for path in images.train.source.paths}
    return Subset(folder, [number for number, (path, _) in enumerate(folder.samples) if path in wanted])


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5, help="rounds that count, after one to warm up (default: 5)")
    options.add_argument("--batch-size", type=int, default=128, help="(default: 128)")
    options.add_argument("--cifar-images", type=int, default=20_480, help="CIFAR-10 images per chunk (default: 20480)")
    options.add_argument("--jpeg-images", type=int, default=8_000, help="JPEG files per chunk (default: 8000)")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="DataLoader workers (default: 0 2)")
    options.add_argument("--threads", type=int, help="torch's threads (default: torch's choice)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.cifar_images, arguments.jpeg_images = 2, 512, 256
    return arguments


if __name__ == "__main__":
    main()

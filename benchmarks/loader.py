"""How fast do images come out of leantrain's loader, against torchvision's data sets in a DataLoader?

No model: batches of 128, cropped, mirrored and normalised, and thrown away. Two sets, with 0 and with 2 workers:

- CIFAR-10, decoded in memory: leantrain's planned loader and `Augment.train` on whole batches, against PIL images
  through torchvision transforms, as `torchvision.datasets.CIFAR10` does it
- EuroSAT-10k, a folder of 64-pixel JPEGs: the same two, against `torchvision.datasets.ImageFolder`; leantrain both
  as it is, which keeps images of up to 96 pixels once they were decoded, and decoding them in every epoch

And leantrain against itself: a folder of 256-pixel JPEGs (EuroSAT's, enlarged), shown at 224 pixels and at half of
that, as a method that shows examples smaller asks for them. The codec then decodes at a half or a quarter.

A chunk is one epoch; workers persist from one to the next. Contenders take turns in one process, ratios are taken
within a round and given as median (min–max).

    python benchmarks/loader.py

Result: 27× and 4.3× (CIFAR-10, 0 and 2 workers), 19× and 4.1× (JPEG folder; 4.3× and 2.1× when it is decoded in every
epoch), half size 2.5×; n, hardware and versions in results/loader.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import Spread, alternate, finish, markdown, parser, progress, ratios
from _naive import PilImages, shuffled_loader, train_transform
from PIL import Image
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
    rows: list[tuple[str, int, str, str, str, str]] = []
    result: dict[str, Any] = {}
    for name, limit in (("cifar10", arguments.cifar_images), ("eurosat10k", arguments.jpeg_images)):
        progress(f"reading {name}")
        images = data.load(name, train_limit=limit, seed=arguments.seed)
        for workers in arguments.workers:
            contenders = {
                "torchvision": theirs(images, arguments.batch_size, workers, arguments.seed),
                "leantrain": ours(images, arguments.batch_size, workers, arguments.seed),
            }
            if isinstance(images.train, FileImages):
                anew = dataclasses.replace(images, train=dataclasses.replace(images.train, keep=False))
                contenders["leantrain, decoding"] = ours(anew, arguments.batch_size, workers, arguments.seed)
            rates = alternate(contenders, arguments.rounds)
            speeds = {who: Spread.of(values) for who, values in rates.items()}
            factors = {who: ratios(rates, who, "torchvision") for who in contenders if who != "torchvision"}
            rows += [
                (name, workers, speeds["torchvision"].text(0), who, speeds[who].text(0), factor.text())
                for who, factor in factors.items()
            ]
            result[f"{name}, {workers} workers"] = {
                "images": len(images.train),
                "ratios": {who: factor._asdict() for who, factor in factors.items()},
                "images_per_second": {who: speed._asdict() for who, speed in speeds.items()},
                "rounds": rates,
            }
    table = markdown(("set", "workers", "torchvision, images/s", "against it", "images/s", "times as fast"), rows)
    small, result["256-pixel JPEGs, half size"] = smaller(arguments)
    finish("loader", arguments, f"{table}\n\n{small}", result, n=arguments.rounds)


def smaller(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """A folder of larger JPEGs at full and at half size, from one worker's point of view."""
    with tempfile.TemporaryDirectory() as folder:
        progress("enlarging JPEGs")
        _enlarge(Path(folder), arguments.large_images, arguments.seed)
        images = data.load(folder, image_size=224, seed=arguments.seed)
        contenders = {
            "full size": ours(images, arguments.batch_size, 0, arguments.seed),
            "half size": ours(images, arguments.batch_size, 0, arguments.seed, "input-scaling[size=112]"),
        }
        rates = alternate(contenders, arguments.rounds)
    speeds = {who: Spread.of(values) for who, values in rates.items()}
    factor = ratios(rates, "half size", "full size")
    row = ("256-pixel JPEGs", speeds["full size"].text(0), speeds["half size"].text(0), factor.text())
    table = markdown(("set", "224 pixels, images/s", "112 pixels, images/s", "times as fast"), [row])
    per_second = {who: speed._asdict() for who, speed in speeds.items()}
    return table, {"ratio": factor._asdict(), "images_per_second": per_second, "rounds": rates}


def _enlarge(folder: Path, number: int, seed: int) -> None:
    """Some of EuroSAT's images at 256 pixels, as a folder of classes."""
    source = data.load("eurosat10k", train_limit=number, seed=seed)
    pixels, targets = source.train.batch(torch.arange(number), data.EVALUATION)
    for place, (picture, target) in enumerate(zip(pixels, targets.tolist(), strict=True)):
        image = Image.fromarray(picture.permute(1, 2, 0).numpy()).resize((256, 256), Image.Resampling.BICUBIC)
        for part in ("train", "test"):  # a set needs both, and this benchmark reads the first
            file = folder / part / source.classes[target] / f"{place}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file, quality=90)


def ours(images: ImageSet, batch_size: int, workers: int, seed: int, method: str = "plain") -> Callable[[], int]:
    """One epoch of planned batches, augmented where they would be trained on."""
    example = torch.zeros(2, images.channels, images.image_size, images.image_size)
    lean = leantrain.attach(nn.Identity(), images.train, method, epochs=1000, seed=seed, example=example)
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
    options.add_argument("--large-images", type=int, default=1_000, help="256-pixel JPEGs per chunk (default: 1000)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.cifar_images, arguments.jpeg_images, arguments.large_images = 2, 512, 256, 100
    return arguments


if __name__ == "__main__":
    main()

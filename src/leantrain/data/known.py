"""The sets known by name, small enough to sit in memory: digits, Fashion-MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leantrain.data import parts
from leantrain.data.images import ImageSet, MemoryImages
from leantrain.errors import LeanError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Part = tuple[Bytes, Tensor]
"""Pixels (N, H, W, C) and int64 labels, as read."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class Preprocessing:
    """How a set is shown; mean and std are those of its training pixels, scaled to 0…1."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool


# Digits are mirrored by nothing (a mirrored 2 is no 2), and two of 32 pixels are half of one of the 8 they come from.
DIGITS = Preprocessing(32, (0.3049,), (0.3232,), pad=2, flip=False)
FASHION = Preprocessing(28, (0.2860,), (0.3530,), pad=4, flip=True)
CIFAR10 = Preprocessing(32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), pad=4, flip=True)
CIFAR100 = Preprocessing(32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), pad=4, flip=True)


def digits(root: Path, image_size: int | None) -> ImageSet:
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels: no download, one training in seconds."""
    images, labels = _digits_table()
    pixels = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)[..., None]
    targets = torch.from_numpy(labels.astype(np.int64))
    everything = _memory((pixels, targets), image_size or DIGITS.size)
    kept, held = parts.stratified(targets, 0.2)
    classes = tuple(map(str, range(10)))
    return _image_set("digits", everything.select(kept), everything.select(held), classes, DIGITS)


def _digits_table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels 0…16 and labels, from scikit-learn's own file: importing scikit-learn takes longer than training on it."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if spec else Path()
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits  # another version may keep it elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def fashion_mnist(root: Path, image_size: int | None) -> ImageSet:
    """Fashion-MNIST from torchvision's layout, plain or gzipped."""
    folder = root / "FashionMNIST" / "raw"
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]

    def present() -> bool:
        return all(_idx_path(folder / name) is not None for name in names)

    if not present():

        def download() -> None:
            from torchvision.datasets import FashionMNIST

            FashionMNIST(str(root), download=True)

        remedy = f"put {', '.join(names)} (plain or .gz) into {folder}"
        _download("fashion-mnist", download, remedy)
        if not present():
            raise LeanError(f"fashion-mnist is not complete after the download; {remedy}.")
    train, test = (
        _part(_idx(folder / images, 3)[..., None], _idx(folder / labels, 1), folder)
        for images, labels in (names[:2], names[2:])
    )
    size = image_size or FASHION.size
    return _image_set("fashion-mnist", _memory(train, size), _memory(test, size), FASHION_CLASSES, FASHION)


def cifar10(root: Path, image_size: int | None) -> ImageSet:
    """CIFAR-10 from the official binary version, or from torchvision's copy."""
    folder = root / "cifar-10-batches-bin"
    if folder.is_dir():
        train = _cifar_binary(folder, [f"data_batch_{number}.bin" for number in range(1, 6)], label_bytes=1)
        test = _cifar_binary(folder, ["test_batch.bin"], label_bytes=1)
        classes = _names(folder / "batches.meta.txt") or CIFAR10_CLASSES
    else:
        train, test, classes = _cifar_torchvision("CIFAR10", root, folder, "cifar-10-batches-py")
    size = image_size or CIFAR10.size
    return _image_set("cifar10", _memory(train, size), _memory(test, size), classes, CIFAR10)


def cifar100(root: Path, image_size: int | None) -> ImageSet:
    """CIFAR-100 with its 100 fine labels, from the official binary version, or from torchvision's copy."""
    folder = root / "cifar-100-binary"
    if folder.is_dir():
        train = _cifar_binary(folder, ["train.bin"], label_bytes=2)
        test = _cifar_binary(folder, ["test.bin"], label_bytes=2)
        classes = _names(folder / "fine_label_names.txt") or tuple(str(number) for number in range(100))
    else:
        train, test, classes = _cifar_torchvision("CIFAR100", root, folder, "cifar-100-python")
    size = image_size or CIFAR100.size
    return _image_set("cifar100", _memory(train, size), _memory(test, size), classes, CIFAR100)


def _image_set(
    name: str, train: MemoryImages, test: MemoryImages, classes: tuple[str, ...], shown: Preprocessing
) -> ImageSet:
    return ImageSet(
        name=name,
        train=train,
        test=test,
        classes=classes,
        image_size=train.pixels.shape[1],
        channels=train.pixels.shape[3],
        mean=shown.mean,
        std=shown.std,
        pad=shown.pad,
        flip=shown.flip,
        where=name,
    )


def _part(pixels: Bytes, labels: Bytes, folder: Path) -> Part:
    if len(pixels) != len(labels):
        raise LeanError(f"{folder} has {len(pixels)} images but {len(labels)} labels; fetch the files again.")
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _memory(part: Part, size: int) -> MemoryImages:
    """The part at the size it is shown at: resized once, here, not in every epoch."""
    pixels, targets = torch.from_numpy(np.array(part[0], order="C")), part[1]
    if pixels.shape[1] != size:
        # In pieces, because the float copies of a whole set would take four times its memory.
        pixels = torch.cat([_interpolated(piece, size) for piece in torch.split(pixels, 4096)])
    return MemoryImages(pixels, targets, torch.arange(len(targets)))


def _interpolated(pixels: Tensor, size: int) -> Tensor:
    grown = F.interpolate(pixels.permute(0, 3, 1, 2).float(), (size, size), mode="bilinear", antialias=True)
    return grown.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _names(path: Path) -> tuple[str, ...]:
    """The class names of a text file with one per line, or nothing when there is no such file."""
    if not path.is_file():
        return ()
    try:
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise LeanError(f"{path} is not text ({error}); unpack the set's binary version again.") from error


def _cifar_binary(folder: Path, names: list[str], label_bytes: int) -> Part:
    """Records of the label (the last of `label_bytes` counts: CIFAR-100's first is the coarse one) and 3,072 pixels."""
    length = label_bytes + 3072
    records = []
    for name in names:
        try:
            data = np.fromfile(folder / name, dtype=np.uint8)
        except OSError as error:
            raise LeanError(
                f"{folder / name} cannot be read ({error.strerror or error}); unpack the set's binary version again."
            ) from error
        if not len(data) or len(data) % length:
            raise LeanError(
                f"{folder / name} has {len(data)} bytes, not a whole number of records of {length}; "
                "unpack the set's binary version again."
            )
        records.append(data.reshape(-1, length))
    table = np.concatenate(records)
    pixels = table[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _part(pixels, table[:, label_bytes - 1], folder)


def _cifar_torchvision(kind: str, root: Path, binary: Path, copy: str) -> tuple[Part, Part, tuple[str, ...]]:
    """Torchvision's copy, downloaded when it is not there.

    The copy is made of pickles, which can run code: torchvision opens them only when their checksums are right.
    """

    def read(train: bool, download: bool = False) -> Any:
        import torchvision

        return getattr(torchvision.datasets, kind)(str(root), train=train, download=download)

    name = kind.lower()
    remedy = f"unpack the set's binary version so that it is at {binary}, or its Python version at {root / copy}"
    if not (root / copy).is_dir():
        _download(name, lambda: read(train=True, download=True), remedy)
    try:
        train, test = read(train=True), read(train=False)
    except (RuntimeError, OSError) as error:
        raise LeanError(f"{root / copy} is not the {name} that its authors published; {remedy}.") from error
    both = tuple((part.data, torch.tensor(part.targets, dtype=torch.int64)) for part in (train, test))
    return both[0], both[1], tuple(train.classes)


def _download(name: str, fetch: Callable[[], object], remedy: str) -> None:
    """Let torchvision fetch a set; without a network the error says what to put where."""
    try:
        fetch()
    except (OSError, RuntimeError, urllib.error.URLError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise LeanError(f"{name} is not on this machine and its download failed ({why}); {remedy}.") from error


def _idx_path(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _idx(path: Path, dimensions: int) -> Bytes:
    """An array of bytes in MNIST's idx format, plain or gzipped."""
    found = _idx_path(path)
    assert found is not None
    try:
        data = found.read_bytes() if found == path else gzip.decompress(found.read_bytes())
        magic, *sizes = struct.unpack_from(f">{1 + dimensions}I", data)
        if magic != 0x0800 + dimensions:
            raise ValueError(f"it starts with {magic:#06x}")
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(sizes)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise LeanError(f"{found} is not an idx file of bytes ({error}); fetch it again.") from error

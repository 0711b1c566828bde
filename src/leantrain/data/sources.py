"""Where a data set comes from: a known name, a folder's name under the data root, or a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from leantrain.data import files, hugging_face, known, shards
from leantrain.data.images import ImageSet
from leantrain.errors import LeanError, nearest

READERS: dict[str, Callable[[Path, int | None], ImageSet]] = {
    "digits": known.digits,
    "fashion-mnist": known.fashion_mnist,
    "cifar10": known.cifar10,
    "cifar100": known.cifar100,
}
NAMES: tuple[str, ...] = (*READERS, "imagenet")
"""The sets `load` knows by name."""


def default_root() -> Path:
    """Where named sets live unless the caller says otherwise."""
    chosen = os.environ.get("LEANTRAIN_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "leantrain-data"


def find(name: str, root: Path, seed: int, image_size: int | None, least_size: int = 0) -> ImageSet:
    """The set called `name`, or the one that lies there."""
    if name in READERS:
        return READERS[name](root, image_size)
    if name == "imagenet":
        place = root / "imagenet"
        if not (place / "train").is_dir():
            raise LeanError(
                f"ImageNet is not at {place}, and cannot be downloaded without an account; put its class folders "
                f"into {place / 'train'} and {place / 'val'}, or name another place with --data-root."
            )
        return files.load(place, "imagenet", seed, image_size, least_size)
    if name.startswith(hugging_face.PREFIX):
        path = Path(name.removeprefix(hugging_face.PREFIX)).expanduser()
        train, test, classes = hugging_face.read(path)
        return files.image_set(str(path), path.resolve().name, train, test, classes, seed, image_size, least_size)
    if shards.is_shards(name):
        tars, held, classes = shards.read(name, root / "indexes")
        parts = [(part, part.targets()) if part is not None else None for part in (tars, held)]
        assert parts[0] is not None
        return files.image_set(name, Path(name).stem, parts[0], parts[1], classes, seed, image_size, least_size)
    path = Path(name).expanduser()
    is_path = any(separator in name for separator in (os.sep, os.altsep) if separator)
    if name and (is_path or path.exists()):
        return files.load(path, path.resolve().name, seed, image_size, least_size)
    if name and (root / name).is_dir():
        return files.load(root / name, name, seed, image_size, least_size)
    raise LeanError(
        f"unknown data set '{name}'.{nearest(name, NAMES)} Give one of {', '.join(NAMES)}, or a path to a folder."
    )

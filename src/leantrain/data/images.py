"""A data set and its parts, train and test: batches of bytes by example index, from memory or from encoded files."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from leantrain import rng
from leantrain.data import decode
from leantrain.data.kept import KeptPictures
from leantrain.errors import LeanError
from leantrain.forms import WHOLE, Form
from leantrain.shrinking import Shrunk

EVALUATION = -1
"""The epoch that means "no random crop"."""

CHECKED = 256
"""How many files one thread looks at before it says so."""


class Images(Protocol):
    """One part of a set. Indices are positions in this part, 0 … len - 1."""

    @property
    def targets(self) -> Tensor:
        """int64, one per example, on the CPU."""

    @property
    def ids(self) -> tuple[str, ...] | Tensor:
        """Who each example is, whatever the cut: its place in the full part, or its file's path below the set's."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Bytes (n, C, H, W) in channels_last memory, and int64 targets; `epoch` -1 asks for the evaluation view."""

    def select(self, indices: Tensor) -> Images:
        """The part with these examples only, in this order."""

    def digest(self, update: Callable[[bytes], object]) -> None:
        """Feed what distinguishes this part's content from another's to a hash."""


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """Decoded images, (N, H, W, C) bytes: a batch is one gather."""

    pixels: Tensor
    targets: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        return self.pixels.index_select(0, indices).permute(0, 3, 1, 2), self.targets.index_select(0, indices)

    def select(self, indices: Tensor) -> MemoryImages:
        return MemoryImages(self.pixels[indices], self.targets[indices], self.ids[indices])

    def digest(self, update: Callable[[bytes], object]) -> None:
        update(self.ids.numpy().tobytes())
        update(self.pixels[:: max(1, len(self) // 64)].numpy().tobytes())


def _open_file(path: str, flags: int) -> int:
    """Open a file, and nothing else that may lie under its name: a pipe would never end."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no file")
    return handle


class Encoded(Protocol):
    """Encoded images, wherever they lie; by their positions, 0 … len - 1."""

    def __len__(self) -> int: ...

    def read(self, position: int) -> bytes:
        """The encoded picture."""

    def ends(self, position: int) -> tuple[bytes, bytes]:
        """Its first and its last bytes."""

    def name(self, position: int) -> str:
        """How an error message refers to it."""

    def ids(self) -> tuple[str, ...] | Tensor:
        """Who each is, whatever the cut."""

    def select(self, positions: Tensor) -> Encoded:
        """These only, in this order."""

    def digest(self, update: Callable[[bytes], object]) -> None:
        """Feed what distinguishes them from others to a hash."""


@dataclass(frozen=True, eq=False)
class Folder:
    """Encoded images as files: `paths` below `root`."""

    root: str
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> bytes:
        with open(self.name(position), "rb", opener=_open_file) as file:
            return file.read()

    def ends(self, position: int) -> tuple[bytes, bytes]:
        """The first and the last bytes."""
        handle = _open_file(self.name(position), os.O_RDONLY)
        try:
            last = max(0, os.fstat(handle).st_size - decode.ENDS)
            return os.pread(handle, decode.ENDS, 0), os.pread(handle, decode.ENDS, last)
        finally:
            os.close(handle)

    def name(self, position: int) -> str:
        return os.path.join(self.root, self.paths[position])

    def ids(self) -> tuple[str, ...]:
        return self.paths

    def select(self, positions: Tensor) -> Folder:
        return replace(self, paths=tuple(self.paths[i] for i in positions.tolist()))

    def digest(self, update: Callable[[bytes], object]) -> None:
        update("\0".join(self.paths).encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, eq=False)
class Table:
    """Encoded images as the rows of a table, in one block of bytes.

    One block and its offsets instead of a list: forked workers share it, where touching a list's reference counts
    would copy it page by page.
    """

    label: str
    block: np.ndarray[Any, np.dtype[np.uint8]]
    start: np.ndarray[Any, np.dtype[np.int64]]
    end: np.ndarray[Any, np.dtype[np.int64]]
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, position: int) -> bytes:
        return self.block[self.start[position] : self.end[position]].tobytes()

    def ends(self, position: int) -> tuple[bytes, bytes]:
        """The first and the last bytes."""
        start, end = int(self.start[position]), int(self.end[position])
        head, tail = self.block[start : min(end, start + decode.ENDS)], self.block[max(start, end - decode.ENDS) : end]
        return head.tobytes(), tail.tobytes()

    def name(self, position: int) -> str:
        return f"{self.label}, row {int(self.rows[position])}"

    def ids(self) -> Tensor:
        return self.rows

    def select(self, positions: Tensor) -> Table:
        at = positions.numpy()
        return replace(self, start=self.start[at], end=self.end[at], rows=self.rows[positions])

    def digest(self, update: Callable[[bytes], object]) -> None:
        update(self.rows.numpy().tobytes())
        update((self.end - self.start).tobytes())  # lengths of the encoded images: nearly as telling as their pixels


@dataclass(frozen=True, eq=False)
class FileImages:
    """Encoded images, decoded when a batch asks for them: meant to run in DataLoader workers.

    Images of up to `decode.SMALL` pixels are shown whole; larger ones get a random crop of 25 % to 100 % of their
    area in training, and the middle of the picture in evaluation. (Torchvision's default goes down to 8 %, made for
    90 epochs and more; runs here are shorter.)
    """

    source: Encoded
    targets: Tensor
    size: int
    seed: int
    crop: bool = True
    keep: bool = True
    """Whether small images, which every epoch shows alike, are kept in memory once they were decoded."""
    whole: bool = False
    """Whether evaluation shows large images whole, too, up to the largest square."""
    _kept: KeptPictures | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        # At once, so that workers are forked after it and share it.
        kept = KeptPictures.made_for(len(self), self.size) if self.keep and self.size <= decode.SMALL else None
        object.__setattr__(self, "_kept", kept)

    @property
    def ids(self) -> tuple[str, ...] | Tensor:
        return self.source.ids()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shows(self) -> frozenset[str]:
        """The kinds of form that `batch` takes care of: large images are decoded smaller.

        Small ones are cropped on the device after this, and shrunk after that: a crop of a small image could shift it
        by whole pixels of its own only. On 10,000 CIFAR-10 images that cost two points of accuracy.
        """
        return frozenset({Shrunk.name}) if self.size > decode.SMALL else frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether evaluation shows the largest square of a picture, and not the middle seven eighths of that."""
        return self.whole or self.size <= decode.SMALL

    @property
    def random_crops(self) -> bool:
        """Whether training shows a random part of each image; small ones are shifted on the device instead."""
        return self.crop and self.size > decode.SMALL

    def batch(self, indices: Tensor, epoch: int, form: Form = WHOLE) -> tuple[Tensor, Tensor]:
        side = round(self.size * form.value(Shrunk.name))  # fewer pixels are decoded, too
        kept = self._kept
        if kept is None or side != self.size:
            pixels = self._decoded(indices, epoch, side)
        else:
            missing = kept.missing(indices)
            if len(missing):
                kept.add(missing, self._decoded(missing, epoch, side))
            pixels = kept.get(indices)
        return pixels.permute(0, 3, 1, 2), self.targets.index_select(0, indices)

    def _decoded(self, indices: Tensor, epoch: int, side: int) -> Tensor:
        """Bytes (n, side, side, 3)."""
        pixels = np.empty((len(indices), side, side, 3), dtype=np.uint8)
        random = epoch != EVALUATION and self.random_crops
        draws = rng.uniform(self.seed, epoch, indices, 4, purpose="crop").tolist() if random else None
        for row, position in enumerate(indices.tolist()):
            if draws is not None:
                window = decode.random_window(*draws[row])
            else:
                window = decode.whole if self.is_whole else decode.middle
            pixels[row] = self._picture(position, window, side)
        return torch.from_numpy(pixels)

    def select(self, indices: Tensor) -> FileImages:
        return replace(self, source=self.source.select(indices), targets=self.targets[indices])

    def digest(self, update: Callable[[bytes], object]) -> None:
        self.source.digest(update)

    def readable(self) -> Tensor:
        """Which images can be read: one bool each, from decoding every one of them once."""

        def check(position: int) -> bool:
            try:
                decode.verify(self.source.read(position))
            except decode.BAD:
                return False
            return True

        # Threads: reading and both decoders let go of the interpreter lock.
        with ThreadPoolExecutor(max_workers=min(32, os.cpu_count() or 1)) as pool:
            return torch.tensor(list(pool.map(check, range(len(self)))), dtype=torch.bool)

    def first_unreadable(self, seconds: float, step: Callable[[int], object] = lambda files: None) -> str | None:
        """A quick look at both ends of every file before a run, as far as the time allows: a sentence, or None.

        Only what looks odd is decoded. What is damaged between its ends is found when it is its turn.

        Args:
            seconds: how long it may take.
            step: gets the number of files looked at, some at a time.
        """
        deadline = time.monotonic() + seconds

        def check(positions: range) -> str | None:
            for position in positions if time.monotonic() < deadline else ():
                try:
                    if not decode.looks_whole(*self.source.ends(position)):
                        decode.verify(self.source.read(position))
                except decode.BAD as error:
                    return unreadable(self.source.name(position), error)
            step(len(positions))
            return None

        many = [range(start, min(start + CHECKED, len(self))) for start in range(0, len(self), CHECKED)]
        with ThreadPoolExecutor(max_workers=min(32, os.cpu_count() or 1)) as pool:
            return next(filter(None, pool.map(check, many)), None)

    def _picture(self, position: int, window: decode.Window, side: int) -> decode.Pixels:
        try:
            return decode.picture(self.source.read(position), window, side)
        except decode.BAD as error:
            # One line, whatever the file is called: a worker's traceback ends with it, and the command prints it.
            raise LeanError(unreadable(self.source.name(position), error)) from error


def unreadable(name: str, error: BaseException) -> str:
    """The sentence for an image that cannot be read."""
    why = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".") or type(error).__name__
    return (
        f"The image {name!r} cannot be read ({why}); fix or remove it, "
        "or pass --skip-bad-images to leave such images out."
    )


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A training part, the part it is evaluated on, and how the pictures are shown to the network.

    Attributes:
        mean: Per channel, of pixels scaled to 0…1.
        std: Per channel, likewise.
        pad: How far the crop on the device shifts an image; 0 when there is none (large images crop while decoding).
        flip: Whether the device mirrors half the images.
        erase: The share of the images that lose a random rectangle on the device.
        policy: What else is done to training images; one of `policies.POLICIES`.
        evaluated_on: "test", or "validation" when `test` was held out of the training part.
        bad_images: How many unreadable images `skip_bad_images` left out.
        where: How an error message refers to the set.
        whole_test: `test` with its bad images: a run goes on without them, and is still on the same data.
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    erase: float = 0.0
    policy: str = "light"
    evaluated_on: str = "test"
    bad_images: int = 0
    where: str = ""
    whole_test: Images | None = None

    @property
    def in_memory(self) -> bool:
        """Whether a batch is a plain gather, so that loader workers would only cost time."""
        return isinstance(self.train, MemoryImages)

    def shown(self) -> dict[str, Any]:
        """What must be known to show other pictures to a network in the same way."""
        return {
            "classes": list(self.classes),
            "image_size": self.image_size,
            "channels": self.channels,
            "mean": list(self.mean),
            "std": list(self.std),
            "window": "middle" if isinstance(self.test, FileImages) and not self.test.is_whole else "whole",
        }

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the content, not of the name or place, so that a resume on other data is noticed.

        Every label and identity counts; of the pixels only some, because reading them all would slow every start.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update(repr((self.classes, self.image_size, self.channels)).encode("utf-8", "backslashreplace"))
        for part in (self.train, self.whole_test or self.test):
            digest.update(f"|{len(part)}|".encode())
            digest.update(part.targets.numpy().tobytes())
            part.digest(digest.update)
        return digest.hexdigest()


def some(names: Iterable[str], limit: int = 5) -> str:
    """`'a', 'b' and 3 more`: names for one readable sentence, however many there are."""
    listed = list(names)
    text = ", ".join(repr(name) for name in listed[:limit])
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit} more"


def check_labels(targets: Tensor, classes: int, where: str) -> None:
    """Refuse labels that are no class, before anything counts by them."""
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise LeanError(
            f"{where} has the label {low if low < 0 else high}, but labels go from 0 to {classes - 1} here; "
            "number the classes from 0 without gaps."
        )

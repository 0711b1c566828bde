"""Data sets by name or by path: what there is to train on, and what it is measured on.

Rooms: `sources.py` finds a set, `known.py`, `files.py`, `shards.py` and `hugging_face.py` read it, `images.py` gives
its batches, `decode.py` turns files into pixels, `kept.py` remembers those of small images, `parts.py` cuts a set in a
way that no seed changes, `augment.py` crops, mirrors and normalises on the device, `policies.py` does what
torchvision's policies do before that.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from leantrain.data import parts, policies, sources
from leantrain.data.augment import Augment
from leantrain.data.images import EVALUATION, FileImages, Images, ImageSet, MemoryImages, check_labels, some
from leantrain.data.sources import NAMES, default_root
from leantrain.errors import LeanError

__all__ = ["EVALUATION", "NAMES", "Augment", "FileImages", "ImageSet", "Images", "MemoryImages", "default_root", "load"]


def load(
    name: str,
    root: Path | str | None = None,
    *,
    train_limit: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    skip_bad_images: bool = False,
    image_size: int | None = None,
    least_size: int = 0,
    augment: str = "light",
    flip: bool | None = None,
    erase: float = 0.0,
) -> ImageSet:
    """Find a data set and cut it as asked. No seed changes who is in which part.

    Args:
        name: One of `NAMES`, a folder's name under `root`, or a path: a tree with one folder per class, with or
            without `train` and `val` (or `test`, used when there is no `val`) above them, a `.parquet` file with
            `image` and `label` columns, or a folder of such files; WebDataset shards (`train-{000..099}.tar`), or a
            Hugging Face data set on disk (`hf:PATH`). A name wins over a folder here of the same name;
            write `./name` for the folder.
        root: Where named sets live; `$LEANTRAIN_DATA`, or `~/.cache/leantrain-data`, when not given.
        train_limit: Train on that many examples only: the start of a fixed order in which every prefix is
            class-balanced, so that a smaller limit is always a subset of a larger one.
        validation: Hold out this share of the training part, evenly over classes, and evaluate on it; the test part
            is then not used at all. Cut before `train_limit`, so that a limit does not change what is held out.
        seed: For the random crops of large images only.
        skip_bad_images: Decode every file once before the run, and leave out those that cannot be read.
        image_size: Side of the square shown to the network; chosen from the images when not given.
        least_size: Side at which files are shown at least, where `image_size` is not given.
        augment: What is done to training images, one of `policies.POLICIES`.
        flip: Whether half of them are mirrored; what suits the set when not given.
        erase: The share of them that loses a random rectangle.

    Raises:
        LeanError: For anything the user can fix.
    """
    if train_limit is not None and train_limit <= 0:
        raise LeanError(f"--train-limit {train_limit} leaves nothing to train on; give a number of examples above 0.")
    if not 0.0 <= validation < 1.0:  # also refuses nan
        raise LeanError(f"--validation {validation} is not a share; give a number from 0 up to, but not including, 1.")
    if image_size is not None and not 8 <= image_size <= 2048:
        raise LeanError(f"--image-size {image_size} is out of range; give a number of pixels from 8 to 2048.")
    place = Path(root).expanduser() if root is not None else default_root()
    found = sources.find(str(name), place, seed, image_size, least_size)
    train, test = found.train, found.test
    _check(train, test, found.classes, found.where)
    if validation:
        kept, held = parts.stratified(train.targets, validation)
        if not len(held):
            raise LeanError(
                f"--validation {validation} of {len(train)} training examples holds nothing out without emptying a "
                "class; give a larger share or more examples per class."
            )
        train, test = train.select(kept), train.select(held)
    whole_test, bad = test, 0
    if skip_bad_images:  # after the cut, so that a bad image does not change who is in which part
        (train, bad), (test, more) = _without_bad(train), _without_bad(test)
        bad += more
        _check(train, test, found.classes, found.where)
    if train_limit is not None:
        train = _limited(train, train_limit, len(found.classes))
    cut = dataclasses.replace(
        found,
        train=train,
        test=test,
        whole_test=whole_test,
        evaluated_on="validation" if validation else "test",
        bad_images=bad,
    )
    return policies.augmented(cut, augment, flip, erase, seed)


def _limited(train: Images, limit: int, classes: int) -> Images:
    if limit > len(train):
        raise LeanError(
            f"--train-limit {limit} is more than the {len(train)} training examples there are; "
            "give a smaller number or leave it out."
        )
    if limit < classes:
        raise LeanError(
            f"--train-limit {limit} leaves some of the {classes} classes without an example; "
            f"give a number of at least {classes}."
        )
    return train.select(parts.balanced_order(train.targets)[:limit])


def _without_bad(part: Images) -> tuple[Images, int]:
    """The part without the files that cannot be read, and how many those were."""
    if not isinstance(part, FileImages):
        return part, 0
    good = part.readable()
    bad = int((~good).sum())
    return (part.select(good.nonzero().squeeze(1)), bad) if bad else (part, 0)


def _check(train: Images, test: Images, classes: tuple[str, ...], where: str) -> None:
    """What every set must satisfy, wherever it came from."""
    if len(classes) < 2:
        only = f" ('{classes[0]}')" if classes else ""
        raise LeanError(
            f"{where} has {len(classes)} class{only}, and telling classes apart takes at least two; add one."
        )
    for part, label in ((train, "training"), (test, "test")):
        if not len(part):
            raise LeanError(f"{where} has no readable {label} images; add some.")
        check_labels(part.targets, len(classes), where)
    count = torch.bincount(train.targets, minlength=len(classes))
    empty = (count == 0).nonzero().squeeze(1)
    if len(empty):
        raise LeanError(
            f"{where} has no training image of class {some(classes[int(c)] for c in empty)}; "
            "add images or leave the class out."
        )

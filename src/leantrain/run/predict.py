"""Prediction: the model that a run saved, asked about pictures, without the data that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.data import Augment, FileImages, ImageSet
from leantrain.data.files import EXTENSIONS
from leantrain.data.images import Folder
from leantrain.errors import LeanError
from leantrain.run import machine
from leantrain.run.folder import RunFolder, check_fields
from leantrain.run.precision import Precision
from leantrain.run.setup import build_model, evaluation_batches, load_saved

SHOWN = {"image_size": (int,), "channels": (int,), "mean": (list,), "std": (list,), "classes": (list,)}
"""What a run notes of how pictures are shown to its network, and of what type."""

GREY = (0.299, 0.587, 0.114)
"""How much red, green and blue count in a grey picture, as in Pillow."""


class Predictor:
    """The trained model of a run, which gives the probability of every class.

    Args:
        folder: what `leantrain train` wrote.
        device: where to compute.

    Attributes:
        module: the network alone, in eval mode; it takes what `shown` gives.
        classes: their names, in the order of its answers.
    """

    def __init__(self, folder: Path | str, device: str = "auto") -> None:
        run = RunFolder(Path(folder))
        self._config = run.config()
        self._made_with = run.made_with()
        check_fields(
            self._made_with, SHOWN, run.settings_file, "train again with this version, or use `leantrain eval`"
        )
        self.classes = tuple(map(str, self._made_with["classes"]))
        self._device = machine.choose_device(device)
        self._images = self._set(())
        self.module: nn.Module = build_model(self._config, self._images, fresh=False)
        load_saved(self.module, run, self._config, self._images)
        if self._config.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module.to(self._device).eval()
        name = "fp32" if self._config.precision == "fp16" else self._config.precision
        self._model = Precision(name, self._device).wrapped(self.module)

    def __call__(self, files: Sequence[Path | str]) -> Tensor:
        """Probabilities (files, classes), on the CPU.

        Raises:
            LeanError: a file cannot be read as a picture.
        """
        images = self._set(files)
        augment = Augment(images, 0, self._device)
        answers = [torch.empty(0, len(self.classes))]
        with torch.inference_mode():
            for batch in evaluation_batches(images.test, self._config):
                pixels = _grey(batch.inputs) if images.channels == 1 else batch.inputs
                logits = self._model(augment.evaluate(pixels.to(self._device)))
                answers.append(logits.float().softmax(1).cpu())
        return torch.cat(answers)

    def readable(self, files: Sequence[Path | str]) -> Tensor:
        """Which of the files can be read as pictures: one bool each."""
        return self._part(files).readable()

    def _part(self, files: Sequence[Path | str]) -> FileImages:
        source, unknown = Folder("", tuple(map(str, files))), torch.zeros(len(files), dtype=torch.int64)
        return FileImages(source, unknown, self._made_with["image_size"], seed=0, keep=False)

    def _set(self, files: Sequence[Path | str]) -> ImageSet:
        """The files as the test part of a set that is shown like the one that was trained on."""
        noted, part = self._made_with, self._part(files)
        return ImageSet(
            name="files",
            train=part,
            test=part,
            classes=self.classes,
            image_size=noted["image_size"],
            channels=noted["channels"],
            mean=tuple(noted["mean"]),
            std=tuple(noted["std"]),
            pad=0,
            flip=False,
        )


def shown_by(images: ImageSet) -> dict[str, Any]:
    """What a run must note for `Predictor`."""
    noted = {name: getattr(images, name) for name in SHOWN}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in noted.items()}


def pictures(places: Sequence[Path]) -> list[Path]:
    """These files, and the pictures in those that are folders."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(f for f in place.rglob("*") if f.suffix.lower() in EXTENSIONS and f.is_file())
            if not inside:
                raise LeanError(f"'{place}' has no images; expected files ending in {', '.join(EXTENSIONS)}.")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise LeanError(f"there is no '{place}'; give image files, or folders of them.")
    return found


def _grey(pixels: Tensor) -> Tensor:
    """(n, 3, H, W) bytes as (n, 1, H, W)."""
    weights = torch.tensor(GREY).view(1, 3, 1, 1)
    return (pixels.float() * weights).sum(1, keepdim=True).round().to(torch.uint8)

"""Prediction: the model that a run saved, asked about pictures, without the data that it was trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leantrain.data import Augment, FileImages, ImageSet
from leantrain.data.files import EXTENSIONS, images_below
from leantrain.data.images import Folder
from leantrain.errors import LeanError
from leantrain.run import machine
from leantrain.run.folder import Json, Kinds, RunFolder, check_fields
from leantrain.run.precision import Precision
from leantrain.run.setup import build_model, evaluation_batches, load_saved

NOTED: dict[str, Kinds] = {
    "classes": (list,),
    "image_size": (int,),
    "channels": (int,),
    "mean": (list,),
    "std": (list,),
    "window": (str,),
}
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
        if not run.holds_run or not run.has_weights:
            raise LeanError(f"'{folder}' holds no finished run (config.yaml and model.safetensors); train one first.")
        # In this process: starting others takes longer than most questions.
        self._config = dataclasses.replace(run.config(), workers=0, pin_memory=False)
        self._noted = _noted(run)
        self.classes = tuple(map(str, self._noted["classes"]))
        self._device = machine.choose_device(device)
        images = self._set()
        self._augment = Augment(images, 0, self._device)
        self.module: nn.Module = build_model(self._config, images, fresh=False)
        load_saved(self.module, run, self._config, images)
        if self._config.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module.to(self._device).eval()
        precision = self._config.precision
        if precision == "fp16" or machine.precision_warning(precision, self._device) is not None:
            precision = "fp32"  # it was trained elsewhere
        self._model = Precision(precision, self._device).wrapped(self.module)

    def __call__(self, files: Sequence[Path | str]) -> Tensor:
        """Probabilities (files, classes), on the CPU.

        Raises:
            LeanError: a file cannot be read as a picture.
        """
        answers = [torch.empty(0, len(self.classes))]
        with torch.inference_mode():
            answers += [self._model(inputs).float().softmax(1).cpu() for inputs in self._batches(files)]
        return torch.cat(answers)

    def shown(self, files: Sequence[Path | str]) -> Tensor:
        """The files as the network sees them, (files, channels, height, width): as in the run's evaluation."""
        return torch.cat(list(self._batches(files)))

    def readable(self, files: Sequence[Path | str]) -> Tensor:
        """Which of the files can be read as pictures: one bool each."""
        return self._part(files).readable()

    def _batches(self, files: Sequence[Path | str]) -> Iterator[Tensor]:
        if isinstance(files, str | Path):
            raise LeanError(f"a Predictor takes a list of files, not the single '{files}'; put it into brackets.")
        for batch in evaluation_batches(self._part(files), self._config):
            pixels = _grey(batch.inputs) if self._noted["channels"] == 1 else batch.inputs
            yield self._augment.evaluate(pixels.to(self._device))

    def _part(self, files: Sequence[Path | str]) -> FileImages:
        source, unknown = Folder("", tuple(map(str, files))), torch.zeros(len(files), dtype=torch.int64)
        size, whole = self._noted["image_size"], self._noted["window"] == "whole"
        return FileImages(source, unknown, size, seed=0, keep=False, whole=whole)

    def _set(self) -> ImageSet:
        """A set without images that is shown like the one that was trained on."""
        noted, part = self._noted, self._part(())
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


def _noted(run: RunFolder) -> Json:
    """What the run noted of how pictures are shown."""
    noted, remedy = run.made_with(), "train again, or use `leantrain eval`"
    check_fields(noted, NOTED, run.settings_file, remedy)
    for name in ("mean", "std"):
        values, least = noted[name], 0.0 if name == "mean" else 1e-12
        if len(values) != noted["channels"] or not all(
            type(value) in (int, float) and math.isfinite(value) and value >= least for value in values
        ):
            raise LeanError(f"{name} in '{run.settings_file}' is {values}, so it was damaged; {remedy}.")
    return noted


def pictures(places: Sequence[Path]) -> list[Path]:
    """These files, and the pictures in those that are folders."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = images_below(place, "")
            if not inside:
                raise LeanError(f"'{place}' has no images; expected files ending in {', '.join(EXTENSIONS)}.")
            found += [place / file for file in inside]
        elif place.is_file():
            found.append(place)
        else:
            raise LeanError(f"there is no '{place}'; give image files, or folders of them.")
    return found


def _grey(pixels: Tensor) -> Tensor:
    """(n, 3, H, W) bytes as (n, 1, H, W)."""
    weights = torch.tensor(GREY).view(1, 3, 1, 1)
    return (pixels.float() * weights).sum(1, keepdim=True).round().to(torch.uint8)

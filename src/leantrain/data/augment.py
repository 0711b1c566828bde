"""Random crop, mirror, erasing and normalisation: a whole batch at a time, on the device it trains on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leantrain import rng
from leantrain.shrinking import Shrunk, resized

if TYPE_CHECKING:
    from leantrain.batch import Batch
    from leantrain.data import ImageSet

DRAWN_AT_ONCE = 1 << 20
"""Sets of up to so many examples have the crops of an epoch drawn before its first batch: some megabytes, and two
operations a step instead of thirty."""

AT_ONCE = 1 << 19
"""Of images in memory those of several batches are gathered and prepared together, up to so many pixels: a step's own
work on a CPU is mostly the starting of operations."""


class Augment:
    """Turns batches of bytes into what the network sees.

    What happens to an example depends on (seed, epoch, its index) and on nothing else: not on the batch it came in,
    the worker that read it or the rank that trains it. `strength` is a matter of the epoch, too: how far a crop shifts
    an image, as a share of `pad`. It grows over a run, which did better on held-out images (docs/training.md).

    Called with a batch, it is what `attach` takes as `prepare=`. It is not a method of the run, because a cycle
    through the run would keep the loader's workers alive after it.
    """

    def __init__(self, images: ImageSet, seed: int, device: torch.device | str) -> None:
        self.pad = images.pad
        self.strength = 1.0
        self.flip = images.flip
        self.erase = images.erase
        self.seed = seed
        self.device = torch.device(device)
        mean = torch.tensor(images.mean, dtype=torch.float64)
        std = torch.tensor(images.std, dtype=torch.float64)
        # (x / 255 - mean) / std as one multiplication and one addition.
        self.scale = (1.0 / (255.0 * std)).float().to(device)
        self.shift = (-mean / std).float().to(device)
        self.mean = (255.0 * mean).round().to(torch.uint8).to(device)
        self._line: tuple[int, Tensor, Tensor] | None = None  # both for a whole line of pixels, and its width
        # Each example is prepared by itself, so that those of several batches can be at once.
        self.at_once = max(1, AT_ONCE // images.image_size**2) if images.in_memory else 1
        self._examples = len(images.train)
        self._drawn: tuple[object, Tensor] | None = None  # of every example, and for which epoch
        self._framed: Tensor | None = None

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device, augmented there; and shrunk at once, where its form and the device suit that."""
        if batch.inputs.device != self.device:
            batch = batch.to(self.device)
        scale = batch.form.value(Shrunk.name)
        height, width = batch.inputs.shape[-2:]
        is_whole = scale == batch.given.value(Shrunk.name)  # or decoded at its size already
        if is_whole or height != width or self.device.type != "cpu":
            return batch.with_inputs(self.train(batch.inputs, batch.index, batch.epoch))
        small = self.train(batch.inputs, batch.index, batch.epoch, round(scale * height))
        return dataclasses.replace(batch.with_inputs(small), given=batch.form.of_kinds((Shrunk.name,)))

    def train(self, inputs: Tensor, index: Tensor, epoch: int, side: int | None = None) -> Tensor:
        """Crop, mirror, normalise and erase `inputs`, (n, C, H, W) bytes; float32 and channels_last come out.

        What a crop shows from beyond the edge has the set's mean colour, to the nearest byte; what is erased has it
        exactly, which is 0 after normalisation.

        Args:
            side: shrinks images to so many pixels on the way, as bytes, which a CPU shrinks several times as fast as
                floats.
        """
        pixels = _nhwc(inputs)
        if self._reach or self.flip:
            down, right, mirrored = self._places(index, epoch, pixels.device)
            pixels = self._cropped(pixels, down, right) if self._reach else pixels
            pixels = pixels if side is None else _shrunk(pixels, side)
            pixels = _mirrored(pixels, mirrored) if self.flip else pixels
        elif side is not None:
            pixels = _shrunk(pixels, side)
        pixels = self._normalise(pixels)
        if self.erase:
            pixels = self._erased(pixels, index, epoch)
        return pixels.permute(0, 3, 1, 2)

    def _cropped(self, pixels: Tensor, down: Tensor, right: Tensor) -> Tensor:
        """As large a part of every image, put in a frame of the mean colour, as the image itself."""
        number, height, width, channels = pixels.shape
        reach = self._reach
        tall, wide = height + 2 * reach, width + 2 * reach
        framed = self._frame(tall, wide).expand(number, -1, -1, -1).clone()
        framed[:, reach : reach + height, reach : reach + width] = pixels
        # A crop's lines are slices of that: copied as such, and not pixel by pixel, which takes ten times as long.
        corner = torch.arange(number, device=pixels.device) * (tall * wide) + down * wide + right
        starts = corner.unsqueeze(1) + torch.arange(0, height * wide, wide, device=pixels.device)
        slices = framed.view(-1).as_strided((number * tall * wide - width + 1, width * channels), (channels, 1))
        return slices.index_select(0, starts.view(-1)).view(pixels.shape)

    def _frame(self, height: int, width: int) -> Tensor:
        """As many pixels of the mean colour, or what comes next to it in bytes."""
        if self._framed is None or self._framed.shape[:2] != (height, width):
            self._framed = self.mean.repeat(height, width, 1)
        return self._framed

    @property
    def _reach(self) -> int:
        """How many pixels a crop shifts an image at most."""
        return round(self.pad * self.strength)

    def _places(self, index: Tensor, epoch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """How far down and right in its frame each crop begins, and 1 where it is of the mirrored image."""
        if self._examples > DRAWN_AT_ONCE:
            places = self._draw(index, epoch)
        else:
            key = self.seed, epoch, self._reach, self.flip, index.device
            if self._drawn is None or self._drawn[0] != key:
                self._drawn = key, self._draw(torch.arange(self._examples, device=index.device), epoch)
            places = self._drawn[1].index_select(1, index)
        down, right, mirrored = places.to(device, non_blocking=True)
        return down, right, mirrored

    def _draw(self, index: Tensor, epoch: int) -> Tensor:
        """The same, drawn where the index lives, so that the numbers are the same on every device."""
        draws = rng.uniform(self.seed, epoch, index, 3).T
        down, right = (draws[:2] * (2 * self._reach + 1)).long()
        mirrored = (draws[2] < 0.5) if self.flip else torch.zeros_like(index, dtype=torch.bool)
        return torch.stack([down, right, mirrored])

    def _erased(self, pixels: Tensor, index: Tensor, epoch: int) -> Tensor:
        """With a rectangle of 2 to 33 % of the area gone, from as many images as asked for (Zhong et al. 2020)."""
        draws = rng.uniform(self.seed, epoch, index, 5, purpose="erase").to(pixels.device, non_blocking=True)
        area, aspect = 0.02 + 0.31 * draws[:, 1:2], (0.3 * (3.3 / 0.3) ** draws[:, 2:3])
        tall, wide = (area * aspect).sqrt().clamp(max=1.0), (area / aspect).sqrt().clamp(max=1.0)
        top, left = draws[:, 3:4] * (1.0 - tall), draws[:, 4:5] * (1.0 - wide)
        rows, cols = ((torch.arange(side, device=pixels.device) + 0.5) / side for side in pixels.shape[1:3])
        inside_rows = (rows >= top) & (rows < top + tall) & (draws[:, :1] < self.erase)
        inside_cols = (cols >= left) & (cols < left + wide)
        return pixels.masked_fill((inside_rows.unsqueeze(2) & inside_cols.unsqueeze(1)).unsqueeze(3), 0.0)

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Normalise only."""
        return self._normalise(_nhwc(inputs)).permute(0, 3, 1, 2)

    def bytes_of(self, inputs: Tensor) -> Tensor:
        """The way back: what the network sees as pictures again, for people to look at."""
        scale, shift = (x.to(inputs.device).view(-1, 1, 1) for x in (self.scale, self.shift))
        return ((inputs.float() - shift) / scale).round().clamp(0, 255).to(torch.uint8)

    def _normalise(self, pixels: Tensor) -> Tensor:
        # By whole lines of width * C: five times as fast as broadcasting over the three channels.
        width = pixels.shape[2]
        if self._line is None or self._line[0] != width:
            self._line = width, self.shift.repeat(width), self.scale.repeat(width)
        _, shift, scale = self._line
        return torch.addcmul(shift, pixels.flatten(2).float(), scale).view(pixels.shape)


def _shrunk(pixels: Tensor, side: int) -> Tensor:
    return _nhwc(resized(pixels.permute(0, 3, 1, 2), side, side))


def _mirrored(pixels: Tensor, which: Tensor) -> Tensor:
    """These images, and of some of them, which have a 1, the mirror image instead."""
    flipped = pixels.permute(0, 3, 1, 2).flip(3).permute(0, 2, 3, 1)  # a layout for which torch has a fast way
    number = len(pixels)
    return torch.cat([pixels, flipped]).index_select(0, torch.arange(number, device=pixels.device) + number * which)


def _nhwc(inputs: Tensor) -> Tensor:
    """The batch as it lies in channels_last memory: a view, unless somebody changed the layout on the way."""
    return inputs.permute(0, 2, 3, 1).contiguous()

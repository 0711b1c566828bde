"""Random crop, mirror, erasing and normalisation: a whole batch at a time, on the device it trains on."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leantrain import rng
from leantrain.shrinking import Shrunk, line_filter, suits_products

if TYPE_CHECKING:
    from leantrain.batch import Batch
    from leantrain.data import ImageSet

DRAWN_AT_ONCE = 1 << 20
"""Sets of up to so many examples have the crops of an epoch drawn before its first batch: some megabytes, and two
operations a step instead of thirty."""


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
        self._line: tuple[int, Tensor, Tensor] | None = None  # both for a whole line of pixels, and its width
        self._examples = len(images.train)
        self._drawn: tuple[object, tuple[Tensor, Tensor]] | None = None  # of every example, and for which epoch

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device, augmented there; and shrunk at once, where its form and the device suit that."""
        batch = batch.to(self.device)
        scale = batch.form.value(Shrunk.name)
        height, width = batch.inputs.shape[-2:]
        is_whole = scale == batch.given.value(Shrunk.name)  # or decoded at its size already
        if is_whole or self.erase or height != width or not suits_products(batch.inputs):
            return batch.with_inputs(self.train(batch.inputs, batch.index, batch.epoch))
        small = self._placed_small(_nhwc(batch.inputs), batch.index, batch.epoch, round(scale * height))
        shown = batch.form.of_kinds((Shrunk.name,))
        return dataclasses.replace(batch.with_inputs(small.permute(0, 3, 1, 2)), given=shown)

    def train(self, inputs: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Crop, mirror, normalise and erase `inputs`, (n, C, H, W) bytes; float32 and channels_last come out.

        What a crop shows from beyond the edge, and what is erased, has the set's mean colour, which is exactly 0
        after normalisation.
        """
        pixels = self._placed(_nhwc(inputs), index, epoch)
        if self.erase:
            pixels = self._erased(pixels, index, epoch)
        return pixels.permute(0, 3, 1, 2)

    def _placed(self, pixels: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Cropped, mirrored and normalised."""
        pad = self._reach
        if not (pad or self.flip):
            return self._normalise(pixels)
        offset, mirrored = self._places(index, epoch, pixels.device)
        if not pad:
            return self._normalise(torch.where(mirrored.view(-1, 1, 1, 1), pixels.flip(2), pixels))

        number, height, width, channels = pixels.shape
        rows = torch.arange(height, device=pixels.device) + offset[:, :1]
        cols = torch.arange(width, device=pixels.device) + offset[:, 1:]
        cols = torch.where(mirrored.unsqueeze(1), cols.flip(1), cols)
        inside_rows = ((rows >= 0) & (rows < height)).float()
        inside_cols = ((cols >= 0) & (cols < width)).float().repeat_interleave(channels, dim=1)
        rows, cols = rows.clamp_(0, height - 1), cols.clamp_(0, width - 1)
        # One gather of whole pixels from a flat view: three times as fast as indexing with three tensors.
        first = torch.arange(number, device=pixels.device).unsqueeze(1) * height
        place = ((first + rows) * width).unsqueeze(2) + cols.unsqueeze(1)
        moved = pixels.view(-1, channels).index_select(0, place.view(-1)).view(number, height, width, channels)
        # Bytes cannot hold the mean exactly, so the outside is set to 0 afterwards.
        lines = self._normalise(moved).view(number, height, width * channels)
        lines.mul_(inside_rows.unsqueeze(2)).mul_(inside_cols.unsqueeze(1))
        return lines.view(number, height, width, channels)

    def _placed_small(self, pixels: Tensor, index: Tensor, epoch: int, side: int) -> Tensor:
        """The same and shrunk to `side` pixels, as two matrix products per image.

        A crop that is shrunk is the whole image times the filter, moved as far as the crop. Beyond the edge, which has
        the mean's 0, there is nothing to multiply.
        """
        number, height, width, channels = pixels.shape
        offset, mirrored = self._places(index, epoch, pixels.device)
        filters, count = _moved_filters(height, side, self._reach), 2 * self._reach + 1
        place = offset + self._reach
        rows = filters.index_select(0, place[:, 0])
        cols = filters.index_select(0, place[:, 1] + count * mirrored)
        lines = (rows @ self._normalise(pixels).flatten(2)).view(number, side, width, channels)
        planes = lines.transpose(2, 3).reshape(number, side * channels, width) @ cols.transpose(1, 2)
        return planes.view(number, side, channels, side).transpose(2, 3).contiguous()

    @property
    def _reach(self) -> int:
        """How many pixels a crop shifts an image at most."""
        return round(self.pad * self.strength)

    def _places(self, index: Tensor, epoch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """By how many rows and columns each image is shifted, and which are mirrored."""
        if self._examples > DRAWN_AT_ONCE:
            offset, mirrored = self._draw(index, epoch)
        else:
            key = self.seed, epoch, self._reach, self.flip, index.device
            if self._drawn is None or self._drawn[0] != key:
                self._drawn = key, self._draw(torch.arange(self._examples, device=index.device), epoch)
            offset, mirrored = (drawn.index_select(0, index) for drawn in self._drawn[1])
        return offset.to(device, non_blocking=True), mirrored.to(device, non_blocking=True)

    def _draw(self, index: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """The same, drawn where the index lives, so that the numbers are the same on every device."""
        draws = rng.uniform(self.seed, epoch, index, 3)
        mirrored = (draws[:, 2] < 0.5) if self.flip else torch.zeros_like(draws[:, 2], dtype=torch.bool)
        return (draws[:, :2] * (2 * self._reach + 1)).long() - self._reach, mirrored

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


@functools.cache
def _moved_filters(size: int, smaller: int, reach: int) -> Tensor:
    """The matrices that shrink a line of `size` pixels after a shift by -reach … reach, then the same mirrored."""
    shrunk = line_filter(size, smaller)
    moved = shrunk.new_zeros(2 * reach + 1, smaller, size)
    for place, shift in enumerate(range(-reach, reach + 1)):
        first, last = max(0, shift), min(size, size + shift)
        moved[place, :, first:last] = shrunk[:, first - shift : last - shift]
    return torch.cat([moved, moved.flip(1)])


def _nhwc(inputs: Tensor) -> Tensor:
    """The batch as it lies in channels_last memory: a view, unless somebody changed the layout on the way."""
    return inputs.permute(0, 2, 3, 1).contiguous()

"""Random crop, mirror, erasing and normalisation: a whole batch at a time, on the device it trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leantrain import rng

if TYPE_CHECKING:
    from leantrain.batch import Batch
    from leantrain.data import ImageSet


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

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device, augmented there."""
        batch = batch.to(self.device)
        return batch.with_inputs(self.train(batch.inputs, batch.index, batch.epoch))

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
        pad = round(self.pad * self.strength)
        if not (pad or self.flip):
            return self._normalise(pixels)
        # Drawn where the index lives and moved afterwards: the numbers are the same on every device.
        draws = rng.uniform(self.seed, epoch, index, 3).to(pixels.device, non_blocking=True)
        mirrored = (draws[:, 2] < 0.5) if self.flip else torch.zeros_like(draws[:, 2], dtype=torch.bool)
        if not pad:
            return self._normalise(torch.where(mirrored.view(-1, 1, 1, 1), pixels.flip(2), pixels))

        number, height, width, channels = pixels.shape
        offset = (draws[:, :2] * (2 * pad + 1)).long() - pad
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


def _nhwc(inputs: Tensor) -> Tensor:
    """The batch as it lies in channels_last memory: a view, unless somebody changed the layout on the way."""
    return inputs.permute(0, 2, 3, 1).contiguous()

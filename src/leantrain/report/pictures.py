"""Pictures of a page: sheets of small ones, so that a page holds a few files and not hundreds."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from leantrain.data import ImageSet
from leantrain.mixing import DRAWS, Mixer
from leantrain.rng import generator, uniform

TILE = 64  # the largest side of a picture in the sheet of examples
COMPOSITE_SIDE = 128
COMPOSITES = 12
HEAVY = 700_000  # bytes above which a sheet is no longer lossless


@dataclass(frozen=True)
class Sheet:
    """Pictures in rows of equal squares, as one file.

    Attributes:
        uri: the file itself, as a data URI.
        side: of a square, in pixels.
    """

    uri: str
    side: int
    columns: int
    rows: int


def sheet(pixels: Tensor, side: int) -> Sheet:
    """Lay (n, C, H, W) bytes out on a sheet, in order, at most `side` pixels each."""
    small = shrink(pixels, side)
    count, channels, side = small.shape[0], small.shape[1], small.shape[2]
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    full = torch.zeros(rows * columns, channels, side, side, dtype=torch.uint8)
    full[:count] = small
    grid = full.view(rows, columns, channels, side, side).permute(0, 3, 1, 4, 2)
    array = grid.reshape(rows * side, columns * side, channels).numpy()
    return Sheet(_uri(array), side, columns, rows)


def shrink(pixels: Tensor, side: int) -> Tensor:
    """Pictures of at most that side; smaller ones stay as they are."""
    if pixels.shape[-1] <= side:
        return pixels
    return F.interpolate(pixels.float(), (side, side), mode="area").round().to(torch.uint8)


def _uri(array: np.ndarray[Any, Any]) -> str:
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True)
    kind = "png"
    if content.tell() > HEAVY:
        content, kind = io.BytesIO(), "jpeg"
        image.save(content, format="JPEG", quality=88, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"


def gallery(
    images: ImageSet, mixer: Mixer, constituents: int, index: Tensor, losses: Tensor, seed: int
) -> dict[str, Any] | None:
    """Composites as the run's own mixer makes them, of newly drawn pairs; None where there are too few examples.

    Args:
        index: the examples to take, in the training set.
        losses: what was last recorded of each.
    """
    count = min(COMPOSITES, len(index) // constituents)
    if not count:
        return None
    order = torch.randperm(len(index), generator=generator(seed, "report", "gallery"))
    groups = order[: count * constituents].view(constituents, count)
    pixels, _ = images.train.batch(index[groups.flatten()], -1)
    draws = uniform(seed, 0, index[groups[0]], constituents * DRAWS, "report")
    mixed = mixer.mix(pixels.float(), constituents, losses[groups], draws)
    shown = shrink(mixed.inputs.round().clamp(0, 255).to(torch.uint8), COMPOSITE_SIDE)
    owner = mixed.owner
    factor = max(1, round(COMPOSITE_SIDE / shown.shape[-1]))
    shown = _larger(shown, factor)
    if owner is not None:
        places = F.interpolate(owner.unsqueeze(1).float(), shown.shape[-2:], mode="nearest").squeeze(1)
        shown = outlined(shown, places)
    items = [
        [{"index": int(index[groups[j, b]]), "share": round(float(mixed.shares[j, b]), 4)} for j in range(constituents)]
        for b in range(count)
    ]
    return {"sheet": vars(sheet(shown, shown.shape[-1])), "items": items, "mixer": type(mixer).__name__}


def _larger(pixels: Tensor, factor: int) -> Tensor:
    return pixels.repeat_interleave(factor, -1).repeat_interleave(factor, -2)


def outlined(pixels: Tensor, owner: Tensor) -> Tensor:
    """The border between constituents, dashed in black and white so that it shows on any picture."""
    edge = torch.zeros_like(owner, dtype=torch.bool)
    across, down = owner[:, :, 1:] != owner[:, :, :-1], owner[:, 1:] != owner[:, :-1]
    edge[:, :, 1:] |= across
    edge[:, :, :-1] |= across
    edge[:, 1:] |= down
    edge[:, :-1] |= down
    height, width = owner.shape[-2:]
    dashes = (torch.arange(height).view(-1, 1) + torch.arange(width)) // 5 % 2 * 255
    return torch.where(edge.unsqueeze(1), dashes.to(torch.uint8), pixels)

"""From an encoded picture to a square of RGB bytes, decoding no more of it than the square needs."""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SMALL = 96
"""Up to this side, images are shown whole and cropped on the device; above, crops are taken while decoding."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of the full picture."""
Window = Callable[[int, int], Box]
"""Which box of a picture of (height, width) to show."""

# What Pillow and simplejpeg raise for damaged files.
BAD = (OSError, ValueError, SyntaxError, EOFError, IndexError, MemoryError, zlib.error, struct.error)
ENDS = 32
"""How many bytes of either end of a file `looks_whole` asks for."""


def whole(height: int, width: int) -> Box:
    """The largest square in the middle."""
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def middle(height: int, width: int) -> Box:
    """The middle square of 7/8 of the short side: resize to 256, cut 224, in one step."""
    side = min(height, width) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_window(area: float, shape: float, across: float, down: float) -> Window:
    """A box of 25–100 % of the area and of an aspect from 3:4 to 4:3, from four numbers in [0, 1).

    Boxes too wide or high for the picture are cut to it instead of drawn again, so that four numbers always suffice.
    """

    def window(height: int, width: int) -> Box:
        size = (0.25 + 0.75 * area) * height * width
        aspect = math.exp((2 * shape - 1) * math.log(4 / 3))
        wide, high = min(width, math.sqrt(size * aspect)), min(height, math.sqrt(size / aspect))
        left, top = across * (width - wide), down * (height - high)
        return left, top, left + wide, top + high

    return window


def picture(data: bytes, window: Window, size: int) -> Pixels:
    """The window's part of an encoded picture, `size` pixels square. EXIF rotation is ignored, as in torchvision.

    Raises:
        One of `BAD`: when the data cannot be decoded.
    """
    if _is_jpeg(data):
        import simplejpeg

        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
            box = window(height, width)
            # The codec halves, quarters … a picture for next to nothing, as long as the box keeps its pixels.
            scale = min(1.0, size / min(box[2] - box[0], box[3] - box[1]))
            least = {"min_height": max(1, int(height * scale)), "min_width": max(1, int(width * scale))}
            return _resized(simplejpeg.decode_jpeg(data, "RGB", **least), box, (height, width), size)
        except ValueError:
            pass  # CMYK, or damaged: Pillow reads the one, and has clearer words for the other
    pixels = _with_pillow(data)
    return _resized(pixels, window(*pixels.shape[:2]), (pixels.shape[0], pixels.shape[1]), size)


def verify(data: bytes) -> None:
    """Decode a picture to the end and throw it away; raises one of `BAD` exactly when `picture` would."""
    picture(data, whole, 8)


def shape(data: bytes) -> tuple[int, int]:
    """Height and width, from the header alone.

    Raises:
        One of `BAD`: when it cannot be read.
    """
    with _opened(data) as image:
        return image.height, image.width


def ends(content: bytes) -> tuple[bytes, bytes]:
    """The first and the last bytes of a picture, for `looks_whole`."""
    return content[:ENDS], content[-ENDS:]


def looks_whole(head: bytes, tail: bytes) -> bool:
    """Whether the two ends of a file are those of a JPEG or PNG picture; others, and damaged ones, are to be decoded.

    Says nothing about what lies between them, which would take a hundred times as long.
    """
    if _is_jpeg(head):
        return tail.endswith(b"\xff\xd9")
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        height, width = struct.unpack(">II", head[16:24])
        return tail[-8:-4] == b"IEND" and height * width < 2**24
    return False


def _is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


@contextlib.contextmanager
def _opened(data: bytes) -> Iterator[Any]:
    """A picture as Pillow opens it, its header read and no more."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            yield image
    except Image.DecompressionBombError as error:
        raise ValueError("it has too many pixels") from error


def _with_pillow(data: bytes) -> Pixels:
    with _opened(data) as image:
        if image.mode.startswith("I;16"):  # 16-bit grey: Pillow would clip it to 8 bits, not scale it
            grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        if "transparency" in image.info:  # Pillow warns when a palette's transparency is dropped in one step
            return np.array(image.convert("RGBA").convert("RGB"))
        return np.array(image.convert("RGB"))


def _resized(pixels: Pixels, box: Box, full: tuple[int, int], size: int) -> Pixels:
    """Cut `box`, given in pixels of the full picture, from a picture decoded at perhaps a smaller scale."""
    height, width = pixels.shape[:2]
    if (height, width) == (size, size) == full and box == (0, 0, size, size):
        return pixels
    from PIL import Image

    down, across = height / full[0], width / full[1]
    scaled = (box[0] * across, box[1] * down, min(box[2] * across, width), min(box[3] * down, height))
    resample = Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(pixels).resize((size, size), resample, box=scaled, reducing_gap=3.0))

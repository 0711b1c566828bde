"""Pictures that look the same in every epoch, kept once they were decoded."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

MOST = 2**30
"""Bytes of memory that one part of a set may take; one that needs more is decoded anew in every epoch."""


class KeptPictures:
    """Pictures by their positions, in memory that forked loader workers share. It is taken when first written to.

    Workers that are started otherwise get None in its place: memory of their own, each would fill with everything.
    """

    def __init__(self, number: int, side: int) -> None:
        # Not torch's shared memory, which may be a small file system of its own, as in containers.
        block = torch.frombuffer(mmap.mmap(-1, number * (side * side * 3 + 1)), dtype=torch.uint8)
        self._known, pixels = block[:number], block[number:]
        self._pixels = pixels.view(number, side, side, 3)

    @staticmethod
    def made_for(number: int, side: int) -> KeptPictures | None:
        """None where they would take too much memory, or there are none."""
        return KeptPictures(number, side) if 0 < number * (side * side * 3 + 1) <= MOST else None

    def missing(self, positions: Tensor) -> Tensor:
        """Those of these positions whose pictures are not here yet."""
        missing: Tensor = positions[self._known.index_select(0, positions) == 0]
        return missing

    def add(self, positions: Tensor, pictures: Tensor) -> None:
        """Keep these pictures; another worker may be adding the same."""
        self._pixels[positions] = pictures
        self._known[positions] = 1  # last, as others read what is known

    def get(self, positions: Tensor) -> Tensor:
        """Bytes (n, side, side, 3), of pictures that are here."""
        found: Tensor = self._pixels.index_select(0, positions)
        return found

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

"""Split: pools each constituent's region of a composite apart, so that the model answers once per constituent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leantrain.clock import Stopwatch
from leantrain.split.finding import choose, fitting, install, watch
from leantrain.split.regions import Regions, divided
from leantrain.split.squeeze import Squeeze, leaks
from leantrain.split.trial import Trial, checked, one_tensor

_LEAK_IMAGES = 4  # made-up ones; with two, the leak is mostly luck
_LARGE_LEAK = 0.5  # from here on an answer is as much about the other constituent as about its own


class Split:
    """Pools each constituent's region apart, inside the model's own forward.

    A composite shows constituent `owner[b, y, x]` at each pixel. Inside `regions` the last feature map is replaced by
    its regional means, one row per constituent, and everything after it runs once on those rows: the model's output
    has `constituents * B` rows, row `j * B + b` for constituent j of composite b. A vision transformer gets one copy of
    its class token per constituent and attention that stays within each; squeeze-and-excite squeezes by region.

    It works by hooks on the inner modules, so DDP, Fabric, autocast and `torch.compile` see an ordinary forward.
    Outside `regions` the model is exactly itself. Make it before the first forward of a compiled model.
    """

    layer: str
    """The module where it acts."""
    map_size: tuple[int, int]
    """Height and width of the last feature map, or of the patch grid, for inputs like `example`."""
    kind: str
    """`"pool"`, `"class-token"` or `"patch-tokens"` (a transformer that answers from the mean of its patches)."""
    leaks: str
    """What lets constituents see each other across the whole composite: `"squeeze-and-excite"`, `"attention"`, `""`."""
    error: float
    """How far an image alone in its composite was from the model's own output at construction, relative to it."""

    def __init__(self, model: nn.Module, example: Tensor, layer: str | None = None) -> None:
        """Find where to split and check it; the model, its mode, its statistics and all generators stay as they were.

        Args:
            example: An input batch; only its shape matters.
            layer: The module whose output is the last feature map, or which is the global average pool itself.
                Default: found by watching one forward.
        """
        inner = checked(model, example)
        self._regions = Regions()
        self._handles: list[RemovableHandle] = []
        with Trial(inner, example) as trial:
            one_tensor(trial)
            self._squeezes = Squeeze.find_all(trial)
            self._point, self.error = choose(trial, self._squeezes, layer)
        self._inner, self._example = inner, example[:1].detach()
        self._handles = install(self._point, self._squeezes, self._regions)
        self.layer, self.map_size, self.kind = self._point.layer, self._point.map_size, self._point.kind
        self.leaks = "" if self.kind != "pool" else leaks(inner, {one.module for one in self._squeezes})

    @contextlib.contextmanager
    def regions(self, owner: Tensor, constituents: int) -> Iterator[None]:
        """Let the forward inside be of composites: `owner` (B, H, W) says which of `constituents` each pixel shows."""
        with divided(self._point, self._regions, owner, constituents):
            yield

    def time_with(self, clock: Stopwatch) -> None:
        """Count the seconds of regional pooling, forward and uncompiled, as "split" on that clock."""
        self._regions.clock = clock

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def leak(self) -> float:
        """How far an answer moves when the other half is replaced, relative to how far that half's own answer moves.

        0 where constituents are kept apart, 1 where they are not at all; measured on made-up images with the weights
        that the model has now.
        """
        with Trial(self._inner, self._example, _LEAK_IMAGES) as trial:
            rows, (height, width) = len(trial.images), trial.images.shape[2:]
            right = torch.arange(width, device=trial.images.device) >= width // 2
            answers = []
            for images in (trial.images, torch.where(right, trial.images.roll(1, 0), trial.images)):
                with self.regions(right.to(torch.uint8).expand(rows, height, width), 2):
                    answers.append(trial.run(images))
            kept, own = (answers[1] - answers[0]).double().chunk(2)
            return float(kept.norm() / own.norm().clamp_min(1e-30))

    def warning(self) -> str | None:
        """What a user should know of this model before mixing; None where constituents are kept apart well enough."""
        if (leak := self.leak()) < _LARGE_LEAK:
            return None
        return (
            f"{type(self._inner).__name__} does not keep the images of a composite well apart: when one is replaced, "
            f"the answer for the other moves {leak:.2f} times as far as its own (0 is apart, 1 is not at all). Larger "
            "images, or a model whose cells see less of them, keep them better apart."
        )


def candidates(model: nn.Module, example: Tensor) -> list[str]:
    """The layers that fit as the last feature map, in the order in which they run; each of them is tried."""
    with Trial(checked(model, example), example) as trial:
        one_tensor(trial)
        return fitting(trial, watch(trial), Squeeze.find_all(trial))

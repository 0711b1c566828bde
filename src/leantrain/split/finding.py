"""Finding where to split a model: every place that could do is tried, and what does not fit is refused in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leantrain.errors import LeanError, nearest
from leantrain.split.attention import ClassToken, Masks, PatchTokens
from leantrain.split.layout import Layout, is_mean, layouts
from leantrain.split.pools import Pool, called_pools
from leantrain.split.regions import Point, Regions, divided
from leantrain.split.squeeze import Squeeze
from leantrain.split.trial import Trial

_LEAST_MAP = 4  # cells a side; fewer cannot hold two halves apart
_TRIES = 5  # how many layers, from the last backwards, are tried as the last feature map
_LISTED = 20  # how many are tried for the user to choose from, where none of these fits


def choose(trial: Trial, squeezes: list[Squeeze], layer: str | None) -> tuple[Point, float]:
    """The first point that passes the check, or a sentence that says why there is none."""
    seen, transformer = watch(trial), ClassToken.find(trial)
    if transformer is not None and layer in (None, transformer.layer):
        points: Iterator[Point] = iter([transformer])
    else:
        if layer is None:
            names = list(dict.fromkeys(one.name for one in reversed(seen)))[:_TRIES]
        else:
            _check_layer(trial.model, layer)
            names = [layer]
        pools = [point for one in reversed(seen) if one.name in names for point in one.points()]
        masks = Masks.find(trial, "avg")
        masked = () if masks is None else (PatchTokens(masks, pool) for pool in pools)
        points = itertools.chain(masked, pools, called_pools(trial) if layer is None else ())
    for point in points:
        error = error_at(trial, point, squeezes)
        if error is not None:
            h, w = point.map_size
            if min(h, w) < _LEAST_MAP:
                raise _too_small(trial.model, h, w)
            return point, error
    raise _refusal(trial, seen, layer, transformer, fitting(trial, seen, squeezes, _LISTED))


def fitting(trial: Trial, seen: list[Seen], squeezes: list[Squeeze], limit: int | None = None) -> list[str]:
    """The layers with a map at which it may split, in the order in which they run; of the last `limit` only."""
    names = _names(seen)[-limit:] if limit else _names(seen)
    points = {name: [point for one in seen if one.name == name for point in one.points()] for name in names}
    return [name for name in names if any(error_at(trial, point, squeezes) is not None for point in points[name])]


def error_at(trial: Trial, point: Point, squeezes: list[Squeeze]) -> float | None:
    """How exactly the split model answers for an image alone in its composite; None where the point does not fit.

    Fitting is: such an image gets the model's own output; two halves get two finite, different outputs; and where
    nothing should leak, one half's output does not depend on the other's pixels.
    """
    regions = Regions()
    rows, (height, width) = len(trial.images), trial.images.shape[2:]
    alone = torch.arange(rows, dtype=torch.uint8, device=trial.images.device).view(-1, 1, 1)
    cells = torch.arange(width, device=trial.images.device) * point.map_size[1] // width
    halves = (cells >= point.map_size[1] // 2).to(torch.uint8)
    handles = install(point, squeezes, regions)
    try:
        with divided(point, regions, alone.expand(-1, height, width), rows):
            full = trial.run(trial.images)
        plain, classes = trial.plain, trial.plain.shape[1]
        if full.shape != (rows * rows, classes) or not full.isfinite().all():
            return None
        own = full.unflatten(0, (rows, rows)).diagonal().T
        error, spread, scale = (t.abs().max().item() for t in (own - plain, plain[0] - plain[1], plain))
        tolerance = 1e-2 * spread + 30 * torch.finfo(plain.dtype).eps * scale
        if not error <= tolerance:
            return None
        with divided(point, regions, halves.expand(rows, height, width), 2):
            half = trial.run(trial.images)
        if half.shape != (2 * rows, classes) or not half.isfinite().all() or torch.equal(half[:rows], half[rows:]):
            return None
        if point.kind != "pool":
            with divided(point, regions, halves.expand(rows, height, width), 2):
                changed = trial.run(torch.where(halves.bool(), trial.images.flip(0), trial.images))
            if not (changed[:rows] - half[:rows]).abs().max() <= tolerance:
                return None
    except Exception:  # a foreign model may fail in any way on a map it does not expect
        return None
    finally:
        for handle in handles:
            handle.remove()
    return float(error / max(scale, 1e-30))


def install(point: Point, squeezes: list[Squeeze], regions: Regions) -> list[RemovableHandle]:
    return [*point.install(regions), *(handle for one in squeezes for handle in one.install(regions))]


@dataclass
class Seen:
    """A module that gave a map or a grid of tokens, or took one and pooled it, in one forward."""

    name: str
    module: nn.Module
    tensor: Tensor  # the map
    is_pool: bool
    layouts: list[tuple[Layout, tuple[int, int]]]
    call: int
    calls: Counter[str] = field(repr=False)

    def points(self) -> Iterator[Pool]:
        for layout, size in self.layouts:
            for way in ("pool",) if self.is_pool else ("cell", "constant"):
                yield Pool(self.name, self.module, layout, size, way, self.call, self.calls[self.name])


def watch(trial: Trial) -> list[Seen]:
    """One forward: everything that gave a map or pooled one, in the order in which it finished."""
    seen: list[Seen] = []
    calls: Counter[str] = Counter()
    rows, _, height, width = trial.images.shape
    prefixes = {int(getattr(module, "num_prefix_tokens", 0) or 0) for module in trial.model.modules()}

    def after(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        call, calls[name] = calls[name], calls[name] + 1
        if not isinstance(output, Tensor) or len(output) != rows:
            return
        for is_pool in (True, False):
            source = inputs[0] if is_pool and inputs else output
            if not isinstance(source, Tensor) or len(source) != rows:
                continue
            found = list(layouts(source, height, width, {0} if is_pool else prefixes))
            if is_pool:
                found = [(layout, size) for layout, size in found if is_mean(layout, source, output)]
            if found:
                if seen and seen[-1].tensor is source and seen[-1].is_pool == is_pool:
                    seen.pop()  # the same map, on its way out of the module around: that one's name is shorter
                seen.append(Seen(name, module, source, is_pool, found, call, calls))
                return

    handles = [
        module.register_forward_hook(lambda module, inputs, output, name=name: after(name, module, inputs, output))
        for name, module in trial.model.named_modules()
        if name
    ]
    try:
        trial.run(trial.images)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _check_layer(model: nn.Module, layer: str) -> None:
    known = [name for name, _ in model.named_modules() if name]
    if layer not in known:
        raise LeanError(
            f"{type(model).__name__} has no layer '{layer}'.{nearest(layer, known)} "
            "leantrain.split.candidates(model, example) lists those with a feature map."
        )


def _refusal(
    trial: Trial, seen: list[Seen], layer: str | None, transformer: ClassToken | None, fits: list[str]
) -> LeanError:
    name = type(trial.model).__name__
    maps = [size for one in seen for _, size in one.layouts]
    some = f"name the last feature map with split_layer=…, such as {', '.join(fits[-4:])}, or " if fits else ""
    if transformer is not None and layer in (None, transformer.layer):
        return LeanError(
            f"split propagation cannot keep constituents apart in the attention of {name}; "
            "build it with average pooling (global_pool='avg') or use split=false"
        )
    if layer is not None and not any(one.name == layer for one in seen):
        return LeanError(f"layer '{layer}' of {name} gives no map; {some}use split=false")
    if layer is not None:
        return LeanError(
            f"split propagation does not fit layer '{layer}' of {name}: what follows is more than an average over the "
            f"map; {some}use split=false"
        )
    if _pools_one_cell(trial) and maps and min(maps[-1]) < _LEAST_MAP:  # there was a map, and strides used it up
        return _too_small(trial.model, 1, 1)
    return LeanError(f"split propagation found no global average pool in {name}; {some}use split=false")


def _too_small(model: nn.Module, h: int, w: int) -> LeanError:
    return LeanError(
        f"the last feature map of {type(model).__name__} is {h}×{w}, too small to separate two images; "
        f"it must be {_LEAST_MAP}×{_LEAST_MAP} at least: use larger images, a model with less stride, or split=false"
    )


def _pools_one_cell(trial: Trial) -> bool:
    """Whether the last pool that ran had a single cell to pool: nothing found, because nothing is left."""
    cells: list[int] = []

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
            cells.append(inputs[0].shape[2] * inputs[0].shape[3])

    pools = [module for module in trial.model.modules() if "AvgPool" in type(module).__name__]
    handles = [module.register_forward_pre_hook(before) for module in pools]
    try:
        trial.run(trial.images)
    finally:
        for handle in handles:
            handle.remove()
    return bool(cells) and cells[-1] == 1


def _names(seen: list[Seen]) -> list[str]:
    """The layers with a map, each where it ran last."""
    return list(dict.fromkeys(one.name for one in reversed(seen) if not one.is_pool))[::-1]

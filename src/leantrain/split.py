"""Split: pools each constituent's region of a composite apart, so that the model answers once per constituent."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from leantrain.clock import Stopwatch
from leantrain.errors import LeanError, nearest

_LEAST_MAP = 4  # cells a side; fewer cannot hold two halves apart
_TRIES = 5  # how many layers, from the last backwards, are tried as the last feature map
_LISTED = 20  # how many are tried for the user to choose from, where none of these fits
_LEAK_IMAGES = 4  # made-up ones; with two, the leak is mostly luck
_LARGE_LEAK = 0.5  # from here on an answer is as much about the other constituent as about its own
_SEES_ALL = {  # what mixes the whole map, by words in class names
    "squeeze-and-excite": ("squeezeexc", "semodule", "eca", "gatherexcite", "globalcontext", "cbam", "globalresponse"),
    "attention": ("attention",),
}


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
        inner = _checked(model, example)
        self._regions = _Regions()
        self._handles: list[RemovableHandle] = []
        with _Trial(inner, example) as trial:
            _one_tensor(trial)
            seen = _watch(trial)
            self._squeezes = _Squeeze.find_all(trial)
            self._point, self.error = self._choose(trial, seen, layer)
        self._inner, self._example = inner, example[:1].detach()
        self._handles = _install(self._point, self._squeezes, self._regions)
        self.layer, self.map_size, self.kind = self._point.layer, self._point.map_size, self._point.kind
        self.leaks = "" if self.kind != "pool" else _leaks(inner, {one.module for one in self._squeezes})

    @contextlib.contextmanager
    def regions(self, owner: Tensor, constituents: int) -> Iterator[None]:
        """Let the forward inside be of composites: `owner` (B, H, W) says which of `constituents` each pixel shows."""
        with _divided(self._point, self._regions, owner, constituents):
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
        with _Trial(self._inner, self._example, _LEAK_IMAGES) as trial:
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

    def _choose(self, trial: _Trial, seen: list[_Seen], layer: str | None) -> tuple[_Point, float]:
        """The first point that passes the check, or a sentence that says why there is none."""
        transformer = _ClassToken.find(trial)
        if transformer is not None and layer in (None, transformer.layer):
            points: Iterator[_Point] = iter([transformer])
        else:
            if layer is None:
                names = list(dict.fromkeys(one.name for one in reversed(seen)))[:_TRIES]
            else:
                _check_layer(trial.model, layer)
                names = [layer]
            pools = [point for one in reversed(seen) if one.name in names for point in one.points()]
            masks = _Masks.find(trial, "avg")
            masked = () if masks is None else (_PatchTokens(masks, pool) for pool in pools)
            points = itertools.chain(masked, pools, _called_pools(trial) if layer is None else ())
        for point in points:
            error = _error_at(trial, point, self._squeezes)
            if error is not None:
                h, w = point.map_size
                if min(h, w) < _LEAST_MAP:
                    raise _too_small(trial.model, h, w)
                return point, error
        raise _refusal(trial, seen, layer, transformer, _fitting(trial, seen, self._squeezes, _LISTED))


def candidates(model: nn.Module, example: Tensor) -> list[str]:
    """The layers that fit as the last feature map, in the order in which they run; each of them is tried."""
    with _Trial(_checked(model, example), example) as trial:
        _one_tensor(trial)
        return _fitting(trial, _watch(trial), _Squeeze.find_all(trial))


# --- inside the forward ----------------------------------------------------------------------------------------------


class _Regions:
    """What is in force during a forward; all hooks of a split share one."""

    def __init__(self) -> None:
        self.clock: Stopwatch | None = None
        self.clear()

    def clear(self) -> None:
        self.owner: Tensor | None = None
        self.constituents = 0
        self.mask: Tensor | None = None
        self.calls = 0
        self.acted = False


class _Point(Protocol):
    """Somewhere in a model where constituents can be told apart."""

    @property
    def layer(self) -> str: ...

    @property
    def map_size(self) -> tuple[int, int]: ...

    @property
    def kind(self) -> str: ...

    def install(self, regions: _Regions) -> list[RemovableHandle]: ...

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> None: ...

    def acting(self, regions: _Regions) -> contextlib.AbstractContextManager[Any]: ...


@contextlib.contextmanager
def _divided(point: _Point, regions: _Regions, owner: Tensor, constituents: int) -> Iterator[None]:
    """The forward inside is of composites, split at that point."""
    if owner.ndim != 3 or constituents < 1:
        raise LeanError(
            f"owner has shape {tuple(owner.shape)} and there are {constituents} constituents; "
            "give one owner per pixel (B, H, W) and at least 1 constituent"
        )
    point.prepare(regions, owner, constituents)
    try:
        with point.acting(regions):
            yield
        if not regions.acted:
            raise LeanError(
                f"split propagation was not reached: no forward inside regions() ran '{point.layer}' with "
                "its hook; a model that was compiled and run before needs torch.compiler.reset() first"
            )
    finally:
        regions.clear()


@dataclass(frozen=True)
class _Layout:
    """Where a tensor keeps its spatial grid: NCHW, NHWC, or NLC after some prefix tokens."""

    name: str
    prefix: int = 0

    def grid(self, x: Tensor, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the grid; a sequence of tokens has the image's aspect."""
        if self.name == "NCHW":
            return x.shape[2], x.shape[3]
        if self.name == "NHWC":
            return x.shape[1], x.shape[2]
        tokens = x.shape[1] - self.prefix
        rows = max(1, round((tokens * height / width) ** 0.5))
        return rows, tokens // rows

    def cells(self, x: Tensor) -> Tensor:
        """As (B, cells, C), without a copy."""
        if self.name == "NCHW":
            x = x.permute(0, 2, 3, 1)
        return x.flatten(1, 2) if x.ndim == 4 else x[:, self.prefix :]

    def like(self, means: Tensor, x: Tensor, constant: bool) -> Tensor:
        """Regional means (k·B, C) as maps of one cell, or as constant maps of x's size."""
        if self.name == "NLC":
            cells = x.shape[1] - self.prefix if constant else 1
            prefix = x[:, : self.prefix].repeat(len(means) // len(x), 1, 1)
            return torch.cat([prefix, means[:, None].expand(-1, cells, -1)], dim=1)
        if self.name == "NHWC":
            return means[:, None, None].expand(-1, *(x.shape[1:3] if constant else (1, 1)), -1)
        return means[:, :, None, None].expand(-1, -1, *(x.shape[2:] if constant else (1, 1)))


def _regional_means(x: Tensor, layout: _Layout, owner: Tensor, constituents: int) -> Tensor:
    """The mean of a map over each constituent's region, (k·B, C), constituent-major, accumulated in fp32 at least.

    A cell on a border counts for both sides, in proportion. A region that vanished gives zeros.
    """
    if len(owner) != len(x):
        raise LeanError(f"owner is for {len(owner)} composites, but the model got {len(x)}; give one map per composite")
    with torch.autocast(x.device.type, enabled=False):
        precise = torch.promote_types(x.dtype, torch.float32)
        share = _shares(owner, constituents, layout.grid(x, *owner.shape[1:]), precise).flatten(2)
        weight = share / share.sum(2, keepdim=True).clamp_min(1e-12)
        means = torch.bmm(weight, layout.cells(x).to(precise))
    return means.transpose(0, 1).flatten(0, 1).to(x.dtype)


def _shares(owner: Tensor, constituents: int, grid: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Which share of each cell belongs to each constituent: (B, k, h, w).

    By `interpolate`, as the model's calls of pooling functions are counted (`_PoolCalls`) and this is none of them.
    """
    each = torch.arange(constituents, device=owner.device, dtype=owner.dtype).view(1, -1, 1, 1)
    return F.interpolate((owner[:, None] == each).to(dtype), grid, mode="area")


@dataclass
class _Pool:
    """A global average pool, or the last feature map before one that is no module."""

    layer: str
    module: nn.Module
    layout: _Layout
    map_size: tuple[int, int]
    way: str  # "pool": replace its output; "cell", "constant": replace the map by maps of one cell, by constant maps
    call: int = 0
    calls: int = 1  # a module may run several times; only one of them is the last
    kind = "pool"

    def install(self, regions: _Regions) -> list[RemovableHandle]:
        call = self.call if self.calls > 1 else None
        return [self.module.register_forward_hook(_PoolHook(regions, self.layout, self.way, call))]

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> None:
        regions.owner, regions.constituents = owner, constituents

    def acting(self, regions: _Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def _timed_means(source: Tensor, layout: _Layout, regions: _Regions) -> Tensor:
    assert regions.owner is not None
    if regions.clock is None or torch.compiler.is_compiling():
        return _regional_means(source, layout, regions.owner, regions.constituents)
    with regions.clock.measure("split", source.device):
        return _regional_means(source, layout, regions.owner, regions.constituents)


class _PoolHook:
    """A forward hook; a class of its own, so that a model that carries it can be copied and pickled."""

    def __init__(self, regions: _Regions, layout: _Layout, way: str, call: int | None) -> None:
        self.regions, self.layout, self.way, self.call = regions, layout, way, call

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        regions = self.regions
        if regions.owner is None:
            return None
        if self.call is not None:
            regions.calls += 1
            if regions.calls != self.call + 1:
                return None
        regions.acted = True
        source = inputs[0] if self.way == "pool" else output
        means = _timed_means(source, self.layout, regions)
        if self.way == "pool":
            return means.reshape(-1, *output.shape[1:]).to(output.dtype)
        return self.layout.like(means, output, constant=self.way == "constant")


# --- pools that are functions ---------------------------------------------------------------------------------------

_POOLS = (F.adaptive_avg_pool2d, F.avg_pool2d, torch.mean, torch.Tensor.mean)


class _PoolCalls(TorchFunctionMode):
    """Shows every call of a pooling function inside to `found`, which may give another result for it."""

    def __init__(self, found: Callable[[int, str, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.found = found
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _POOLS:
            return output
        source = args[0] if args else (kwargs or {})["input"]
        self.calls += 1
        return self.found(self.calls, func.__name__, source, output)


@dataclass
class _CalledPool:
    """A global average pool that is a function in a model's forward, such as `F.avg_pool2d(F.relu(x), 4)`."""

    layer: str
    layout: _Layout
    map_size: tuple[int, int]
    call: int  # which of the forward's calls of pooling functions it is
    kind = "pool"

    def install(self, regions: _Regions) -> list[RemovableHandle]:
        return []

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> None:
        regions.owner, regions.constituents = owner, constituents

    def acting(self, regions: _Regions) -> contextlib.AbstractContextManager[Any]:
        def pool(call: int, name: str, source: Tensor, output: Tensor) -> Tensor:
            if call != self.call:
                return output
            regions.acted = True
            means = _timed_means(source, self.layout, regions)
            return means.reshape(-1, *output.shape[1:]).to(output.dtype)

        return _PoolCalls(pool)


def _called_pools(trial: _Trial) -> Iterator[_CalledPool]:
    """The functions that pool a whole map in one forward, the last one first.

    None where a forward in train mode calls other ones, as they are told by their number.
    """
    points: dict[bool, list[_CalledPool]] = {False: [], True: []}
    rows, _, height, width = trial.images.shape

    def found(call: int, name: str, source: Tensor, output: Tensor) -> Tensor:
        if len(source) == rows:
            for layout, size in _layouts(source, height, width, {0}):
                if _is_mean(layout, source, output):
                    points[trial.model.training].append(_CalledPool(f"{name}()", layout, size, call))
        return output

    for training in (True, False):
        trial.model.train(training)
        with _PoolCalls(found):
            trial.run(trial.images)
    if points[False] == points[True]:
        yield from reversed(points[False])


# --- squeeze-and-excite ----------------------------------------------------------------------------------------------


@dataclass
class _Squeeze:
    """A layer that gives `x * gate(mean of x)`: it squeezes each region by itself, and gates each cell by its owner's.

    Its mean need not be a module, so the layer is taken at the first inner module that is given the mean and at the
    last one, which gives the gate.
    """

    module: nn.Module
    first: nn.Module
    last: nn.Module

    @classmethod
    def find_all(cls, trial: _Trial) -> list[_Squeeze]:
        """Those squeeze-and-excites, by name, that compute just that in one forward."""
        found = [_Excitement(module) for module in trial.model.modules() if _sees_all(module) == "squeeze-and-excite"]
        handles = [handle for one in found for handle in one.watch()]
        try:
            trial.run(trial.images)
        finally:
            for handle in handles:
                handle.remove()
        return [cls(one.module, one.first, one.last) for one in found if one.first is not None and one.last is not None]

    def install(self, regions: _Regions) -> list[RemovableHandle]:
        hooks = _SqueezeHooks(regions)
        return [
            self.module.register_forward_pre_hook(hooks.enter),
            self.first.register_forward_pre_hook(hooks.squeeze),
            self.last.register_forward_hook(hooks.excite),
        ]


class _Excitement:
    """Watches one squeeze-and-excite: what inside was given the mean of its map, and what gave the gate."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.first: nn.Module | None = None
        self.last: nn.Module | None = None
        self._mean: Tensor | None = None
        self._gate: Tensor | None = None

    def watch(self) -> list[RemovableHandle]:
        return [
            self.module.register_forward_pre_hook(self._enter),
            *(child.register_forward_hook(self._inside) for child in self.module.children()),
            self.module.register_forward_hook(self._leave),
        ]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0]
        self._mean = x.mean((2, 3), keepdim=True) if isinstance(x, Tensor) and x.ndim == 4 else None

    def _inside(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._mean is None or not isinstance(output, Tensor):
            return
        if self.first is None and inputs[0].shape == self._mean.shape and torch.allclose(inputs[0], self._mean):
            self.first = module
        if self.first is not None and output.shape == self._mean.shape:
            self.last, self._gate = module, output

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._gate is None or not torch.allclose(output, inputs[0] * self._gate, rtol=1e-4):
            self.first = None  # more than a gate: it is left alone


class _SqueezeHooks:
    """The mean becomes one row per region, and the gates of the rows become one map."""

    def __init__(self, regions: _Regions) -> None:
        self.regions = regions
        self.map: Tensor | None = None

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.map = inputs[0] if self.regions.owner is not None else None

    def squeeze(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        owner = self.regions.owner
        if self.map is None or owner is None:
            return None
        means = _regional_means(self.map, _Layout("NCHW"), owner, self.regions.constituents)
        return means[:, :, None, None], *inputs[1:]

    def excite(self, module: nn.Module, inputs: tuple[Any, ...], gate: Tensor) -> Tensor | None:
        x, owner, k = self.map, self.regions.owner, self.regions.constituents
        if x is None or owner is None:
            return None
        self.map = None
        share = _shares(owner, k, (x.shape[2], x.shape[3]), gate.dtype).flatten(2)
        each = gate.flatten(1).view(k, len(x), -1).permute(1, 2, 0)  # (B, C, k)
        return torch.bmm(each, share).view_as(x)


def _install(point: _Point, squeezes: list[_Squeeze], regions: _Regions) -> list[RemovableHandle]:
    return [*point.install(regions), *(handle for one in squeezes for handle in one.install(regions))]


# --- transformers ----------------------------------------------------------------------------------------------------


@dataclass
class _Masks:
    """The blocks of a vision transformer: attention stays within a constituent, each has its copy of the prefix tokens.

    A patch belongs to whoever owns most of it, on a tie to the first.
    """

    layer: str
    model: nn.Module
    blocks: list[nn.Module]
    masked: list[nn.Module]  # what takes the attention mask
    heads: int  # for torch's own attention, which wants a mask per head; 0 for others
    prefix: int
    patch: tuple[int, int]
    map_size: tuple[int, int]

    @classmethod
    def find(cls, trial: _Trial, pool: str) -> _Masks | None:
        """timm's and torchvision's vision transformers that answer from a class "token" or from an "avg" of patches."""
        for name, module in trial.model.named_modules():
            found = _timm_parts(module, pool) or (_torchvision_parts(module) if pool == "token" else None)
            if found is not None:
                below, blocks, masked, heads, prefix = found
                size, tokens = trial.images.shape[2:], trial.rows_of(blocks[0]) - prefix
                layout = _Layout("NLC", prefix)
                map_size = layout.grid(torch.empty(1, tokens + prefix, 0), *size)
                if _leftover(module, map_size, tokens):
                    if pool == "avg":
                        return None
                    raise LeanError(
                        f"the {tokens} patch tokens of {type(trial.model).__name__} are no grid for images of "
                        f"{size[0]}×{size[1]} (patch dropout, or odd patches); turn that off or use split=false"
                    )
                patch = (size[0] // map_size[0], size[1] // map_size[1])
                return cls(_join(name, below), module, blocks, masked, heads, prefix, patch, map_size)
        return None

    def install(self, regions: _Regions, leave: _LeaveHook | _MergeHook) -> list[RemovableHandle]:
        mask = _MaskHook(regions)
        return [
            self.blocks[0].register_forward_pre_hook(_EnterHook(regions, self.prefix)),
            *(module.register_forward_pre_hook(mask, with_kwargs=True) for module in self.masked),
            self.blocks[-1].register_forward_hook(leave),
        ]

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> Tensor:
        """Make the attention mask, once for all blocks; gives the owner of each patch, (B, rows, columns)."""
        if getattr(self.model, "grad_checkpointing", False):
            raise LeanError(
                f"split propagation in {type(self.model).__name__} cannot recompute its attention masks in the "
                "backward pass; turn gradient checkpointing off or use split=false"
            )
        grid = (owner.shape[1] // self.patch[0], owner.shape[2] // self.patch[1])
        patches = _shares(owner, constituents, grid, torch.float32).argmax(1)
        copies = torch.arange(constituents, device=owner.device).repeat_interleave(self.prefix)
        tokens = torch.cat([copies.expand(len(owner), -1), patches.flatten(1)], dim=1)
        mask = (tokens[:, :, None] == tokens[:, None, :])[:, None]
        if self.heads:  # torch's own: (B·heads, N, N), true where attention is forbidden
            mask = ~mask.expand(-1, self.heads, -1, -1).flatten(0, 1)
        regions.owner, regions.constituents, regions.mask = owner, constituents, mask
        return patches


@dataclass
class _ClassToken:
    """A vision transformer whose class token answers: each constituent's copy answers for it."""

    masks: _Masks
    kind = "class-token"

    @classmethod
    def find(cls, trial: _Trial) -> _ClassToken | None:
        masks = _Masks.find(trial, "token")
        return None if masks is None else cls(masks)

    @property
    def layer(self) -> str:
        return self.masks.layer

    @property
    def map_size(self) -> tuple[int, int]:
        return self.masks.map_size

    def install(self, regions: _Regions) -> list[RemovableHandle]:
        return self.masks.install(regions, _LeaveHook(regions, self.masks.prefix))

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> None:
        self.masks.prepare(regions, owner, constituents)

    def acting(self, regions: _Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


@dataclass
class _PatchTokens:
    """A vision transformer that answers from the mean of its patches: of each constituent's own."""

    masks: _Masks
    pool: _Pool
    kind = "patch-tokens"

    @property
    def layer(self) -> str:
        return self.pool.layer

    @property
    def map_size(self) -> tuple[int, int]:
        return self.pool.map_size

    def install(self, regions: _Regions) -> list[RemovableHandle]:
        # In this order: the pool may act on the last block's output too, and must find its own prefix there.
        return [*self.masks.install(regions, _MergeHook(regions, self.masks.prefix)), *self.pool.install(regions)]

    def prepare(self, regions: _Regions, owner: Tensor, constituents: int) -> None:
        patches = self.masks.prepare(regions, owner, constituents)
        self.pool.prepare(regions, patches, constituents)

    def acting(self, regions: _Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class _EnterHook:
    """Before the first block: as many copies of the prefix tokens as constituents."""

    def __init__(self, regions: _Regions, prefix: int) -> None:
        self.regions, self.prefix = regions, prefix

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.regions.owner is None:
            return None
        prefix = inputs[0][:, : self.prefix].repeat(1, self.regions.constituents, 1)
        return torch.cat([prefix, inputs[0][:, self.prefix :]], dim=1), *inputs[1:]


class _MaskHook:
    """Before each attention: its mask."""

    def __init__(self, regions: _Regions) -> None:
        self.regions = regions

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.regions.mask is None:
            return None
        return inputs, {**options, "attn_mask": self.regions.mask}


class _LeaveHook:
    """After the last block: one row per constituent, with its own prefix tokens and no others."""

    def __init__(self, regions: _Regions, prefix: int) -> None:
        self.regions, self.prefix = regions, prefix

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        regions = self.regions
        if regions.owner is None:
            return None
        regions.acted = True
        rows, _, features = output.shape
        prefix = output[:, : regions.constituents * self.prefix]
        return prefix.reshape(rows, -1, self.prefix, features).transpose(0, 1).flatten(0, 1)


class _MergeHook:
    """After the last block: the first constituent's prefix tokens and the patches, as the model would have had."""

    def __init__(self, regions: _Regions, prefix: int) -> None:
        self.regions, self.prefix = regions, prefix

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self.regions.owner is None:
            return None
        patches = output[:, self.regions.constituents * self.prefix :]
        return torch.cat([output[:, : self.prefix], patches], dim=1)


_Parts = tuple[
    str, list[nn.Module], list[nn.Module], int, int
]  # name of the blocks, they, what is masked, heads, prefix


def _timm_parts(module: nn.Module, pool: str) -> _Parts | None:
    blocks = getattr(module, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or getattr(module, "global_pool", None) != pool:
        return None
    masked = [block if _takes_mask(block) else getattr(block, "attn", block) for block in blocks]
    prefix = int(getattr(module, "num_prefix_tokens", 1))
    if pool == "avg":  # one whose attention takes no mask is split at its pool alone, and leaks
        return ("blocks", list(blocks), masked, 0, prefix) if all(map(_takes_mask, masked)) else None
    if getattr(module, "cls_token", None) is None:
        return None
    if getattr(module, "dist_token", None) is not None:
        raise LeanError(
            f"{type(module).__name__} answers from a distillation token besides its class token, which split "
            "propagation does not support; use the model without distillation or split=false"
        )
    if not all(map(_takes_mask, masked)):
        raise LeanError(
            f"{type(module).__name__} answers from its class token, but its attention takes no attn_mask, which split "
            "propagation needs; build it with average pooling (global_pool='avg') or use split=false"
        )
    return "blocks", list(blocks), masked, 0, prefix


def _torchvision_parts(module: nn.Module) -> _Parts | None:
    layers = getattr(getattr(module, "encoder", None), "layers", None)
    if not isinstance(layers, nn.Sequential) or getattr(module, "class_token", None) is None:
        return None
    attention = [getattr(layer, "self_attention", None) for layer in layers]
    masked = [one for one in attention if isinstance(one, nn.MultiheadAttention) and one.batch_first]
    if len(masked) != len(layers):
        return None
    return "encoder.layers", list(layers), list(masked), masked[0].num_heads, 1


def _takes_mask(module: nn.Module) -> bool:
    return "attn_mask" in inspect.signature(module.forward).parameters


def _leftover(module: nn.Module, grid: tuple[int, int], tokens: int) -> bool:
    dropping = getattr(getattr(module, "patch_drop", None), "prob", 0)
    return bool(dropping) or grid[0] * grid[1] != tokens


# --- finding the point -----------------------------------------------------------------------------------------------


def _fitting(trial: _Trial, seen: list[_Seen], squeezes: list[_Squeeze], limit: int | None = None) -> list[str]:
    """The layers with a map at which it may split, in the order in which they run; of the last `limit` only."""
    names = _names(seen)[-limit:] if limit else _names(seen)
    points = {name: [point for one in seen if one.name == name for point in one.points()] for name in names}
    return [name for name in names if any(_error_at(trial, point, squeezes) is not None for point in points[name])]


def _error_at(trial: _Trial, point: _Point, squeezes: list[_Squeeze]) -> float | None:
    """How exactly the split model answers for an image alone in its composite; None where the point does not fit.

    Fitting is: such an image gets the model's own output; two halves get two finite, different outputs; and where
    nothing should leak, one half's output does not depend on the other's pixels.
    """
    regions = _Regions()
    rows, (height, width) = len(trial.images), trial.images.shape[2:]
    alone = torch.arange(rows, dtype=torch.uint8, device=trial.images.device).view(-1, 1, 1)
    cells = torch.arange(width, device=trial.images.device) * point.map_size[1] // width
    halves = (cells >= point.map_size[1] // 2).to(torch.uint8)
    handles = _install(point, squeezes, regions)
    try:
        with _divided(point, regions, alone.expand(-1, height, width), rows):
            full = trial.run(trial.images)
        plain, classes = trial.plain, trial.plain.shape[1]
        if full.shape != (rows * rows, classes) or not full.isfinite().all():
            return None
        own = full.unflatten(0, (rows, rows)).diagonal().T
        error, spread, scale = (t.abs().max().item() for t in (own - plain, plain[0] - plain[1], plain))
        tolerance = 1e-2 * spread + 30 * torch.finfo(plain.dtype).eps * scale
        if not error <= tolerance:
            return None
        with _divided(point, regions, halves.expand(rows, height, width), 2):
            half = trial.run(trial.images)
        if half.shape != (2 * rows, classes) or not half.isfinite().all() or torch.equal(half[:rows], half[rows:]):
            return None
        if point.kind != "pool":
            with _divided(point, regions, halves.expand(rows, height, width), 2):
                changed = trial.run(torch.where(halves.bool(), trial.images.flip(0), trial.images))
            if not (changed[:rows] - half[:rows]).abs().max() <= tolerance:
                return None
    except Exception:  # a foreign model may fail in any way on a map it does not expect
        return None
    finally:
        for handle in handles:
            handle.remove()
    return float(error / max(scale, 1e-30))


class _Trial:
    """Runs a model on made-up images and leaves no trace: mode, buffers, gradients and generators stay as they were.

    The images are smooth noise, so that two of them differ in every map. What would hide that difference in a model
    not trained yet is stood in for: weights that are all zero, as some heads and the last norms of residual blocks
    start, and BatchNorm statistics.
    """

    def __init__(self, model: nn.Module, example: Tensor, count: int = 2) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(0)
        _, channels, height, width = example.shape
        coarse = torch.randn(count, channels, 3, 3, generator=generator)
        fine = torch.randn(count, channels, height, width, generator=generator)
        images = F.interpolate(coarse, (height, width), mode="bilinear") + 0.5 * fine
        like = next((p for p in model.parameters() if p.is_floating_point()), example)  # Fabric casts on the way in
        self.images = images.to(like.device, like.dtype)
        self._stand_ins: dict[str, Tensor] = {
            name: (0.02 * torch.randn(value.shape, generator=generator)).to(value.device, value.dtype)
            for name, value in model.named_parameters()
            if value.ndim > 1 and value.is_floating_point() and not value.any()
        }
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if "norm" in type(module).__name__.lower() and isinstance(weight, nn.Parameter) and not weight.any():
                self._stand_ins[_join(name, "weight")] = torch.ones_like(weight)
        self._open = contextlib.ExitStack()
        self.plain: Any = None  # the model's own output in eval mode
        self.trained: Any = None  # and in train mode

    def __enter__(self) -> _Trial:
        device = self.images.device
        modes = {module: module.training for module in self.model.modules()}
        self._open.callback(_set_modes, self.model, modes)
        self._open.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        self._open.enter_context(torch.no_grad())
        self._open.enter_context(torch.autocast(device.type, enabled=False))
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in modes):
            self._open.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            self._calibrate()
            self.model.eval()
            self.plain = self.run(self.images)
        except Exception as error:
            self._open.close()
            lines = str(error).strip().splitlines()
            raise LeanError(
                f"{type(self.model).__name__} does not take inputs of shape {tuple(self.images.shape)} "
                f"({lines[0] if lines else type(error).__name__}); "
                "give an example batch as in training"
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def run(self, images: Tensor) -> Any:
        buffers = {name: self._stand_ins.get(name, buffer).clone() for name, buffer in self.model.named_buffers()}
        output = torch.func.functional_call(self.model, {**self._stand_ins, **buffers}, (images,))
        return getattr(output, "logits", output)  # Hugging Face's models answer with an object

    def _calibrate(self) -> None:
        """Give BatchNorm the statistics of the images; from zero, one step moves them `momentum` of the way there."""
        norms = {
            f"{name}.{kind}": module.momentum or 1.0
            for name, module in self.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
            for kind in ("running_mean", "running_var")
        }
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for name in buffers:
            if name in norms or name.endswith("num_batches_tracked"):
                buffers[name].zero_()
        self.model.train()
        trained = torch.func.functional_call(self.model, {**self._stand_ins, **buffers}, (self.images,))
        self.trained = getattr(trained, "logits", trained)
        for name, momentum in norms.items():
            found = buffers[name] / momentum
            if found.isfinite().all() and found.any():
                self._stand_ins[name] = found

    def rows_of(self, module: nn.Module) -> int:
        """How many tokens a module is given."""
        lengths: list[int] = []
        handle = module.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
        try:
            self.run(self.images)
        finally:
            handle.remove()
        return lengths[0]


def _set_modes(model: nn.Module, modes: dict[nn.Module, bool]) -> None:
    model.train()  # makes models forget what they cached in eval mode, such as LeViT its position biases
    for module, training in modes.items():
        module.training = training


@dataclass
class _Seen:
    """A module that gave a map or a grid of tokens, or took one and pooled it, in one forward."""

    name: str
    module: nn.Module
    tensor: Tensor  # the map
    is_pool: bool
    layouts: list[tuple[_Layout, tuple[int, int]]]
    call: int
    calls: Counter[str] = field(repr=False)

    def points(self) -> Iterator[_Pool]:
        for layout, size in self.layouts:
            for way in ("pool",) if self.is_pool else ("cell", "constant"):
                yield _Pool(self.name, self.module, layout, size, way, self.call, self.calls[self.name])


def _watch(trial: _Trial) -> list[_Seen]:
    """One forward: everything that gave a map or pooled one, in the order in which it finished."""
    seen: list[_Seen] = []
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
            layouts = list(_layouts(source, height, width, {0} if is_pool else prefixes))
            if is_pool:
                layouts = [(layout, size) for layout, size in layouts if _is_mean(layout, source, output)]
            if layouts:
                if seen and seen[-1].tensor is source and seen[-1].is_pool == is_pool:
                    seen.pop()  # the same map, on its way out of the module around: that one's name is shorter
                seen.append(_Seen(name, module, source, is_pool, layouts, call, calls))
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


def _layouts(x: Tensor, height: int, width: int, prefixes: set[int]) -> Iterator[tuple[_Layout, tuple[int, int]]]:
    """Every way to read a tensor as a grid of more than one cell with the image's aspect."""
    if not x.is_floating_point() or x.ndim not in (3, 4):
        return
    readings = [_Layout("NCHW"), _Layout("NHWC")] if x.ndim == 4 else [_Layout("NLC", p) for p in sorted(prefixes)]
    for layout in readings:
        if x.ndim == 3 and x.shape[1] <= layout.prefix:
            continue
        h, w = layout.grid(x, height, width)
        exact = x.ndim == 4 or h * w == x.shape[1] - layout.prefix
        if exact and 1 < h * w <= height * width and abs(h * width - w * height) <= max(height, width):
            yield layout, (h, w)


def _is_mean(layout: _Layout, x: Tensor, output: Tensor) -> bool:
    """Whether a module gave the mean over its input's grid, in whatever shape."""
    means = layout.cells(x).float().mean(1)
    if output.numel() != means.numel():
        return False
    slack = 1e-4 + 8 * torch.finfo(output.dtype).eps
    return bool((output.float().reshape(means.shape) - means).abs().max() <= slack * means.abs().max())


def _one_tensor(trial: _Trial) -> None:
    """Refuse a model that gives anything but (B, classes), in eval or in train mode."""
    for output in (trial.plain, trial.trained):
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(trial.images):
            what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise LeanError(
                f"{type(trial.model).__name__} gives {what} for {len(trial.images)} images, but split propagation "
                "needs one tensor (B, classes); turn auxiliary outputs off or use split=false"
            )


def _checked(model: nn.Module, example: Tensor) -> nn.Module:
    """The model inside its wrappers."""
    if not isinstance(example, Tensor) or example.ndim != 4 or not example.is_floating_point() or not len(example):
        what = f"{tuple(example.shape)} {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
        raise LeanError(f"split propagation needs an example batch of floats (n, C, H, W), not {what}")
    while True:
        if isinstance(model, nn.DataParallel):
            raise LeanError(
                "split propagation does not work in nn.DataParallel, which copies the model for every step; "
                "use DistributedDataParallel or split=false"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise LeanError("split propagation cannot act inside a TorchScript model; give the nn.Module it came from")
        inside = _inside(model)
        if inside is None:
            return model
        model = inside


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, out of whatever wraps it."""
    inside = _inside(model)
    return model if inside is None else unwrapped(inside)


def _inside(model: nn.Module) -> nn.Module | None:
    """What a wrapper wraps; its classes are told by name, so that nothing is imported for their sake."""
    attribute = {
        "OptimizedModule": "_orig_mod",
        "DistributedDataParallel": "module",
        "FullyShardedDataParallel": "module",
        "_FabricModule": "_forward_module",
        "InPrecision": "module",
    }.get(type(model).__name__)
    return getattr(model, attribute, None) if attribute else None


def _check_layer(model: nn.Module, layer: str) -> None:
    known = [name for name, _ in model.named_modules() if name]
    if layer not in known:
        raise LeanError(
            f"{type(model).__name__} has no layer '{layer}'.{nearest(layer, known)} "
            "leantrain.split.candidates(model, example) lists those with a feature map."
        )


def _refusal(
    trial: _Trial, seen: list[_Seen], layer: str | None, transformer: _ClassToken | None, fitting: list[str]
) -> LeanError:
    name = type(trial.model).__name__
    maps = [size for one in seen for _, size in one.layouts]
    some = f"name the last feature map with split_layer=…, such as {', '.join(fitting[-4:])}, or " if fitting else ""
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


def _pools_one_cell(trial: _Trial) -> bool:
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


def _names(seen: list[_Seen]) -> list[str]:
    """The layers with a map, each where it ran last."""
    return list(dict.fromkeys(one.name for one in reversed(seen) if not one.is_pool))[::-1]


def _leaks(model: nn.Module, regional: set[nn.Module]) -> str:
    """What of `_SEES_ALL` is in a model, besides the modules that act by region and what is inside these."""
    inside = {part for module in regional for part in module.modules()}
    return next(filter(None, (_sees_all(module) for module in model.modules() if module not in inside)), "")


def _sees_all(module: nn.Module) -> str:
    name = type(module).__name__.lower()
    return next((what for what, words in _SEES_ALL.items() if any(word in name for word in words)), "")


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)

"""Attention that stays within a constituent: vision transformers, whose class token or patches answer for each."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leantrain.errors import LeanError
from leantrain.split.layout import Layout, shares
from leantrain.split.pools import Pool
from leantrain.split.regions import Regions
from leantrain.split.trial import Trial, join


@dataclass
class Masks:
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
    def find(cls, trial: Trial, pool: str) -> Masks | None:
        """timm's and torchvision's vision transformers that answer from a class "token" or from an "avg" of patches."""
        for name, module in trial.model.named_modules():
            found = _timm_parts(module, pool) or (_torchvision_parts(module) if pool == "token" else None)
            if found is not None:
                below, blocks, masked, heads, prefix = found
                size, tokens = trial.images.shape[2:], trial.rows_of(blocks[0]) - prefix
                layout = Layout("NLC", prefix)
                map_size = layout.grid(torch.empty(1, tokens + prefix, 0), *size)
                if _leftover(module, map_size, tokens):
                    if pool == "avg":
                        return None
                    raise LeanError(
                        f"the {tokens} patch tokens of {type(trial.model).__name__} are no grid for images of "
                        f"{size[0]}×{size[1]} (patch dropout, or odd patches); turn that off or use split=false"
                    )
                patch = (size[0] // map_size[0], size[1] // map_size[1])
                return cls(join(name, below), module, blocks, masked, heads, prefix, patch, map_size)
        return None

    def install(self, regions: Regions, leave: _LeaveHook | _MergeHook) -> list[RemovableHandle]:
        mask = _MaskHook(regions)
        return [
            self.blocks[0].register_forward_pre_hook(_EnterHook(regions, self.prefix)),
            *(module.register_forward_pre_hook(mask, with_kwargs=True) for module in self.masked),
            self.blocks[-1].register_forward_hook(leave),
        ]

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> Tensor:
        """Make the attention mask, once for all blocks; gives the owner of each patch, (B, rows, columns)."""
        if getattr(self.model, "grad_checkpointing", False):
            raise LeanError(
                f"split propagation in {type(self.model).__name__} cannot recompute its attention masks in the "
                "backward pass; turn gradient checkpointing off or use split=false"
            )
        grid = (owner.shape[1] // self.patch[0], owner.shape[2] // self.patch[1])
        patches = shares(owner, constituents, grid, torch.float32).argmax(1)
        copies = torch.arange(constituents, device=owner.device).repeat_interleave(self.prefix)
        tokens = torch.cat([copies.expand(len(owner), -1), patches.flatten(1)], dim=1)
        mask = (tokens[:, :, None] == tokens[:, None, :])[:, None]
        if self.heads:  # torch's own: (B·heads, N, N), true where attention is forbidden
            mask = ~mask.expand(-1, self.heads, -1, -1).flatten(0, 1)
        regions.owner, regions.constituents, regions.mask = owner, constituents, mask
        return patches


@dataclass
class ClassToken:
    """A vision transformer whose class token answers: each constituent's copy answers for it."""

    masks: Masks
    kind = "class-token"

    @classmethod
    def find(cls, trial: Trial) -> ClassToken | None:
        masks = Masks.find(trial, "token")
        return None if masks is None else cls(masks)

    @property
    def layer(self) -> str:
        return self.masks.layer

    @property
    def map_size(self) -> tuple[int, int]:
        return self.masks.map_size

    def install(self, regions: Regions) -> list[RemovableHandle]:
        return self.masks.install(regions, _LeaveHook(regions, self.masks.prefix))

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> None:
        self.masks.prepare(regions, owner, constituents)

    def acting(self, regions: Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


@dataclass
class PatchTokens:
    """A vision transformer that answers from the mean of its patches: of each constituent's own."""

    masks: Masks
    pool: Pool
    kind = "patch-tokens"

    @property
    def layer(self) -> str:
        return self.pool.layer

    @property
    def map_size(self) -> tuple[int, int]:
        return self.pool.map_size

    def install(self, regions: Regions) -> list[RemovableHandle]:
        # In this order: the pool may act on the last block's output too, and must find its own prefix there.
        return [*self.masks.install(regions, _MergeHook(regions, self.masks.prefix)), *self.pool.install(regions)]

    def prepare(self, regions: Regions, owner: Tensor, constituents: int) -> None:
        patches = self.masks.prepare(regions, owner, constituents)
        self.pool.prepare(regions, patches, constituents)

    def acting(self, regions: Regions) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class _EnterHook:
    """Before the first block: as many copies of the prefix tokens as constituents."""

    def __init__(self, regions: Regions, prefix: int) -> None:
        self.regions, self.prefix = regions, prefix

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.regions.owner is None:
            return None
        prefix = inputs[0][:, : self.prefix].repeat(1, self.regions.constituents, 1)
        return torch.cat([prefix, inputs[0][:, self.prefix :]], dim=1), *inputs[1:]


class _MaskHook:
    """Before each attention: its mask."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.regions.mask is None:
            return None
        return inputs, {**options, "attn_mask": self.regions.mask}


class _LeaveHook:
    """After the last block: one row per constituent, with its own prefix tokens and no others."""

    def __init__(self, regions: Regions, prefix: int) -> None:
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

    def __init__(self, regions: Regions, prefix: int) -> None:
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

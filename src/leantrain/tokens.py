"""Token dropping: the form that shows a vision transformer some of an image's tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.eval_mode import trial
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.rng import uniform
from leantrain.wrappers import unwrapped

MOST_OTHERS = 16
"""How many class and register tokens a sequence may hold besides its patches."""


@register_form
class Tokens(FormKind):
    """A random part of each image's tokens; its value is the share that is kept, and an input costs by its tokens.

    The others are dropped before the first block (PatchDropout), so that all blocks work on a shorter sequence.
    Position embeddings are added before, and class or register tokens always stay. No kernel of its own: one gather.
    """

    name = "tokens"
    order = 20  # inside the model, so behind whatever changes the images

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        if attached.mixer is not None:
            raise LeanError("the tokens of a composite belong to several examples, so none can be dropped.")
        self._example = attached.images("shown with fewer tokens")
        self._first, self._patches, self._prefix = find_tokens(attached.model, self._example)
        self._tried: set[float] = set()

    @classmethod
    def size(cls, value: float) -> float:
        return value

    def fit(self, value: float) -> float:
        """The share that makes whole tokens; it is tried once, before the epoch that needs it."""
        fitted = max(1, round(value * self._patches)) / self._patches
        if fitted < 1.0 and fitted not in self._tried:
            self._try(fitted)
        return min(1.0, fitted)

    def _try(self, keep: float) -> None:
        model = self.attached.model
        draws = torch.arange(self._patches).float().expand(len(self._example), -1)
        try:
            with trial(model), self._dropping(draws, keep):
                model(self._example)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            name = type(unwrapped(model)).__name__
            raise LeanError(
                f"{name} cannot go without some of its tokens ({str(error).splitlines()[0]}); "
                "choose another model, or a method that skips examples instead."
            ) from None
        self._tried.add(keep)

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        """Each example keeps other tokens in every epoch, whatever batch it is in."""
        draws = uniform(self.attached.seed, batch.epoch, batch.index, self._patches, "tokens")
        with self._dropping(draws, value):
            return ask(inputs)

    @contextlib.contextmanager
    def _dropping(self, draws: Tensor, keep: float) -> Iterator[None]:
        def drop(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            tokens = args[0]
            patches = tokens.shape[1] - self._prefix  # fewer where images are shown smaller as well
            count = max(1, round(keep * patches))
            # In their old order, as some models go by it.
            chosen = draws[:, :patches].to(tokens.device).argsort(dim=1)[:, :count].sort(dim=1).values + self._prefix
            first = torch.arange(self._prefix, device=tokens.device).expand(len(tokens), -1)
            places = torch.cat([first, chosen], dim=1).unsqueeze(2).expand(-1, -1, tokens.shape[2])
            return (tokens.gather(1, places), *args[1:])

        handle = self._first.register_forward_pre_hook(drop)
        try:
            yield
        finally:
            handle.remove()


def find_tokens(model: nn.Module, example: Tensor) -> tuple[nn.Module, int, int]:
    """The first block of a transformer, how many patch tokens it gets, and how many others stand before these.

    Blocks are a list of modules of one class, all of which take and give sequences (n, tokens, features) of one length.
    Patches are counted where a convolution makes them; what is in the sequence beyond them are class and register
    tokens, which stay.
    """
    bare = unwrapped(model)
    name = type(bare).__name__
    if getattr(bare, "grad_checkpointing", False) or getattr(bare, "is_gradient_checkpointing", False):
        raise LeanError(f"{name} computes its blocks twice (gradient checkpointing), with other tokens; turn that off.")
    lengths: dict[nn.Module, int] = {}
    areas: set[int] = set()

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given, made = (x[0] if isinstance(x, tuple) and x else x for x in (args, output))
        if not isinstance(given, Tensor) or not isinstance(made, Tensor):
            return
        if isinstance(module, nn.Conv2d):
            areas.add(made.shape[-2] * made.shape[-1])
        elif given.ndim == 3 and made.shape == given.shape and len(made) == len(example):
            lengths[module] = made.shape[1]

    lists = [list(part) for part in bare.modules() if isinstance(part, nn.Sequential | nn.ModuleList) and len(part) > 1]
    lists = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    watched = {block for blocks in lists for block in blocks}
    watched |= {part for part in bare.modules() if isinstance(part, nn.Conv2d)}
    handles = [module.register_forward_hook(note) for module in watched]
    try:
        with trial(model):
            model(example)
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise LeanError(f"{name} cannot be shown its own images ({str(error).splitlines()[0]}).") from None
    finally:
        for handle in handles:
            handle.remove()
    for blocks in lists:
        length = lengths.get(blocks[0])
        if length is None or {lengths.get(block) for block in blocks} != {length}:
            continue
        patches = max((area for area in areas if area <= length), default=0)
        prefix = length - patches
        if patches > 1 and prefix <= MOST_OTHERS and prefix == getattr(bare, "num_prefix_tokens", prefix):
            return blocks[0], patches, prefix
    raise LeanError(
        f"{name} has no blocks that pass the tokens of an image on, so none can be dropped; choose a vision "
        "transformer, or a method that shows images smaller."
    )

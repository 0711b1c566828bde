"""Token dropping: the form that shows a vision transformer some of an image's tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.rng import uniform
from leantrain.split import unwrapped


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
        model = unwrapped(attached.model)
        if attached.mixer is not None:
            raise LeanError("the tokens of a composite belong to several examples, so none can be dropped.")
        self._first, self._patches, self._prefix = find_tokens(attached.model, attached.example)
        self._model_name = type(model).__name__
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
        model, example = self.attached.model, self.attached.example
        draws = torch.arange(self._patches).float().expand(len(example), -1)
        try:
            with torch.no_grad(), eval_mode(model), self._dropping(draws, keep):
                model(example)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            raise LeanError(
                f"{self._model_name} cannot go without some of its tokens ({str(error).splitlines()[0]}); "
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


PREFIXES = ("cls_token", "class_token", "dist_token", "reg_token", "register_tokens")


def find_tokens(model: nn.Module, example: Any) -> tuple[nn.Module, int, int]:
    """The first block of a transformer, how many patch tokens it gets, and how many others stand before these.

    Blocks are a list of modules of one class, all of which take and give sequences (n, tokens, features) of one length.
    """
    lengths: dict[nn.Module, int] = {}

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given, made = (x[0] if isinstance(x, tuple) and x else x for x in (args, output))
        both = isinstance(given, Tensor) and isinstance(made, Tensor)
        if both and given.ndim == 3 and made.shape == given.shape and len(made) == len(example):
            lengths[module] = made.shape[1]

    bare = unwrapped(model)
    lists = [list(part) for part in bare.modules() if isinstance(part, nn.Sequential | nn.ModuleList) and len(part) > 1]
    lists = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    handles = [block.register_forward_hook(note) for blocks in lists for block in blocks]
    try:
        with torch.no_grad(), eval_mode(model):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    for blocks in lists:
        if len({lengths.get(block) for block in blocks}) == 1 and (length := lengths.get(blocks[0])) is not None:
            prefix = getattr(bare, "num_prefix_tokens", None)
            if not isinstance(prefix, int):
                named = dict(bare.named_parameters())
                prefix = sum(named[name].shape[-2] for name in named if name.rpartition(".")[2] in PREFIXES)
            if length - prefix > 1:
                return blocks[0], length - prefix, prefix
    raise LeanError(
        f"{type(bare).__name__} has no blocks that pass a sequence of tokens on, so none can be dropped; choose a "
        "vision transformer, or a method that shows images smaller."
    )

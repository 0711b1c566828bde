"""Mixing: several inputs become one composite of the same shape, on the device, by CutMix or MixUp.

The functional core takes the constituents as one tensor of k·B inputs, the first constituents of all composites first,
then the second ones. `CutMix` and `MixUp` configure it, and a method that mixes declares one of them. `Composite` is
the form that shows a batch so.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.rng import uniform
from leantrain.split import Split

DRAWS = 8
"""Random numbers a composite of two may use; each further constituent brings as many of its own."""

SMALLEST_SHARE = 0.1
"""What adaptive mixing leaves to the easier constituent, so that it is still there to be learnt."""


class Mixed(NamedTuple):
    """Composites and what is in them.

    Attributes:
        inputs: (B, …), of the shape of one batch of inputs.
        shares: float32 (k, B), the share of each constituent; they add up to one.
        owner: uint8 (B, H, W), which constituent each pixel shows; None where every pixel shows all.
    """

    inputs: Tensor
    shares: Tensor
    owner: Tensor | None


@dataclass(frozen=True)
class Mixer(ABC):
    """How constituents become a composite.

    Attributes:
        ratio: the first constituent's share; "equal", "beta" (random) or "adaptive" (by recorded loss) where it is not
            a number.
        alpha: of the distribution Beta(alpha, alpha) of two shares that are random; 1 is uniform.
        split: whether the model is to answer once per constituent, by split propagation.
        statistics: whether composites count in BatchNorm's running statistics, with which the model is evaluated.
    """

    ratio: float | str = "equal"
    split: bool = False
    statistics: bool = True
    alpha: float = 1.0

    def check(self, inputs: Any) -> None:
        """Refuse inputs that cannot be mixed."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            what = f"{inputs.dtype} tensors" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
            raise LeanError(
                f"the inputs of a batch are {what}, but only float tensors can be mixed; convert them in the data set, "
                "or, where the loop does so, show attach a converted batch as example=…"
            )

    @abstractmethod
    def mix(self, inputs: Tensor, constituents: int, losses: Tensor, draws: Tensor) -> Mixed:
        """Mix k·B inputs into B composites.

        Args:
            inputs: (k·B, C, H, W), first constituents first.
            constituents: k.
            losses: (k, B), what was last recorded of each; NaN where nothing was.
            draws: (B, k·DRAWS) numbers in [0, 1).
        """

    def shares(self, constituents: int, losses: Tensor, draws: Tensor) -> Tensor:
        """(k, B), the shares that are asked for."""
        count = losses.shape[1]
        equal = torch.full((constituents, count), 1.0 / constituents, device=losses.device)
        if self.ratio == "equal":
            return equal
        if self.ratio == "adaptive":
            return adaptive_shares(losses)
        if self.ratio == "beta" and self.alpha != 1.0:
            first = symmetric_beta(draws[:, -1], self.alpha)
            return torch.stack([first, 1.0 - first])
        if self.ratio == "beta":  # Beta(1, 1) for two, the flat Dirichlet for more
            exponential = -torch.log1p(-draws[:, -constituents:].T)
            return exponential / exponential.sum(0)
        assert isinstance(self.ratio, float)
        rest = (1.0 - self.ratio) / (constituents - 1)
        return torch.cat([torch.full_like(equal[:1], self.ratio), torch.full_like(equal[1:], rest)])


@dataclass(frozen=True)
class CutMix(Mixer):
    """Each pixel shows one constituent.

    Attributes:
        patch: "half" cuts the picture into straight parts along a random axis, in random order; "rect" pastes a random
            rectangle of each further constituent over the first, clipped at the picture's border.
    """

    split: bool = True
    patch: str = "half"

    def check(self, inputs: Any) -> None:
        super().check(inputs)
        if inputs.ndim != 4:
            raise LeanError(
                f"an input has shape {tuple(inputs.shape[1:])}, but CutMix needs images (channels, height, width); "
                "mix other inputs with MixUp."
            )

    def mix(self, inputs: Tensor, constituents: int, losses: Tensor, draws: Tensor) -> Mixed:
        asked = self.shares(constituents, losses, draws)
        height, width = inputs.shape[-2:]
        make = strip_owner if self.patch == "half" else rectangle_owner
        owner = make(asked, height, width, draws)
        return Mixed(cutmix(inputs, owner), area_shares(owner, constituents), owner)


@dataclass(frozen=True)
class MixUp(Mixer):
    """Each pixel is the weighted mean of the constituents' pixels."""

    ratio: float | str = "adaptive"

    def mix(self, inputs: Tensor, constituents: int, losses: Tensor, draws: Tensor) -> Mixed:
        shares = self.shares(constituents, losses, draws)
        return Mixed(mixup(inputs, shares), shares, None)


@register_form
class Composite(FormKind):
    """Several examples in one input; its value is how many. It costs what one input does."""

    name = "composite"
    order = 10
    mixes = True

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        if attached.mixer is None:
            raise LeanError("the plan has composites, but no method of the run says how to mix them.")
        self.mixer = attached.mixer
        self.mixer.check(attached.example)
        self.split: Split | None = None
        if self.mixer.split:
            self.split = Split(attached.model, attached.example, attached.split_layer)
            self.split.time_with(attached.clock)
        norms = (module for module in attached.model.modules() if isinstance(module, _BatchNorm))
        self._norms = [norm for norm in norms if norm.track_running_stats]

    @classmethod
    def constituents(cls, value: float) -> int:
        return int(value)

    def close(self) -> None:
        if self.split is not None:
            self.split.remove()

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        run, k = self.attached, int(value)
        with run.clock.measure("mixing", inputs.device):
            known = run.ledger["loss"].to(inputs.device, non_blocking=True)[batch.index].view(k, -1)
            first = batch.index[: known.shape[1]]
            draws = uniform(run.seed, batch.epoch, first, k * DRAWS, "mix")
            mixed = self.mixer.mix(inputs, k, known, draws)
        shares = mixed.shares.reshape(-1)
        with contextlib.nullcontext() if self.mixer.statistics else self._statistics_kept():
            if self.split is None:
                answer = ask(mixed.inputs)  # one, asked about each constituent
                auxiliary = tuple(logits.repeat(k, 1) for logits in answer.auxiliary)
                return Answer(answer.logits.repeat(k, 1), shares, auxiliary=auxiliary)
            assert mixed.owner is not None
            with self.split.regions(mixed.owner, k):
                return Answer(ask(mixed.inputs).logits, shares)

    @contextlib.contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """BatchNorm normalises a batch by its own statistics inside, but does not take it into the running ones."""
        for norm in self._norms:
            norm.track_running_stats = False
        try:
            yield
        finally:
            for norm in self._norms:
                norm.track_running_stats = True


def adaptive_shares(losses: Tensor) -> Tensor:
    """The harder constituent gets the larger share: r_j = ℓ_j / Σ ℓ, kept away from 0 and 1.

    Shares below `SMALLEST_SHARE` are raised to it, and all are then made to add up to one: for two, 1/11 … 10/11.
    The papers' ratio ℓ₁ / ℓ₂ (Eq. 5) is not a share. Where any loss is unknown, all shares are equal.
    """
    constituents = losses.shape[0]
    total = losses.sum(0)
    usable = total.isfinite() & (total > 0)
    shares = torch.where(usable, losses / torch.where(usable, total, 1.0), 1.0 / constituents)
    shares = shares.clamp(min=SMALLEST_SHARE)
    return shares / shares.sum(0)


def symmetric_beta(draws: Tensor, alpha: float, points: int = 1025) -> Tensor:
    """Uniform numbers in [0, 1) as numbers of the distribution Beta(alpha, alpha), by its inverse.

    With x = ½ t^(1/alpha) the density of the lower half has no pole in t, so that a table of it is exact enough; the
    upper half mirrors it.
    """
    t = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
    half = t ** (1.0 / alpha) / 2
    density = (1.0 - half) ** (alpha - 1.0)
    below = torch.cat([t.new_zeros(1), torch.cumulative_trapezoid(density, t)])
    below = (below / below[-1] / 2).to(draws.device, torch.float32)
    upper = draws > 0.5
    wanted = torch.where(upper, 1.0 - draws, draws)
    place = torch.searchsorted(below, wanted).clamp(1, points - 1)
    part = (wanted - below[place - 1]) / (below[place] - below[place - 1])
    x = ((place - 1 + part) / (points - 1)).clamp(0.0, 1.0) ** (1.0 / alpha) / 2
    return torch.where(upper, 1.0 - x, x)


def mixup(inputs: Tensor, shares: Tensor) -> Tensor:
    """Σ r_j x_j for (k·B, …) inputs and (k, B) shares."""
    shape = (shares.shape[1],) + (1,) * (inputs.ndim - 1)
    weights = [share.to(inputs.dtype).view(shape) for share in shares]
    chunks = inputs.chunk(len(weights))
    mixed: Tensor = chunks[0] * weights[0]
    for part, weight in zip(chunks[1:], weights[1:], strict=True):
        mixed = torch.addcmul(mixed, part, weight)
    return mixed


def cutmix(inputs: Tensor, owner: Tensor) -> Tensor:
    """The composites that `owner` describes: each pixel of the constituent that owns it."""
    chunks = torch.split(inputs, len(owner))
    mixed: Tensor = chunks[0]
    for j, part in enumerate(chunks[1:], start=1):
        mixed = torch.where((owner == j).unsqueeze(1), part, mixed)
    return mixed


def area_shares(owner: Tensor, constituents: int) -> Tensor:
    """(k, B), the share of the area that each constituent really covers, after rounding and clipping to pixels."""
    pixels = owner.shape[1] * owner.shape[2]
    return torch.stack([(owner == j).sum((1, 2)) for j in range(constituents)]).float() / pixels


def strip_owner(shares: Tensor, height: int, width: int, draws: Tensor) -> Tensor:
    """Straight cuts across a random axis, from a random side; for two equal shares left, right, top or bottom half."""
    across, reverse = draws[:, 0] < 0.5, draws[:, 1] < 0.5
    bounds = shares.cumsum(0)[:-1].T  # (B, k-1)

    def along(length: int) -> Tensor:
        place = torch.arange(length, device=shares.device).expand(len(across), length)
        place = torch.where(reverse.unsqueeze(1), length - 1 - place, place)
        cuts = (bounds * length).round().unsqueeze(2)
        return (place.unsqueeze(1) >= cuts).sum(1).to(torch.uint8)

    columns, rows = along(width).unsqueeze(1), along(height).unsqueeze(2)
    return torch.where(across.view(-1, 1, 1), columns, rows)


def rectangle_owner(shares: Tensor, height: int, width: int, draws: Tensor) -> Tensor:
    """A rectangle of each further constituent around a random centre, of the picture's own aspect, clipped (CutMix)."""
    constituents, count = shares.shape
    owner = torch.zeros(count, height, width, dtype=torch.uint8, device=shares.device)
    rows, columns = (torch.arange(n, device=shares.device) for n in (height, width))
    for j in range(1, constituents):
        side = shares[j].sqrt()
        inside = []
        for place, length, centre in ((rows, height, draws[:, 2 * j]), (columns, width, draws[:, 2 * j + 1])):
            middle, half = centre * length, side * length / 2
            start, stop = (middle - half).round().unsqueeze(1), (middle + half).round().unsqueeze(1)
            inside.append((place >= start) & (place < stop))
        patch = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        owner = torch.where(patch, j, owner)
    return owner.to(torch.uint8)

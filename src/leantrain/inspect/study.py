"""What the model of a run does with mixed inputs: pairings of training examples, and the diagnostics made from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.data import Augment, ImageSet
from leantrain.inspect.record import LeftOut, Numbers
from leantrain.mixing import DRAWS, CutMix, Mixed, Mixer, MixUp
from leantrain.rng import generator, uniform
from leantrain.split import Split

BATCH = 256  # composites per forward pass
LOSS_BINS = 12
GALLERY = 8
SHARED, SPLIT, ZEROED = "shared", "split", "zeroed"
"""How a model answers for the constituents of a composite: one answer for all, one each by split propagation, or one
each from a picture of its own in which the other's pixels are zero."""


@dataclass(frozen=True, eq=False)
class Study:
    """A model and some training examples, looked at without augmentation.

    Attributes:
        model: in evaluation mode.
        split: None where the model cannot be split.
        pixels: bytes (n, C, H, W) of the examples.
        index: their places in the training set.
        pairings: how many random pairings are averaged.
        patch: how CutMix cuts.
    """

    model: nn.Module
    split: Split | None
    augment: Augment
    images: ImageSet
    pixels: Tensor
    index: Tensor
    device: torch.device
    pairings: int = 5
    seed: int = 0
    patch: str = "half"

    @cached_property
    def targets(self) -> Tensor:
        return self.images.train.targets[self.index]

    @cached_property
    def alone(self) -> Tensor:
        """The logits of every example without mixing."""
        with torch.no_grad():
            parts = torch.split(torch.arange(len(self.index)), BATCH)  # type: ignore[no-untyped-call]
            return torch.cat([self.model(self._inputs(part)).float().cpu() for part in parts])

    @cached_property
    def loss(self) -> Tensor:
        return F.cross_entropy(self.alone, self.targets, reduction="none")

    @cached_property
    def correct(self) -> Tensor:
        return self.alone.argmax(1) == self.targets

    @property
    def ways(self) -> dict[str, tuple[Mixer, str]]:
        """The ways of mixing that are compared, at equal shares as in the papers."""
        cut, up = CutMix(ratio="equal", patch=self.patch), MixUp(ratio="equal")
        ways: dict[str, tuple[Mixer, str]] = {"cutmix": (cut, SHARED)}
        if self.split is not None:
            ways["cutmix_split"] = (cut, SPLIT)
        return {**ways, "mixup": (up, SHARED)}

    def pairs(self, among: Tensor, number: int, purpose: str) -> Tensor:
        """(2, n), random pairs of these examples; an odd one out is in none."""
        order = torch.randperm(len(among), generator=generator(self.seed, "inspect", purpose, number))
        return among[order[: len(order) // 2 * 2]].view(2, -1)

    @torch.no_grad()
    def answers(self, groups: Tensor, number: int, mixer: Mixer, how: str) -> Tensor:
        """(k, n, classes), the logits for every constituent of the composites of these (k, n) groups."""
        k, rows = len(groups), []
        for inputs, mixed in self.composites(groups, number, mixer):
            if how == SHARED:
                rows.append(self.model(mixed.inputs).float().cpu().expand(k, -1, -1))
                continue
            assert mixed.owner is not None
            if how == SPLIT:
                assert self.split is not None
                with self.split.regions(mixed.owner, k):
                    logits = self.model(mixed.inputs)
            else:
                kept = mixed.owner == torch.arange(k, device=inputs.device).view(-1, 1, 1, 1)
                logits = self.model(inputs * kept.flatten(0, 1).unsqueeze(1))
            rows.append(logits.float().cpu().unflatten(0, (k, -1)))
        return torch.cat(rows, 1)

    def composites(self, groups: Tensor, number: int, mixer: Mixer) -> Iterator[tuple[Tensor, Mixed]]:
        """The constituents and the composites of these groups, batch by batch; alike whatever is asked of them."""
        for part in groups.split(BATCH, dim=1):  # type: ignore[no-untyped-call]
            yield self.mix(self._inputs(part.reshape(-1)), part, number, mixer)

    def mix(self, inputs: Tensor, groups: Tensor, number: int, mixer: Mixer) -> tuple[Tensor, Mixed]:
        draws = uniform(self.seed, number, self.index[groups[0]], len(groups) * DRAWS, "inspect").to(inputs.device)
        return inputs, mixer.mix(inputs, len(groups), self.loss[groups].to(inputs.device), draws)

    def _inputs(self, which: Tensor) -> Tensor:
        return self.augment.evaluate(self.pixels[which].to(self.device))

    # -- all examples, paired at random ------------------------------------------------------------------------------

    @cached_property
    def mixed(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By way of mixing, (pairings, n) each: every example's loss when mixed, and whether it is still recognised.

        The loss of an example that was the odd one out is NaN in that pairing.
        """
        found = {}
        everyone = torch.arange(len(self.index))
        for name, (mixer, how) in self.ways.items():
            losses = torch.full((self.pairings, len(everyone)), torch.nan)
            seen = torch.zeros(losses.shape, dtype=torch.bool)
            for number in range(self.pairings):
                pairs = self.pairs(everyone, number, "all")
                labels = self.targets[pairs]
                logits = self.answers(pairs, number, mixer, how)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
                losses[number, pairs.flatten()] = loss
                seen[number, pairs.flatten()] = recognised(logits, labels, how).flatten()
            found[name] = (losses, seen)
        return found


def recognised(logits: Tensor, labels: Tensor, how: str) -> Tensor:
    """(k, n), which constituents are recognised.

    With an answer each: its label has the highest score. With one answer for two (§ 4.1): its label has the highest
    score, or the second highest behind the other's. Two constituents of one class are both recognised or neither.
    """
    if how != SHARED:
        return logits.argmax(2) == labels
    first, second = logits[0].topk(2).indices.T
    hits: Tensor = (labels == first) | ((labels == second) & (labels.flip(0) == first))
    return hits


def loss_change(study: Study) -> Numbers:
    """Fig. 5A: |loss − mixed loss| by loss; the mixed loss is the mean over the pairings, as in Eq. 6."""
    bins = [part for part in study.loss.argsort(stable=True).tensor_split(LOSS_BINS) if len(part)]
    curves = {}
    for name, (losses, _) in study.mixed.items():
        change = (study.loss - losses.nanmean(0)).abs()
        curves[name] = [None if change[part].isnan().all() else _mean(change[part]) for part in bins]
    return {"loss": [_mean(study.loss[part]) for part in bins], "examples": [len(p) for p in bins], "change": curves}


def accuracy_kept(study: Study) -> Numbers:
    """Fig. 5B: of the examples recognised without mixing, the share recognised when mixed, per pairing."""
    if not study.correct.any():
        raise LeftOut("the model recognises none of the examples without mixing")
    kept = {}
    for name, (losses, seen) in study.mixed.items():
        asked = study.correct & ~losses.isnan()
        kept[name] = _spread([_mean(hit[which].float()) for hit, which in zip(seen, asked, strict=True) if which.any()])
    return {"examples": int(study.correct.sum()), "kept": kept}


# -- pairs of examples that the model recognises without mixing --------------------------------------------------------


def interference(study: Study) -> tuple[Numbers, Numbers]:
    """Fig. 2B, of how many pairs both, one or none is recognised; and Fig. 11, how far down the second label is."""
    among = study.correct.nonzero().squeeze(1)
    if len(among) < 2:
        raise LeftOut("the model recognises fewer than two of the examples without mixing")
    ways = study.ways
    ways["zeropatch"] = (ways["cutmix"][0], ZEROED)
    counted: dict[str, list[Tensor]] = {name: [] for name in ways}
    ranked: dict[str, list[Tensor]] = {name: [] for name, (_, how) in ways.items() if how == SHARED}
    for number in range(study.pairings):
        pairs = study.pairs(among, number, "correct")
        labels = study.targets[pairs]
        for name, (mixer, how) in ways.items():
            logits = study.answers(pairs, number, mixer, how)
            hits = recognised(logits, labels, how).sum(0)
            counted[name].append(torch.stack([(hits == n).double().mean() for n in (2, 1, 0)]))
            if name in ranked:
                ranked[name].append(second_rank(logits[0], labels))
    size = len(among) // 2
    rows = {"alone": {"both": _spread([1.0]), "one": _spread([0.0]), "none": _spread([0.0])}}
    for name, shares in counted.items():
        each = torch.stack(shares).T.tolist()
        rows[name] = {kind: _spread(values) for kind, values in zip(("both", "one", "none"), each, strict=True)}
    return {"pairs": size, "rows": rows}, _second(ranked, size, len(study.images.classes))


def second_rank(logits: Tensor, labels: Tensor) -> Tensor:
    """From 2, the place of the second constituent's label, where the first place is the other one's.

    Pairs of one class, and pairs neither of which has the first place, are left out.
    """
    first = logits.argmax(1)
    asked = (labels[0] != labels[1]) & (labels == first).any(0)
    second = torch.where(labels[0] == first, labels[1], labels[0])
    score = logits.gather(1, second.unsqueeze(1))
    return ((logits > score).sum(1) + 1)[asked]


def _second(ranked: dict[str, list[Tensor]], pairs: int, classes: int) -> Numbers:
    most = min(5 if classes >= 10 else 3, classes)
    places = list(range(2, most + 1))
    within, asked = {}, {}
    for name, ranks in ranked.items():
        some = [rank for rank in ranks if len(rank)]
        within[name] = [_spread([_mean((rank <= place).float()) for rank in some]) for place in places]
        asked[name] = sum(map(len, ranks)) / len(ranks)
    chance = [(place - 1) / (classes - 1) for place in places]
    return {"pairs": pairs, "pairs_asked": asked, "places": places, "within": within, "chance": chance}


# -- over the epochs ---------------------------------------------------------------------------------------------------


class OverEpochs:
    """Fig. 2B, 5A, 5B and 11 at every epoch whose weights a run kept.

    Each is measured on the same examples and pairings as the figures of the model at the end.
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self._recognised: dict[str, list[float | None]] = {}
        self._kept: dict[str, list[float | None]] = {}
        self._second: dict[str, list[float | None]] = {}
        self._change: list[Numbers] = []
        self._place = 0

    def add(self, epoch: int, study: Study) -> None:
        """Measure the model as it was after an epoch."""
        self.epochs.append(epoch)
        self._change.append(loss_change(study))
        try:
            pairs, second = interference(study)
            kept = accuracy_kept(study)["kept"]
        except LeftOut:  # it recognised next to nothing yet
            pairs, second, kept = {"rows": {}}, {"within": {}, "places": [0]}, {}
        both = {name: row["both"]["mean"] + row["one"]["mean"] / 2 for name, row in pairs["rows"].items()}
        self._place = max(self._place, second["places"][-1])
        for into, found in (
            (self._recognised, both),
            (self._kept, {name: row["mean"] for name, row in kept.items()}),
            (self._second, {name: rows[-1]["mean"] for name, rows in second["within"].items()}),
        ):
            for name in {**into, **found}:
                into.setdefault(name, [None] * (len(self.epochs) - 1)).append(found.get(name))

    def recognised(self) -> Numbers:
        return self._shares(self._recognised)

    def kept(self) -> Numbers:
        return self._shares(self._kept)

    def second(self) -> Numbers:
        return {**self._shares(self._second), "top": self._place}

    def change(self) -> Numbers:
        way = "cutmix_split" if "cutmix_split" in self._change[0]["change"] else "cutmix"
        loss, change = [one["loss"] for one in self._change], [one["change"][way] for one in self._change]
        return {"epochs": self.epochs, "way": way, "loss": loss, "change": change}

    def _shares(self, found: dict[str, list[float | None]]) -> Numbers:
        if not found:
            raise LeftOut("the model recognised fewer than two of the examples in every epoch that was kept")
        return {"epochs": self.epochs, "share": found}


# -- pictures ----------------------------------------------------------------------------------------------------------


def gallery(study: Study, mixer: Mixer, constituents: int) -> tuple[Numbers, dict[str, Tensor]]:
    """Composites as the run mixes them: what is in each, and the pictures in 0…1 with their owners."""
    count = min(GALLERY, len(study.index) // constituents)
    if not count:
        raise LeftOut(f"{len(study.index)} examples do not make a composite of {constituents}")
    order = torch.randperm(len(study.index), generator=generator(study.seed, "inspect", "gallery"))
    groups = order[: count * constituents].view(constituents, count)
    labels, names = study.targets[groups], study.images.classes
    how = SPLIT if mixer.split and study.split is not None else SHARED
    logits = study.answers(groups, -1, mixer, how)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    pictures, mixed = study.mix(study.pixels[groups.flatten()].float() / 255, groups, -1, mixer)
    shares = mixed.shares

    def constituent(j: int, b: int) -> Numbers:
        return {
            "index": int(study.index[groups[j, b]]),
            "class": names[int(labels[j, b])],
            "share": float(shares[j, b]),
            "loss": float(study.loss[groups[j, b]]),
            "mixed_loss": float(loss[j, b]),
        }

    composites = [[constituent(j, b) for j in range(constituents)] for b in range(count)]
    shown = {"constituents": pictures.view(constituents, count, *pictures.shape[1:]), "composites": mixed.inputs}
    if mixed.owner is not None:
        shown["owner"] = mixed.owner
    return {"mixer": type(mixer).__name__, "split": how == SPLIT, "composites": composites}, shown


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _spread(values: list[float]) -> dict[str, Any]:
    """Mean and standard deviation over the pairings, and each pairing's own value."""
    each = torch.tensor(values, dtype=torch.float64)
    if not len(each):
        return {"mean": None, "spread": None, "each": []}
    return {"mean": float(each.mean()), "spread": float(each.std(correction=0)), "each": each.tolist()}

"""MixTrain (first published as InterTrain): mix two inputs into one, where the examples' own losses allow it.

Krithivasan, Sen, Venkataramani, Raghunathan: MixTrain: accelerating DNN training via input mixing (Frontiers in
Artificial Intelligence 7, 2024). Section numbers in this file are of that paper; the choices made where it is silent
are named in docs/methods/mixtrain.md.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.errors import LeanError
from leantrain.ledger import COMPOSITE, WHOLE, Ledger
from leantrain.methods.base import Method, Moment, State
from leantrain.mixing import CutMix, Mixer, MixUp
from leantrain.options import option
from leantrain.plan import WHOLE_FORM, Form, Groups, Plan, make_plan

SELECTIONS = ("region13", "region1", "region3", "all", "correct", "mean-loss", "all-region3", "random")
NOT_MIXED, REGION_1, REGION_3 = 0, 1, 3
EMA_WEIGHT = 0.5  # of the newest epoch, where averages are exponential


@dataclass(frozen=True)
class MixTrainMethod(Method):
    """What both operators share: selective mixing (§ 4.2)."""

    select: str = option(
        "region13",
        "which examples may be mixed; the paper: region13 (low losses, high ones that rise); random is its control",
        choices=SELECTIONS,
    )
    region3: str = option(
        "mix",
        "what happens to region 3; the paper mixes it, skip is its Table 4's alternative",
        choices=("mix", "skip"),
    )
    k: int = option(
        1, "epochs in a row a region-3 loss must have risen, and is then mixed; the paper: 1", low=1, high=100
    )
    constituents: int = option(2, "examples per composite; the paper: 2", low=2, high=8)
    average: str = option(
        "cumulative",
        "how L_corr and L_incorr run; the paper: a running average, taken as cumulative",
        choices=("cumulative", "ema"),
    )
    include_last: bool = option(False, "thresholds include the epoch just ended; the paper: epochs 0 to E-1 only")
    keep_steps: bool = option(
        False,
        "composite batches hold batch-size examples, not composites, so optimiser steps stay as many; not in the paper",
    )
    whole_ending: float = option(
        0.0, "share of the run, at its end, that is trained unmixed; not in the paper", low=0.0, high=1.0
    )

    def init(self, ledger: Ledger) -> State:
        ledger.register("region", torch.uint8, NOT_MIXED)
        ledger.register("rises", torch.int8, -1)  # -1: the last loss was not an unmixed one, so nothing to compare
        ledger.register("left", torch.int8, 0)  # epochs of region-3 mixing still to come
        return {"sums": torch.zeros(3, 2, dtype=torch.float64), "report": {}}  # correct, incorrect, all × loss, count

    def plan(self, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator) -> tuple[Plan, State]:
        before = ledger["region"].clone()
        ended = moment.epoch - 1
        sums = state["sums"]
        fresh = self._averaged(sums, ledger, ended) if ended >= 0 else sums
        thresholds = Thresholds.of(fresh if self.include_last else sums)
        region = self._decide(ledger, ended, thresholds) if ended >= 0 else torch.zeros_like(before)
        if self.select == "all":
            region = torch.full_like(before, REGION_1)
        if self.select == "random":  # as many as the rule would choose, but any
            region = region[torch.randperm(len(region), generator=rng).to(region.device)]
        if moment.progress >= 1.0 - self.whole_ending - 1e-9 and self.whole_ending > 0:
            region = torch.zeros_like(before)
            ledger["left"].zero_()
        ledger["region"].copy_(region)
        groups, mixed, skipped = self._groups(region, moment.batch_size, rng)
        plan = make_plan(moment.epoch, groups, moment.batch_size, rng)
        report = self._report(before, region, mixed, skipped, thresholds, plan, moment)
        return plan, {"sums": fresh, "report": report}

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        return dict(state["report"])

    def _averaged(self, sums: Tensor, ledger: Ledger, epoch: int) -> Tensor:
        """The running sums after one more epoch. Only unmixed losses count: a mixed one is not comparable."""
        whole = ledger.seen_in(epoch) & (ledger["form"] == WHOLE) & ledger["loss"].isfinite()
        rows = []
        for chosen in (whole & ledger["correct"], whole & ~ledger["correct"], whole):
            total = torch.where(chosen, ledger["loss"], 0).sum(dtype=torch.float64)
            rows.append(torch.stack([total, chosen.sum(dtype=torch.float64)]))
        now = torch.stack(rows).cpu()
        if self.average == "cumulative":
            return sums + now
        # As sums of weight one, so that both averages read alike; a kind not seen in this epoch stays as it was.
        seen = now[:, 1:] > 0
        mean = now[:, :1] / now[:, 1:].clamp(min=1)
        first = sums[:, 1:] == 0
        value = torch.where(first, mean, (1 - EMA_WEIGHT) * sums[:, :1] + EMA_WEIGHT * mean)
        return torch.where(seen, torch.cat([value, torch.ones_like(value)], 1), sums)

    def _decide(self, ledger: Ledger, ended: int, thresholds: Thresholds) -> Tensor:
        """Why each example is mixed in the next epoch (§ 4.2.3, 4.2.4), from what the one just ended recorded."""
        loss, form = ledger["loss"], ledger["form"]
        seen = ledger.seen_in(ended)
        unmixed, mixed = seen & (form == WHOLE), seen & (form == COMPOSITE)
        rises = self._count_rises(ledger, unmixed)

        low = self._is_low(ledger, thresholds)
        kept = mixed & (ledger["region"] == REGION_1)
        region = ((unmixed | kept) & low).to(torch.uint8) * REGION_1
        if self.select == "region3":
            region.zero_()

        left = ledger["left"]
        # One epoch of region 3 is over, mixed or skipped; an odd one out was trained whole and is judged anew.
        left.copy_(torch.where(unmixed, 0, (left - 1).clamp_(min=0)))
        if self.select in ("region13", "region3", "all-region3", "random"):
            high = unmixed & (loss > thresholds.incorrect)
            if self.select != "all-region3":
                high &= rises >= self.k
            left.copy_(torch.where(high & (region == NOT_MIXED), self.k, left))
        return torch.where(left > 0, REGION_3, region)

    def _count_rises(self, ledger: Ledger, unmixed: Tensor) -> Tensor:
        """How many epochs in a row each example's unmixed loss has risen."""
        rises = ledger["rises"]
        risen = (rises >= 0) & (ledger["loss"] > ledger["previous"])
        now = torch.where(risen, (rises + 1).clamp_(max=100), 0)
        rises.copy_(torch.where(unmixed, now, -1))
        return rises

    def _is_low(self, ledger: Ledger, thresholds: Thresholds) -> Tensor:
        if self.select == "correct":
            return ledger["correct"]
        return ledger["loss"] < (thresholds.mean if self.select == "mean-loss" else thresholds.middle)

    def _groups(self, region: Tensor, batch_size: int, rng: torch.Generator) -> tuple[list[Groups], Tensor, int]:
        """Random groups of k from what is mixed, the rest whole; what is left over is trained whole."""
        k = self.constituents
        region = region.cpu()
        skip = (region == REGION_3) if self.region3 == "skip" else torch.zeros_like(region, dtype=torch.bool)
        if bool(skip.all()):  # an epoch needs something to train on
            skip = torch.zeros_like(skip)
        chosen = ((region != NOT_MIXED) & ~skip).nonzero().squeeze(1).int()
        chosen = chosen[torch.randperm(len(chosen), generator=rng, dtype=torch.int32)]
        plain = (region == NOT_MIXED).nonzero().squeeze(1).int()
        inputs = len(chosen) // k
        # No batch of one: a single composite is taken apart, and so is one composite for a plain example left alone.
        if inputs == 1 and batch_size > 1:
            inputs = 0
        if len(plain) + len(chosen) - inputs * k == 1 and inputs > 0 and batch_size > 1:
            inputs -= 2 if inputs == 2 else 1
        mixed, over = chosen[: inputs * k], chosen[inputs * k :]
        whole = Groups(torch.cat([plain, over]), WHOLE_FORM)
        size = max(min(2, batch_size), batch_size // k) if self.keep_steps else batch_size
        composite = Groups(mixed.view(k, inputs), Form(constituents=k), batch_size=size)
        return [whole, composite], mixed, int(skip.sum())

    def _report(
        self,
        before: Tensor,
        region: Tensor,
        mixed: Tensor,
        skipped: int,
        thresholds: Thresholds,
        plan: Plan,
        moment: Moment,
    ) -> dict[str, Any]:
        """What the epoch about to run is made of; written with its metrics."""
        total = len(region)
        was, now = before != NOT_MIXED, region != NOT_MIXED
        reasons = region.cpu()[mixed]
        return {
            "mixed": len(mixed) / total,
            "mixed_region1": int((reasons == REGION_1).sum()) / total,
            "mixed_region3": int((reasons == REGION_3).sum()) / total,
            "skipped": skipped / total,
            "moved_to_mixed": int((~was & now).sum()) / total,
            "moved_to_unmixed": int((was & ~now).sum()) / total,
            "batches_saved": math.ceil(total / moment.batch_size) - len(plan),
            "cost_saved": total - plan.cost,
            **thresholds.as_metrics(),
        }


@dataclass(frozen=True)
class MixTrainCutMix(MixTrainMethod):
    """MixTrain with CutMix (RandPatch) and split propagation: two half pictures a composite, answered one by one."""

    name: ClassVar[str] = "mixtrain-cutmix"
    alias: ClassVar[str | None] = "intertrain-randpatch"
    split: bool = option(True, "split propagation, pooling each constituent's region apart; the paper: true")
    patch: str = option(
        "half",
        "half: the left, right, top or bottom half; rect: a random rectangle; the paper analyses shares of one half",
        choices=("half", "rect"),
    )
    ratio: str = option("equal", "the first constituent's share: equal, beta, or a number; the paper: one half")

    @property
    def mixer(self) -> Mixer:
        return CutMix(ratio=parse_ratio(self.ratio, ("equal", "beta")), split=self.split, patch=self.patch)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_ratio(self.ratio, ("equal", "beta"))


@dataclass(frozen=True)
class MixTrainMixUp(MixTrainMethod):
    """MixTrain with MixUp (LinAvg) and adaptive mixing: the harder example gets the larger weight."""

    name: ClassVar[str] = "mixtrain-mixup"
    alias: ClassVar[str | None] = "intertrain-linavg"
    ratio: str = option(
        "adaptive",
        "the first constituent's share: adaptive, equal, beta, or a number; the paper: adaptive, by recorded loss",
    )

    @property
    def mixer(self) -> Mixer:
        return MixUp(ratio=parse_ratio(self.ratio, ("adaptive", "equal", "beta")))

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_ratio(self.ratio, ("adaptive", "equal", "beta"))


OPERATORS: dict[str, type[MixTrainMethod]] = {
    "cutmix": MixTrainCutMix,
    "randpatch": MixTrainCutMix,
    "mixup": MixTrainMixUp,
    "linavg": MixTrainMixUp,
}


def MixTrain(operator: str = "cutmix", **options: Any) -> MixTrainMethod:
    """MixTrain with one of its operators: `MixTrain("cutmix")`, `MixTrain("mixup", k=2)`."""
    if operator not in OPERATORS:
        raise LeanError(f"operator '{operator}' is not known; there are {', '.join(OPERATORS)}.")
    known = [f.name for f in dataclasses.fields(OPERATORS[operator])]
    for name in options:
        if name not in known:
            raise LeanError(f"MixTrain(\"{operator}\") has no option '{name}'; it has {', '.join(known)}.")
    if isinstance(options.get("ratio"), float):
        options["ratio"] = str(options["ratio"])
    return OPERATORS[operator](**options)


def parse_ratio(text: str, words: tuple[str, ...]) -> float | str:
    """A share strictly between 0 and 1, or one of the words."""
    if text in words:
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise LeanError(f"ratio is '{text}', but must be {', '.join(words)} or a number between 0 and 1.")
    return value


@dataclass(frozen=True)
class Thresholds:
    """L_corr, L_incorr and what lies between (Eq. 7); infinite rather than undefined where a kind has not occurred."""

    correct: float | None
    incorrect_mean: float | None
    mean: float

    @staticmethod
    def of(sums: Tensor) -> Thresholds:
        def ratio(loss: float, count: float) -> float | None:
            return loss / count if count else None

        right, wrong, everything = sums.tolist()
        mean = ratio(*everything)
        return Thresholds(ratio(*right), ratio(*wrong), -math.inf if mean is None else mean)

    @property
    def middle(self) -> float:
        """L_mid. With no wrong example yet, L_corr: mix what is easier than average; with no right one, mix nothing."""
        if self.correct is None:
            return -math.inf
        return self.correct if self.incorrect_mean is None else (self.correct + self.incorrect_mean) / 2

    @property
    def incorrect(self) -> float:
        """L_incorr, above which region 3 lies."""
        return math.inf if self.incorrect_mean is None else self.incorrect_mean

    def as_metrics(self) -> dict[str, Any]:
        known = self.correct is not None and self.incorrect_mean is not None
        metrics: dict[str, Any] = {
            "L_corr": self.correct,
            "L_mid": self.middle if known else None,
            "L_incorr": self.incorrect_mean,
        }
        if self.correct is not None and self.incorrect_mean is None:
            metrics["note"] = "no example has been classified wrongly yet, so those below L_corr are mixed"
        if self.correct is None and self.incorrect_mean is not None:
            metrics["note"] = "no example has been classified correctly yet, so none below L_mid is mixed"
        return metrics

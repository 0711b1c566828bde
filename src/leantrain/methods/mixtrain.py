"""MixTrain (first published as InterTrain): mix two inputs into one, where the examples' own losses allow it.

Krithivasan, Sen, Venkataramani, Raghunathan: MixTrain: accelerating DNN training via input mixing (Frontiers in
Artificial Intelligence 7, 2024). Section numbers in this file are of that paper; the choices made where it is silent
are named in docs/methods/mixtrain.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, Panel, Reason, State, register_method
from leantrain.mixing import Composite, CutMix, Mixer, MixUp
from leantrain.options import instead_of_ending, option, options_of
from leantrain.plan import Groups, Plan, at

SELECTIONS = ("region13", "region1", "region3", "all", "correct", "mean-loss", "all-region3", "random")
NOT_MIXED, REGION_1, REGION_3, SKIPPED_3 = 0, 1, 3, 4
EMA_WEIGHT = 0.5  # of the newest epoch, where averages are exponential
THRESHOLDS = {"L_corr": "mean of the right", "L_mid": "half-way", "L_incorr": "mean of the wrong"}


@dataclass(frozen=True)
class MixTrainMethod(Method):
    """What both operators share: selective mixing (§ 4.2)."""

    former: ClassVar[Mapping[str, Callable[[str], str]]] = {"whole_ending": instead_of_ending}
    reasons: ClassVar[Mapping[int, Reason]] = {
        REGION_1: Reason("mixed, region 1 (low loss)"),
        REGION_3: Reason("mixed, region 3 (high, rising loss)"),
        SKIPPED_3: Reason("skipped, region 3 (high, rising loss)", skipped=True),
    }
    panels: ClassVar[tuple[Panel, ...]] = (
        Panel(
            "shares",
            "Share of the examples mixed, by region",
            "What is left of each bar was trained whole.",
            {
                "mixed_region1": "mixed, region 1 (low loss)",
                "mixed_region3": "mixed, region 3 (high, rising loss)",
                "skipped": "skipped",
            },
        ),
        Panel(
            "lines",
            "Thresholds",
            "The paper mixes below L_mid, and above L_incorr where a loss has risen.",
            THRESHOLDS,
            on_losses=True,
        ),
    )

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
    correct_only: bool = option(
        False, "region 1 takes only what was classified correctly, however low its loss; not in the paper"
    )
    statistics: bool = option(
        True, "composites count in BatchNorm's running statistics; the paper: true, as it says nothing of them"
    )

    @property
    def mixer(self) -> Mixer:
        raise NotImplementedError

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(composite=self.constituents),)

    def init(self, ledger: Ledger) -> State:
        ledger.register("region", torch.uint8, NOT_MIXED)  # for which it is mixed when it is its turn
        ledger.register("reason", torch.uint8, NOT_MIXED, history=True)  # for which it was mixed or skipped this epoch
        ledger.register("rises", torch.int8, -1)  # -1: the last loss was not an unmixed one, so nothing to compare
        ledger.register("left", torch.int8, 0)  # epochs of region-3 mixing still to come
        return {"sums": torch.zeros(3, 2, dtype=torch.float64), "report": {}}  # correct, incorrect, all × loss, count

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        before = ledger["reason"].clone()
        fresh, thresholds, region = self._judge(state, ledger, moment)
        index = draft.index.to(region.device)
        if self.select == "all":
            region = torch.full_like(before, REGION_1)
        if self.select == "random":  # as many as the rule would choose, but any
            region = region.clone()
            region[index] = region[index][torch.randperm(len(index), generator=rng).to(region.device)]
        ledger["region"].copy_(region)
        if len(draft) < len(ledger):  # what other methods took out is neither mixed nor skipped
            there = torch.zeros_like(region, dtype=torch.bool)
            there[index] = True
            region = torch.where(there, region, NOT_MIXED)
        drafted, mixed, skips = self._grouped(draft, region.cpu(), moment.batch_size, rng)
        ledger["reason"].copy_(torch.where(region == REGION_3, SKIPPED_3, region) if skips else region)
        report = self._report(before, ledger["reason"], mixed, thresholds, draft, drafted, moment)
        return drafted, {"sums": fresh, "report": report}

    def idle(self, state: State, ledger: Ledger, moment: Moment) -> State:
        """Mix nothing, but go on judging, so that mixing can start with the thresholds of all epochs before."""
        before = ledger["reason"].clone()
        fresh, thresholds, _ = self._judge(state, ledger, moment)
        for name in ("region", "reason", "left"):
            ledger[name].zero_()
        whole = Draft.everything(len(ledger))
        report = self._report(before, ledger["reason"], whole.index[:0], thresholds, whole, whole, moment)
        return {"sums": fresh, "report": report}

    def _judge(self, state: State, ledger: Ledger, moment: Moment) -> tuple[Tensor, Thresholds, Tensor]:
        """The running sums after the epoch just ended, the thresholds, and why each example may be mixed next."""
        ended, sums = moment.epoch - 1, state["sums"]
        fresh = self._averaged(sums, ledger, ended) if ended >= 0 else sums
        thresholds = Thresholds.of(fresh if self.include_last else sums)
        region = self._decide(ledger, ended, thresholds) if ended >= 0 else torch.zeros_like(ledger["region"])
        return fresh, thresholds, region

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        return dict(state["report"])

    def _averaged(self, sums: Tensor, ledger: Ledger, epoch: int) -> Tensor:
        """The running sums after one more epoch. Only unmixed losses count: a mixed one is not comparable."""
        unmixed = ledger.seen_in(epoch) & ledger.unmixed() & ledger["loss"].isfinite()
        rows = []
        for chosen in (unmixed & ledger["correct"], unmixed & ~ledger["correct"]):
            total = torch.where(chosen, ledger["loss"], 0).sum(dtype=torch.float64)
            rows.append(torch.stack([total, chosen.count_nonzero().double()]))
        now = torch.stack([*rows, rows[0] + rows[1]]).cpu()
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
        loss, seen = ledger["loss"], ledger.seen_in(ended)
        unmixed, mixed = seen & ledger.unmixed(), seen & (ledger["constituents"] > 1)
        # Who had no turn in that epoch, as another method left it out, stays as it was judged the last time.
        turn = seen | (ledger["reason"] == SKIPPED_3)
        rises = self._count_rises(ledger, unmixed, turn)

        low = self._is_low(ledger, thresholds)
        kept = mixed & (ledger["region"] == REGION_1)
        region = ((unmixed | kept) & low).to(torch.uint8) * REGION_1
        if self.select == "region3":
            region.zero_()

        # One epoch of region 3 is over, mixed or skipped; an odd one out was trained whole and is judged anew.
        left = torch.where(unmixed, 0, (ledger["left"] - 1).clamp_(min=0))
        if self.select in ("region13", "region3", "all-region3", "random"):
            every = self.select == "all-region3"  # judged anew in every epoch, mixed or not
            high = (loss > thresholds.incorrect) & (seen if every else unmixed & (rises >= self.k))
            left = torch.where(high & (region == NOT_MIXED), 1 if every else self.k, left)
        ledger["left"].copy_(torch.where(turn, left, ledger["left"]))
        return torch.where(turn, torch.where(left > 0, REGION_3, region), ledger["region"])

    def _count_rises(self, ledger: Ledger, unmixed: Tensor, turn: Tensor) -> Tensor:
        """How many times in a row each example's unmixed loss has risen."""
        rises = ledger["rises"]
        risen = (rises >= 0) & (ledger["loss"] > ledger["previous"])
        now = torch.where(risen, (rises + 1).clamp_(max=100), 0)
        rises.copy_(torch.where(turn, torch.where(unmixed, now, -1), rises))
        return rises

    def _is_low(self, ledger: Ledger, thresholds: Thresholds) -> Tensor:
        if self.select == "correct":
            return ledger["correct"]
        low = ledger["loss"] < (thresholds.mean if self.select == "mean-loss" else thresholds.middle)
        return low & ledger["correct"] if self.correct_only else low

    def _grouped(
        self, draft: Draft, region: Tensor, batch_size: int, rng: torch.Generator
    ) -> tuple[Draft, Tensor, bool]:
        """Random groups of k from what is mixed, the rest as it was; what is left over of the mixed is too.

        Returns:
            The draft, the examples that are mixed, and whether those of region 3 are skipped.
        """
        skip = self.region3 == "skip" and bool((region[draft.index] != REGION_3).any())  # never all of them
        groups, mixed = list[Groups](), list[Tensor]()
        for group in draft.groups:
            reason = at(region, group.index)
            whole, composite = self._paired(group, reason, skip, batch_size, rng)
            groups += [whole, composite]
            mixed.append(composite.index.reshape(-1))
        return draft.regroup(groups), mixed[0] if len(mixed) == 1 else torch.cat(mixed), skip

    def _paired(
        self, group: Groups, reason: Tensor, skip: bool, batch_size: int, rng: torch.Generator
    ) -> tuple[Groups, Groups]:
        """One group of single examples as two: those that stay single, and composites."""
        k = self.constituents
        wanted = (reason == REGION_1) if skip else (reason != NOT_MIXED)
        chosen = wanted.nonzero().squeeze(1).int()
        chosen = at(chosen, torch.randperm(len(chosen), generator=rng, dtype=torch.int32))
        plain = (reason == NOT_MIXED).nonzero().squeeze(1).int()
        inputs = len(chosen) // k
        # No batch of one: a single composite is taken apart, and so is one composite for a plain example left alone.
        if inputs == 1 and batch_size > 1:
            inputs = 0
        if len(plain) + len(chosen) - inputs * k == 1 and inputs > 0 and batch_size > 1:
            inputs -= 2 if inputs == 2 else 1
        mixed, over = chosen[: inputs * k], chosen[inputs * k :]
        size = max(min(2, batch_size), batch_size // k) if self.keep_steps else group.batch_size
        form = group.form.also(Composite.name, k)
        composites = dataclasses.replace(group.take(mixed.view(k, inputs)), form=form, batch_size=size)
        singles = torch.cat([plain, over])
        del chosen, mixed, over, plain  # at millions of examples each is large
        return group.take(singles), composites

    def _report(
        self,
        before: Tensor,
        reason: Tensor,
        mixed: Tensor,
        thresholds: Thresholds,
        given: Draft,
        drafted: Draft,
        moment: Moment,
    ) -> dict[str, Any]:
        """What the epoch about to run is made of, written with its metrics; savings are against the draft given."""
        total = len(reason)
        was, now = before != NOT_MIXED, reason != NOT_MIXED
        reasons = at(reason.cpu(), mixed)
        return {
            "mixed": len(mixed) / total,
            "mixed_region1": int((reasons == REGION_1).count_nonzero()) / total,
            "mixed_region3": int((reasons == REGION_3).count_nonzero()) / total,
            "skipped": int((reason == SKIPPED_3).count_nonzero()) / total,
            "moved_to_mixed": int((~was & now).count_nonzero()) / total,
            "moved_to_unmixed": int((was & ~now).count_nonzero()) / total,
            "batches_saved": given.count_batches(moment.batch_size) - drafted.count_batches(moment.batch_size),
            "cost_saved": given.cost - drafted.cost,
            **thresholds.as_metrics(),
        }


@register_method
@dataclass(frozen=True)
class MixTrainCutMix(MixTrainMethod):
    """MixTrain with CutMix (RandPatch) and split propagation: two half pictures a composite, answered one by one."""

    name: ClassVar[str] = "mixtrain-cutmix"
    aliases: ClassVar[tuple[str, ...]] = ("intertrain-randpatch",)
    split: bool = option(True, "split propagation, pooling each constituent's region apart; the paper: true")
    patch: str = option(
        "half",
        "half: the left, right, top or bottom half; rect: a random rectangle; the paper analyses shares of one half",
        choices=("half", "rect"),
    )
    ratio: str = option("equal", "the first constituent's share: equal, beta, or a number; the paper: one half")

    @property
    def mixer(self) -> Mixer:
        ratio = parse_ratio(self.ratio, ("equal", "beta"))
        return CutMix(ratio=ratio, split=self.split, patch=self.patch, statistics=self.statistics)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_ratio(self.ratio, ("equal", "beta"))


@register_method
@dataclass(frozen=True)
class MixTrainMixUp(MixTrainMethod):
    """MixTrain with MixUp (LinAvg) and adaptive mixing: the harder example gets the larger weight."""

    name: ClassVar[str] = "mixtrain-mixup"
    aliases: ClassVar[tuple[str, ...]] = ("intertrain-linavg",)
    ratio: str = option(
        "adaptive",
        "the first constituent's share: adaptive, equal, beta, or a number; the paper: adaptive, by recorded loss",
    )

    @property
    def mixer(self) -> Mixer:
        ratio = parse_ratio(self.ratio, ("adaptive", "equal", "beta"))
        return MixUp(ratio=ratio, statistics=self.statistics)

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
    kind = OPERATORS[operator]
    known = [field.name for field in options_of(kind)]
    for name in options:
        if name in kind.former:
            instead = kind.former[name](str(options[name]))
            raise LeanError(f"MixTrain has no option '{name}' any more; write {instead} instead.")
        if name not in known:
            raise LeanError(f"MixTrain(\"{operator}\") has no option '{name}'; it has {', '.join(known)}.")
    if isinstance(options.get("ratio"), float):
        options["ratio"] = str(options["ratio"])
    return kind(**options)


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

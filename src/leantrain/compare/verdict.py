"""The verdict: what the seeds of a comparison allow us to say, in numbers and in words."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leantrain.compare.blocks import Pool

GOOD, BAD, OPEN = "good", "bad", "open"
MOST_SEEDS = 30  # nobody trains more to settle a question as small as that
LEAST_SAVING = 0.005  # what is less reads as 0 % and is within the noise of any clock


@dataclass(frozen=True)
class Difference:
    """A mean difference of accuracy, paired by seed, with its 95 % interval; all in percentage points.

    Attributes:
        mean: over the seeds.
        half: half the interval's width (Student's t); infinite with one seed.
        seeds: how many pairs it rests on.
        deviation: of one pair; None where it is not known.
        freedom: the degrees of freedom of the deviation: the pairs less one, or more where it is pooled over rows.
    """

    mean: float
    half: float
    seeds: int
    deviation: float | None = None
    freedom: int | None = None

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def as_json(self) -> dict[str, float | int | None]:
        """As JSON can hold it, which knows no infinity."""
        return {**dataclasses.asdict(self), "half": None if math.isinf(self.half) else self.half}

    @staticmethod
    def from_json(content: dict[str, Any]) -> Difference:
        return Difference(**{**content, "half": math.inf if content["half"] is None else content["half"]})

    def seeds_to_leave(self, level: float) -> int | None:
        """How many seeds in all would tell it from a level, if it stays as it is; None where that is not known.

        More than `MOST_SEEDS` are counted as one more than that.
        """
        if self.deviation is None or self.freedom is None or self.seeds < 2:
            return None
        per_seed = self.freedom / (self.seeds - 1)
        for seeds in range(self.seeds + 1, MOST_SEEDS + 1):
            if half_width(self.deviation, round(per_seed * (seeds - 1)), seeds) < abs(self.mean - level):
                return seeds
        return MOST_SEEDS + 1

    def text(self) -> str:
        return f"{self.mean:+.2f}" if math.isinf(self.half) else f"{self.mean:+.2f} ± {self.half:.2f}"


def difference(
    ours: Sequence[float], theirs: Sequence[float], examples: int, pool: Pool | None = None
) -> Difference | None:
    """The difference of two lists of accuracies in 0…1, seed by seed, measured on so many test examples.

    Accuracies are counts, so differences that happen to be equal are not without spread: it is taken to be at least
    that of rounding two counts, √(1/6) examples.

    Args:
        pool: what rows that spread like these two tell of a pair's deviation; it is taken to be no less than theirs,
            and known as well as they know it.
    """
    pairs = [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    if not pairs:
        return None
    mean = statistics.fmean(pairs)
    if len(pairs) == 1:
        return Difference(mean, math.inf, 1)
    deviation, freedom = max(statistics.stdev(pairs), 100 / examples / math.sqrt(6)), len(pairs) - 1
    if pool is not None:
        deviation, freedom = max(deviation, 100 * pool.deviation), pool.freedom
    return Difference(mean, half_width(deviation, freedom, len(pairs)), len(pairs), deviation, freedom)


def half_width(deviation: float, freedom: int, seeds: int) -> float:
    """Half the width of the 95 % interval of a mean over so many pairs."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975)) * deviation / math.sqrt(seeds)


@dataclass(frozen=True)
class Verdict:
    """What can be said about a method.

    Attributes:
        standing: GOOD where it is worth it, BAD where it is not, OPEN where the seeds do not say.
        text: the same in words.
    """

    standing: str
    text: str


def verdict(
    to_full: Difference | None,
    to_control: Difference | None,
    saving: float,
    unit: str,
    instead: str,
    margin: float,
) -> Verdict:
    """What can be said about a method, for the table and the page alike.

    Args:
        to_full: its difference to full training.
        to_control: its difference to plain training at the same cost; None where no control was run.
        saving: the share of time or cost it saves.
        unit: what is saved, "time" or "cost".
        instead: the control in words, "10 epochs instead of 16".
        margin: points within which two accuracies count as the same.
    """
    if to_full is None:
        return Verdict(OPEN, "no full training to compare with")
    if to_full.seeds < 2:
        return Verdict(OPEN, "not enough seeds to tell")
    if saving < LEAST_SAVING:
        return Verdict(BAD, f"saves nothing: it takes {1 - saving:.2f}× the {unit} of full training")
    kept, lost = to_full.low >= -margin, to_full.high < -margin
    if to_control is None or to_control.seeds < 2:
        return Verdict(BAD if lost else OPEN, "no saving is claimed without its equal-budget control")
    against = _against_control(to_control, instead, margin)
    if kept:
        claim = f"saves {saving:.0%} of the {unit} at the same accuracy"
        return Verdict(against.standing, claim if against.standing == GOOD else f"{claim}, {against.text}")
    if lost:
        return Verdict(BAD, f"loses {-to_full.mean:.1f} points for {saving:.0%} less {unit}; {against.text}")
    return Verdict(
        BAD if against.standing == BAD else OPEN,
        f"not enough seeds to tell whether accuracy is kept at {saving:.0%} less {unit}{_more(to_full, -margin)}; "
        f"{against.text}",
    )


def _against_control(to_control: Difference, instead: str, margin: float) -> Verdict:
    if to_control.low > 0:
        return Verdict(GOOD, f"better than training {instead}")
    if to_control.high < 0:
        return Verdict(BAD, f"worse than training {instead}")
    if to_control.high <= margin:
        return Verdict(BAD, f"no better than training {instead}")
    level = 0.0 if to_control.mean > margin / 2 else margin  # what it would take less to tell it from
    return Verdict(OPEN, f"not enough seeds to tell it from training {instead}{_more(to_control, level)}")


def _more(open_question: Difference, level: float) -> str:
    """How many more seeds would settle it, in brackets; nothing where that is not known."""
    seeds = open_question.seeds_to_leave(level)
    if seeds is None:
        return ""
    return (
        f" ({f'more than {MOST_SEEDS}' if seeds > MOST_SEEDS else f'about {seeds - open_question.seeds} more'} would)"
    )


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation, where there are two values or more."""
    return statistics.stdev(values) if len(values) > 1 else None

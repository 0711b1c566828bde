"""What a run wrote down: its settings, metrics, history and thresholds, and the diagnostics that need nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from leantrain.errors import LeanError
from leantrain.ledger import Ledger
from leantrain.methods import Chain, Moment, chain, choose_method
from leantrain.methods.mixtrain import MixTrainMethod
from leantrain.run.config import TrainConfig
from leantrain.run.folder import RunFolder

Numbers = dict[str, Any]
Array = np.ndarray[Any, Any]
THRESHOLDS = ("L_corr", "L_mid", "L_incorr")
HISTOGRAM_BINS = 40
MOST_BARS = 10
TENTHS = 10
OFTEN = {"correct": 0.6, "wrong": 0.7}
"""Shares of the epochs for which the papers say how many examples exceed them in region 3."""


class LeftOut(Exception):
    """A figure that this run cannot give, and why."""


@dataclass(frozen=True, eq=False)
class Record:
    """What a run wrote into its folder, read once.

    Attributes:
        rows: the metrics, one per finished epoch.
        saved: the last checkpoint; None where there is none.
    """

    folder: RunFolder
    config: TrainConfig
    rows: list[Numbers]
    saved: Numbers | None

    @staticmethod
    def read(folder: RunFolder, log: Callable[[str], object] = lambda line: None) -> Record:
        """Read a finished or a cut run.

        Args:
            log: gets a sentence where the last checkpoint is damaged and the one before it was read.

        Raises:
            LeanError: the folder holds no run, or one that has saved no weights yet.
        """
        config = folder.config()
        folder.check_weights()
        return Record(folder, config, folder.rows(), folder.checkpoint(log))

    @cached_property
    def mixtrain(self) -> tuple[int, MixTrainMethod] | None:
        """MixTrain and its place in the run's chain of methods; None where it is not in it."""
        methods = enumerate(self.method.methods)
        return next(((place, method) for place, method in methods if isinstance(method, MixTrainMethod)), None)

    @cached_property
    def method(self) -> Chain:
        """The run's methods, as a chain of one or more."""
        return chain(choose_method(self.config.method, self.config.budget)[0])

    def metric(self, row: Numbers, name: str) -> Any:
        """What MixTrain reported in an epoch's row; None where it did not."""
        return None if self.mixtrain is None else row.get(self.method.metric_name(self.mixtrain[0], name))

    @cached_property
    def thresholds(self) -> dict[int, dict[str, float]]:
        """By epoch: what its losses were judged by, which is written in the next epoch's row.

        What comes after the last row is in the checkpoint, or is what the method would plan next.
        """
        rows = {row["epoch"]: {name: self.metric(row, name) for name in THRESHOLDS} for row in self.rows}
        if rows:
            after = max(rows) + 1
            rows[after] = self._report_of(after)
        return {
            epoch - 1: {name: row[name] for name in THRESHOLDS}
            for epoch, row in sorted(rows.items())
            if epoch > 0 and row.get("L_mid") is not None
        }

    def _report_of(self, epoch: int) -> Numbers:
        if self.saved is None or self.mixtrain is None:
            return {}
        (place, method), lean = self.mixtrain, self.saved["lean"]
        planned = -1 if lean["plan"] is None else lean["plan"]["epoch"]
        state = lean["states"][place]
        if planned == epoch - 1:  # judge what it recorded, without planning another epoch
            ledger = Ledger(len(lean["ledger"]["loss"]))
            ledger.load_state_dict(lean["ledger"])
            moment = Moment(epoch, 1.0, lean["epochs"], lean["planned_for"])
            state = method.idle(state, ledger.scoped(str(place)), moment)
        elif planned != epoch:  # cut inside that epoch, its report is there already
            return {}
        return dict(state["report"])

    @cached_property
    def examples(self) -> int | None:
        """How many training examples the run had."""
        result = self.folder.result()
        if result is not None:
            return int(result["train_examples"])
        return None if self.saved is None else len(self.saved["lean"]["ledger"]["loss"])

    @cached_property
    def epochs(self) -> list[int]:
        """The epochs whose history is there."""
        return self.folder.epochs()

    def check_epoch(self, epoch: int | None) -> None:
        """Refuse an epoch that the history does not hold; without any history its figure is left out anyway."""
        if epoch is not None and self.epochs and epoch not in self.epochs:
            held = f"{self.epochs[0] + 1} to {self.epochs[-1] + 1}"
            raise LeanError(f"--epoch is {epoch + 1}, but the run's history holds epochs {held}.")

    def judged(self) -> Iterator[tuple[int, dict[str, Array], dict[str, float]]]:
        """Every epoch with a history and thresholds: its number, what was recorded, and the thresholds."""
        self.check_thresholds()
        if not self.epochs:
            raise LeftOut("the run kept no history (--no-history)")
        for epoch in self.epochs:
            if epoch in self.thresholds:
                yield epoch, self.folder.epoch(epoch), self.thresholds[epoch]

    def check_thresholds(self) -> None:
        """Leave a figure out that needs what only MixTrain knows."""
        if self.mixtrain is None:
            raise LeftOut(f"it shows MixTrain's thresholds, and the run used {self.config.method}")
        if not self.thresholds:
            raise LeftOut(
                "no epoch has thresholds: they need an epoch before it with both correct and wrong unmixed examples"
            )


def loss_distribution(record: Record, epoch: int | None) -> Numbers:
    """Fig. 5C: how the losses of one epoch lie about L_corr, L_mid and L_incorr."""
    judged = {number: (recorded, limits) for number, recorded, limits in record.judged()}
    if not judged:
        raise LeftOut("no epoch has both a history and thresholds")
    if epoch is not None and epoch not in judged:
        raise LeftOut(f"the losses of epoch {epoch + 1} were judged by no thresholds yet")
    chosen = max(judged) if epoch is None else epoch
    recorded, limits = judged[chosen]
    loss, correct = recorded["loss"].astype(np.float64), recorded["correct"]
    unmixed = recorded["constituents"] == 1
    seen = np.isfinite(loss)
    high = max(float(np.quantile(loss[seen], 0.995)), 1.25 * limits["L_incorr"])
    edges = np.linspace(0, high, HISTOGRAM_BINS + 1)

    def count(which: Array) -> list[int]:
        return [int(n) for n in np.histogram(np.minimum(loss[which & seen], high), edges)[0]]

    judged_now = seen & unmixed
    region = {
        "1": judged_now & (loss < limits["L_mid"]),
        "2": judged_now & (loss >= limits["L_mid"]) & (loss <= limits["L_incorr"]),
        "3": judged_now & (loss > limits["L_incorr"]),
    }
    return {
        "epoch": chosen,
        **limits,
        "edges": edges.tolist(),
        "unmixed_correct": count(unmixed & correct),
        "unmixed_wrong": count(unmixed & ~correct),
        "mixed": count(recorded["constituents"] > 1),
        "unmixed_in_region": {name: int(which.sum()) for name, which in region.items()},
    }


def efficacy(record: Record) -> Numbers:
    """Fig. 6: per epoch, the share of the correct and of the wrong unmixed examples whose loss is below L_mid."""
    found: Numbers = {"epochs": [], "correct_below": [], "wrong_below": [], "correct": [], "wrong": []}
    inside = {"correct": 0, "wrong": 0}
    for epoch, recorded, limits in record.judged():
        unmixed = recorded["constituents"] == 1
        below = recorded["loss"].astype(np.float64) < limits["L_mid"]
        found["epochs"].append(epoch)
        for name, which in (("correct", unmixed & recorded["correct"]), ("wrong", unmixed & ~recorded["correct"])):
            total, low = int(which.sum()), int((which & below).sum())
            inside[name] += low
            found[name].append(total)
            found[f"{name}_below"].append(low / total if total else None)
    if not found["epochs"]:
        raise LeftOut("no epoch has both a history and thresholds")
    for name, low in inside.items():
        total = sum(found[name])
        found[f"{name}_below_overall"] = low / total if total else None
    return found


def mixed_shares(record: Record) -> Numbers:
    """Fig. 7 and 9A: the share mixed per epoch by region, and the moves between the two sets."""
    if record.mixtrain is None:
        raise LeftOut(f"it shows what MixTrain mixes, and the run used {record.config.method}")
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    names = ("mixed_region1", "mixed_region3", "skipped", "moved_to_mixed", "moved_to_unmixed")
    return {
        "epochs": [row["epoch"] for row in record.rows],
        **{n: [record.metric(row, n) for row in record.rows] for n in names},
    }


def time_in_region3(record: Record, index: Array, correct: Array) -> Numbers:
    """Fig. 8: in how many of its unmixed epochs an example lay above L_incorr, by whether it is correct at the end.

    A mixed loss is not comparable with a threshold of unmixed ones, so epochs in which an example was mixed do not
    count for it.

    Args:
        index: the examples.
        correct: whether the model at the end recognises each.
    """
    inside, unmixed, epochs = np.zeros(len(index), int), np.zeros(len(index), int), 0
    for _, recorded, limits in record.judged():
        alone = recorded["constituents"][index] == 1
        inside += alone & (recorded["loss"][index].astype(np.float64) > limits["L_incorr"])
        unmixed += alone
        epochs += 1
    some = unmixed > 0
    width = -(-(epochs + 1) // MOST_BARS)  # epochs per bar
    edges = np.arange(0, epochs + 1 + width, width)
    numbers: Numbers = {"edges": edges.tolist(), "epochs": epochs, "never_unmixed": int((~some).sum())}
    for name, which in (("correct", correct[some]), ("wrong", ~correct[some])):
        times = inside[some][which]
        total = int(which.sum())
        counts = np.bincount(times // width, minlength=len(edges) - 1)
        often = float((times > OFTEN[name] * epochs).mean()) if total else None
        numbers[name] = {"examples": total, "counts": counts.tolist(), "above": OFTEN[name], "share_above": often}
    if not some.any():
        raise LeftOut("none of the examples looked at was unmixed in an epoch with thresholds")
    return numbers


def savings(record: Record) -> Numbers:
    """Fig. 10B: what each region saves of an epoch's cost, as a share of plain training's.

    A composite of k costs what one input does, so a mixed example saves 1 − 1/k of itself; a skipped one all of it.
    """
    if record.mixtrain is None:
        raise LeftOut(f"it shows what mixing saves, and the run used {record.config.method}")
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    saved = 1 - 1 / record.mixtrain[1].constituents

    def column(name: str) -> Array:
        return np.array([record.metric(row, name) or 0.0 for row in record.rows])

    region1, region3 = saved * column("mixed_region1"), saved * column("mixed_region3") + column("skipped")
    return {
        "epochs": [row["epoch"] for row in record.rows],
        "region1": region1.tolist(),
        "region3": region3.tolist(),
        "mean": {"region1": float(region1.mean()), "region3": float(region3.mean())},
    }


def runtime(record: Record) -> Numbers:
    """Fig. 14 of the first version: the mean cost of an epoch, over plain training's, in tenths of the run."""
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    length = record.examples
    if length is None:
        raise LeftOut("neither a result nor a checkpoint says how many examples there were")
    groups = np.array_split(np.arange(len(record.rows)), min(TENTHS, len(record.rows)))
    cost = np.array([row["cost"] / length for row in record.rows])
    return {
        "epochs": [[record.rows[group[0]]["epoch"], record.rows[group[-1]]["epoch"]] for group in groups],
        "cost": [float(cost[group].mean()) for group in groups],
    }


def storage(record: Record, image_bytes: int) -> Numbers | None:
    """What the ledger keeps of an example, and that as a share of the image's own bytes; None without a checkpoint."""
    if record.saved is None:
        return None
    fields = record.saved["lean"]["ledger"].values()
    kept = sum(field.element_size() * field.numel() / max(1, len(field)) for field in fields if field.ndim)
    return {"bytes_per_example": kept, "image_bytes": image_bytes, "overhead": kept / image_bytes}


def mean_loss(record: Record) -> Numbers:
    """Fig. 12 of the first version: the mean training loss of every epoch."""
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    return {"epochs": [row["epoch"] for row in record.rows], "loss": [row["train_loss"] for row in record.rows]}

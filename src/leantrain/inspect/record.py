"""What a run wrote down: its settings, metrics, history and thresholds, and the diagnostics that need nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from leantrain import checkpoint, history
from leantrain.config import TrainConfig, read_yaml
from leantrain.errors import LeanError
from leantrain.ledger import COMPOSITE, WHOLE, Ledger
from leantrain.methods import Method, Moment, parse_method
from leantrain.methods.mixtrain import MixTrainMethod
from leantrain.rng import generator

Numbers = dict[str, Any]
Array = np.ndarray[Any, Any]
THRESHOLDS = ("L_corr", "L_mid", "L_incorr")
HISTOGRAM_BINS = 40
SHARE_BINS = 10
OFTEN = {"correct": 0.6, "wrong": 0.7}
"""Shares of the epochs for which the papers say how many examples exceed them in region 3."""


class LeftOut(Exception):
    """A figure that this run cannot give, and why."""


@dataclass(frozen=True, eq=False)
class Record:
    """A run's folder.

    Attributes:
        rows: the metrics, one per finished epoch.
        saved: the last checkpoint; None where there is none.
    """

    folder: Path
    config: TrainConfig
    rows: list[Numbers]
    saved: Numbers | None

    @staticmethod
    def read(folder: Path) -> Record:
        """Read a finished or a cut run.

        Raises:
            LeanError: the folder holds no run, or one that has saved no weights yet.
        """
        from leantrain.train import read_rows

        if not (folder / "config.yaml").is_file():
            raise LeanError(f"'{folder}' holds no run (no config.yaml); give the folder that leantrain train wrote.")
        weights, cut = folder / "model.safetensors", folder / "checkpoint.pt"
        if not weights.exists() and not cut.exists():
            raise LeanError(
                f"the run in '{folder}' has saved no weights yet (model.safetensors or checkpoint.pt); "
                "let it train for an epoch first."
            )
        config = TrainConfig(**read_yaml(folder / "config.yaml"))
        saved = checkpoint.load(cut) if cut.exists() else None
        return Record(folder, config, read_rows(folder / "metrics.jsonl"), saved)

    @cached_property
    def method(self) -> Method:
        return parse_method(self.config.method)

    @cached_property
    def thresholds(self) -> dict[int, dict[str, float]]:
        """By epoch: what its losses were judged by, which is written in the next epoch's row.

        What comes after the last row is in the checkpoint, or is what the method would plan next.
        """
        rows = {row["epoch"]: row for row in self.rows}
        if rows:
            after = max(rows) + 1
            rows[after] = self._report_of(after)
        return {
            epoch - 1: {name: row[name] for name in THRESHOLDS}
            for epoch, row in sorted(rows.items())
            if epoch > 0 and row.get("L_mid") is not None
        }

    def _report_of(self, epoch: int) -> Numbers:
        if self.saved is None or not isinstance(self.method, MixTrainMethod):
            return {}
        lean = self.saved["lean"]
        planned = -1 if lean["plan"] is None else lean["plan"]["epoch"]
        if planned == epoch:  # cut inside that epoch
            return dict(lean["state"]["report"])
        if planned != epoch - 1:
            return {}
        ledger = Ledger(len(lean["ledger"]["loss"]))
        self.method.init(ledger)
        ledger.load_state_dict(lean["ledger"])
        moment = Moment(epoch, 1.0, lean["epochs"], self.config.batch_size)
        plan, state = self.method.plan(lean["state"], ledger, moment, generator(self.config.seed, "plan", epoch))
        return self.method.report(state, ledger, plan)

    @cached_property
    def epochs(self) -> list[int]:
        """The epochs whose history is there."""
        written = {row["epoch"] for row in self.rows}
        return [epoch for epoch in history.epochs_in(self.folder / "history") if epoch in written]

    def check_epoch(self, epoch: int | None) -> None:
        """Refuse an epoch that the history does not hold; without any history its figure is left out anyway."""
        if epoch is not None and self.epochs and epoch not in self.epochs:
            held = f"{self.epochs[0] + 1} to {self.epochs[-1] + 1}"
            raise LeanError(f"--epoch is {epoch + 1}, but the run's history holds epochs {held}.")

    def read_epoch(self, epoch: int) -> dict[str, Array]:
        return history.read_epoch(self.folder / "history", epoch)

    def judged(self) -> Iterator[tuple[int, dict[str, Array], dict[str, float]]]:
        """Every epoch with a history and thresholds: its number, what was recorded, and the thresholds."""
        self.check_thresholds()
        if not self.epochs:
            raise LeftOut("the run kept no history (--no-history)")
        for epoch in self.epochs:
            if epoch in self.thresholds:
                yield epoch, self.read_epoch(epoch), self.thresholds[epoch]

    def check_thresholds(self) -> None:
        """Leave a figure out that needs what only MixTrain knows."""
        if not isinstance(self.method, MixTrainMethod):
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
    loss, correct, form = recorded["loss"].astype(np.float64), recorded["correct"], recorded["form"]
    seen = np.isfinite(loss)
    high = max(float(np.quantile(loss[seen], 0.995)), 1.25 * limits["L_incorr"])
    edges = np.linspace(0, high, HISTOGRAM_BINS + 1)

    def count(which: Array) -> list[int]:
        return [int(n) for n in np.histogram(np.minimum(loss[which & seen], high), edges)[0]]

    whole = seen & (form == WHOLE)
    region = {
        "1": whole & (loss < limits["L_mid"]),
        "2": whole & (loss >= limits["L_mid"]) & (loss <= limits["L_incorr"]),
        "3": whole & (loss > limits["L_incorr"]),
    }
    return {
        "epoch": chosen,
        **limits,
        "edges": edges.tolist(),
        "unmixed_correct": count((form == WHOLE) & correct),
        "unmixed_wrong": count((form == WHOLE) & ~correct),
        "mixed": count(form == COMPOSITE),
        "unmixed_in_region": {name: int(which.sum()) for name, which in region.items()},
    }


def efficacy(record: Record) -> Numbers:
    """Fig. 6: per epoch, the share of the correct and of the wrong unmixed examples whose loss is below L_mid."""
    found: Numbers = {"epochs": [], "correct_below": [], "wrong_below": [], "correct": [], "wrong": []}
    inside = {"correct": 0, "wrong": 0}
    for epoch, recorded, limits in record.judged():
        whole = recorded["form"] == WHOLE
        below = recorded["loss"].astype(np.float64) < limits["L_mid"]
        found["epochs"].append(epoch)
        for name, which in (("correct", whole & recorded["correct"]), ("wrong", whole & ~recorded["correct"])):
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
    if not isinstance(record.method, MixTrainMethod):
        raise LeftOut(f"it shows what MixTrain mixes, and the run used {record.config.method}")
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    names = ("mixed_region1", "mixed_region3", "skipped", "moved_to_mixed", "moved_to_unmixed")
    return {"epochs": [row["epoch"] for row in record.rows], **{n: [row[n] for row in record.rows] for n in names}}


def time_in_region3(record: Record, index: Array, correct: Array) -> Numbers:
    """Fig. 8: in which share of its unmixed epochs an example lay above L_incorr, by whether it is correct at the end.

    A mixed loss is not comparable with a threshold of unmixed ones, so epochs in which an example was mixed do not
    count for it.

    Args:
        index: the examples.
        correct: whether the model at the end recognises each.
    """
    inside, unmixed = np.zeros(len(index)), np.zeros(len(index))
    for _, recorded, limits in record.judged():
        whole = recorded["form"][index] == WHOLE
        inside += whole & (recorded["loss"][index].astype(np.float64) > limits["L_incorr"])
        unmixed += whole
    some = unmixed > 0
    share = inside[some] / unmixed[some]
    edges = np.linspace(0, 1, SHARE_BINS + 1)
    numbers: Numbers = {"edges": edges.tolist(), "never_unmixed": int((~some).sum())}
    for name, which in (("correct", correct[some]), ("wrong", ~correct[some])):
        # A tenth's own name is its lower edge; rounding keeps 3/10 out of the bin below.
        places = np.minimum((np.round(share[which] * SHARE_BINS, 9)).astype(int), SHARE_BINS - 1)
        total = int(which.sum())
        counts = np.bincount(places, minlength=SHARE_BINS)
        often = float((share[which] > OFTEN[name]).mean()) if total else None
        numbers[name] = {"examples": total, "counts": counts.tolist(), "above": OFTEN[name], "share_above": often}
    if not some.any():
        raise LeftOut("none of the examples looked at was unmixed in an epoch with thresholds")
    return numbers


def mean_loss(record: Record) -> Numbers:
    """Fig. 12 of the first version: the mean training loss of every epoch."""
    if not record.rows:
        raise LeftOut("no epoch is finished yet")
    return {"epochs": [row["epoch"] for row in record.rows], "loss": [row["train_loss"] for row in record.rows]}

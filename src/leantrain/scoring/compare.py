"""Scores beside each other: do they rank alike, would they prune the same examples, and what did a run really use?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from leantrain import history
from leantrain.config import TrainConfig, read_yaml
from leantrain.errors import LeanError
from leantrain.ledger import NEVER
from leantrain.scoring.scores import Scores, ids_of

if TYPE_CHECKING:
    from leantrain.data import ImageSet

FRACTIONS = 100
Array = np.ndarray[Any, Any]


def compare_scores(a: Scores, b: Scores) -> dict[str, Any]:
    """Compare two scores of the same examples, matched by id.

    Where several examples have the same score and a cut falls among them, each counts by its chance of being cut, as if
    lots were drawn on either side. So ties make no agreement: two constant scores overlap as chance does.

    Returns:
        common: examples that both score; only_a, only_b: those that one of them does.
        spearman: rank correlation, with the mean rank for equal scores; None where all scores of a side are equal.
        fractions: 0.01 … 1.00.
        overlap: at each, how many of the lowest by A are among the lowest by B, as a share.
        chance: what that would be between unrelated scores.
    """
    known = set(b.ids)
    common = [name for name in a.ids if name in known]
    if not common or a.classes != b.classes:  # ids may be places, which mean nothing in another set
        raise LeanError(
            f"the two scores have no example in common ('{a.ids[0]}' of class '{_class(a)}', … and '{b.ids[0]}' of "
            f"class '{_class(b)}', …); "
            "compare scores of the same data."
        )
    x, y = (side.values_for(common).double().numpy() for side in (a, b))
    length = len(common)
    counts = [max(1, round(number * length / FRACTIONS)) for number in range(1, FRACTIONS + 1)]
    return {
        "a": a.kind,
        "b": b.kind,
        "common": length,
        "only_a": len(a) - length,
        "only_b": len(b) - length,
        "spearman": spearman(x, y),
        "fractions": [number / FRACTIONS for number in range(1, FRACTIONS + 1)],
        "overlap": [float(_lowest(x, count) @ _lowest(y, count)) / count for count in counts],
        "chance": [count / length for count in counts],
    }


def combined(a: Scores, b: Scores) -> Scores:
    """The mean of an example's ranks in two scores, 0…1: what both find easy is lowest."""
    known = set(b.ids)
    rows = a.rows([name for name in a.ids if name in known])
    ids = tuple(a.ids[row] for row in rows.tolist())
    ranks = [_ranks(side.values_for(ids).double().numpy()) for side in (a, b)]
    return Scores(
        values=torch.from_numpy((ranks[0] + ranks[1]) / (2 * len(ids))).float(),
        ids=ids,
        targets=a.targets[rows],
        classes=a.classes,
        kind="combined",
        cost=a.cost + b.cost,
        seconds=a.seconds + b.seconds,
        made_with={**a.made_with, "of": [a.kind, b.kind]},
    )


def images_with(scores: Scores) -> ImageSet | None:
    """The images that were scored, where they are still to be found."""
    from leantrain.train import load_images

    try:
        names = ("data", "train_limit", "validation")
        images = load_images(TrainConfig(**{name: scores.made_with[name] for name in names}))
    except (LeanError, KeyError):
        return None
    return images if ids_of(images.train) == scores.ids else None


def _class(scores: Scores) -> str:
    """Of the first example, to tell data sets apart by in a message."""
    return scores.classes[int(scores.targets[0])]


def spearman(x: Array, y: Array) -> float | None:
    """The correlation of ranks; equal values share the mean of theirs. None where all values of a side are equal."""
    ranks = np.stack([_ranks(x), _ranks(y)])
    centred = ranks - ranks.mean(1, keepdims=True)
    spread = np.sqrt((centred**2).sum(1))
    return float(centred[0] @ centred[1] / spread.prod()) if spread.all() else None


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    mean: Array = (last - (count - 1) / 2)[place]
    return mean


def _lowest(values: Array, count: int) -> Array:
    """Each one's chance of being among the `count` lowest: 1, 0, or a share where equal ones lie on the border."""
    border = np.partition(values, count - 1)[count - 1]
    below, equal = values < border, values == border
    chance: Array = below + equal * ((count - below.sum()) / equal.sum())
    return chance


def from_run(folder: Path, images: ImageSet | None = None) -> Scores:
    """How often a run used each example: the number of epochs that trained on it, in whatever form.

    Args:
        folder: what `leantrain train` wrote, with its history.
        images: the run's data set, where it is loaded already (`images_of`).
    """
    from leantrain.train import read_rows

    started = time.perf_counter()
    config = _config(folder)
    epochs = history.epochs_in(folder / "history")
    if not epochs:
        raise LeanError(f"'{folder}' has no history to count in; train without --no-history.")
    images = images or images_of(folder)
    used = torch.zeros(len(images.train))
    for epoch in epochs:
        form = history.read_epoch(folder / "history", epoch)["form"]
        if len(form) != len(used):
            raise _other_data(folder, config)
        used += torch.from_numpy(form != NEVER)
    return Scores(
        values=used,
        ids=ids_of(images.train),
        targets=images.train.targets,
        classes=images.classes,
        kind="use",
        cost=read_rows(folder / "metrics.jsonl")[-1]["total_cost"],
        seconds=time.perf_counter() - started,
        made_with={
            "data": config.data,
            "train_limit": config.train_limit,
            "validation": config.validation,
            "model": config.model,
            "method": config.method,
            "epochs": len(epochs),
            "seed": config.seed,
            "fingerprint": images.fingerprint,
        },
    )


def images_of(folder: Path) -> ImageSet:
    """The data set of a run, refused where it has changed since."""
    from leantrain.train import load_images

    config = _config(folder)
    images = load_images(config)
    made_with = yaml.safe_load((folder / "config.yaml").read_text()).get("made_with") or {}
    if made_with.get("data_fingerprint", images.fingerprint) != images.fingerprint:
        raise _other_data(folder, config)
    return images


def _config(folder: Path) -> TrainConfig:
    if not (folder / "config.yaml").is_file():
        raise LeanError(f"'{folder}' holds no run (no config.yaml); give the folder that leantrain train wrote.")
    return TrainConfig(**read_yaml(folder / "config.yaml"))


def _other_data(folder: Path, config: TrainConfig) -> LeanError:
    return LeanError(
        f"'{config.data}' is not what the run in '{folder}' was trained on; bring the data back as it was."
    )

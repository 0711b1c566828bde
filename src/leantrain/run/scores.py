"""Scores of images: made by models that are trained as `leantrain train` does, or counted in a run's history."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leantrain.data import ImageSet
from leantrain.errors import LeanError
from leantrain.run.config import PLAIN, TrainConfig
from leantrain.run.display import Display, Quiet
from leantrain.run.folder import RunFolder
from leantrain.run.loop import Run
from leantrain.run.setup import evaluation_batches, load_images
from leantrain.scoring.ensemble import Ensemble, Member, run_ensemble
from leantrain.scoring.kinds import Score, ScoringBatch, make_score
from leantrain.scoring.scores import Scores, ids_of

SETTINGS = (
    "data", "train_limit", "validation", "model", "width", "pretrained", "weights", "dropout", "batch_size",
    "accumulate_batches", "optimizer", "lr", "schedule", "label_smoothing", "precision", "seed",
)  # fmt: skip
"""Which of a run's settings the scores file records."""


def score_images(
    config: TrainConfig,
    images: ImageSet,
    kind: Score | str,
    *,
    models: int,
    epochs: int,
    gradients: str | None = None,
    display: Display | None = None,
) -> Scores:
    """Score a set's training images by models that are trained on them as `leantrain train` does, without a method.

    Args:
        config: resolved settings; its epochs, method, budget and output are not used.
        kind: a score or its name, for example "grand[gradients=last]".
        models: how many fresh models the score is the mean over.
        epochs: how long each is trained; its schedule decays fully within them.
        gradients: the same as `grand[gradients=…]`.
        display: what the user sees.
    """
    ensemble = Ensemble(make_score(kind, gradients=gradients), models, epochs)
    length, shown = len(images.train), display or Quiet()

    @contextlib.contextmanager
    def train_member(number: int, seed: int) -> Iterator[Member]:
        started = time.perf_counter()
        settings = dataclasses.replace(config, method=PLAIN, budget=None, epochs=epochs, seed=seed, out=None)
        share = _Share(shown, number / models, 1 / models, ensemble.trained_share(length))
        run = Run(settings, images, display=share)
        correct: list[Tensor] = []
        run.train_only(lambda: correct.append(run.lean.ledger["correct"].cpu().clone()))
        # An example's own gradient is taken in float32, of the network itself.
        model = run.module if ensemble.score.needs_gradients else run.model
        yield Member(model, _without_augmentation(run, share), torch.stack(correct), run.lean.cost)
        shown.note(f"model {number + 1} of {models}: {time.perf_counter() - started:.1f} s")

    shown.start(1, 0.0)
    try:
        outcome = run_ensemble(ensemble, length, config.seed, train_member)
    finally:
        shown.stop()
    return Scores(
        values=outcome.values,
        ids=ids_of(images.train),
        targets=images.train.targets,
        classes=images.classes,
        kind=ensemble.score.name,
        cost=outcome.cost,
        seconds=outcome.seconds,
        made_with=made_with(config, images, ensemble),
    )


def made_with(config: TrainConfig, images: ImageSet, ensemble: Ensemble) -> dict[str, Any]:
    """From what scores are made; the same again gives the same scores."""
    settings = {name: getattr(config, name) for name in SETTINGS}
    return {**settings, **ensemble.described(), "fingerprint": images.fingerprint}


class _Share(Quiet):
    """Passes the steps of one member on as steps of the whole: first its training, then the pass over it."""

    def __init__(self, whole: Display, start: float, span: float, trained: float) -> None:
        self._whole, self._start, self._span, self._trained = whole, start, span, trained

    def step(self, examples: int, progress: float) -> None:
        self._whole.step(examples, self._start + self._span * self._trained * progress)

    def asked(self, examples: int, progress: float) -> None:
        self._whole.step(examples, self._start + self._span * (self._trained + (1 - self._trained) * progress))


def _without_augmentation(run: Run, share: _Share) -> Iterator[ScoringBatch]:
    """The training images in order, as a test set would be shown."""
    images, done = run.images, 0
    for batch in evaluation_batches(images.train, run.config):
        batch = batch.to(run.device)
        yield run.augment.evaluate(batch.inputs), batch.targets, batch.index
        done += len(batch.index)
        share.asked(len(batch.index), done / len(images.train))


def images_with(scores: Scores) -> ImageSet | None:
    """The images that were scored, if they can still be found."""
    try:
        names = ("data", "train_limit", "validation")
        images = load_images(TrainConfig(**{name: scores.made_with[name] for name in names}))
    except (LeanError, KeyError):
        return None
    return images if ids_of(images.train) == scores.ids else None


def from_run(folder: Path, images: ImageSet | None = None) -> Scores:
    """How often a run used each example: the number of epochs that trained on it, in whatever form.

    Args:
        folder: what `leantrain train` wrote, with its history.
        images: the run's data set, if it is already loaded (`images_of`).
    """
    started, run = time.perf_counter(), RunFolder(folder)
    config, epochs = run.config(), run.epochs()
    if not epochs:
        raise LeanError(f"'{folder}' has no history to count in; train without --no-history.")
    images = images or images_of(folder)
    used = torch.zeros(len(images.train))
    for epoch in epochs:
        constituents = run.epoch(epoch)["constituents"]
        if len(constituents) != len(used):
            raise _other_data(folder, config)
        used += torch.from_numpy(constituents > 0)
    return Scores(
        values=used,
        ids=ids_of(images.train),
        targets=images.train.targets,
        classes=images.classes,
        kind="use",
        cost=run.rows()[-1]["total_cost"],
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
    run = RunFolder(folder)
    config = run.config()
    images = load_images(config)
    if run.made_with().get("data_fingerprint", images.fingerprint) != images.fingerprint:
        raise _other_data(folder, config)
    return images


def _other_data(folder: Path, config: TrainConfig) -> LeanError:
    return LeanError(
        f"'{config.data}' is not what the run in '{folder}' was trained on; bring the data back as it was."
    )

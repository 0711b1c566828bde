"""Evaluation: accuracy and its companions over a test set, accumulated on the device and read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.ranks import spread_buffers, unsynchronised, world_size
from leantrain.run.config import PLAIN, TrainConfig
from leantrain.run.folder import RunFolder
from leantrain.run.setup import load_images, load_saved, resolve

BINS = 15  # of the calibration error, the usual number


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model does on a set.

    Attributes:
        loss: mean cross-entropy.
        accuracy: share of examples classified correctly, 0…1.
        macro_f1: mean over classes of the F1 score.
        worst_class_accuracy: accuracy on the class that fares worst.
        calibration_error: expected calibration error of the top-1 confidence over 15 equal bins.
        class_accuracy: accuracy per class.
    """

    loss: float
    accuracy: float
    macro_f1: float
    worst_class_accuracy: float
    calibration_error: float
    class_accuracy: tuple[float, ...]


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Evaluation:
    """Run a model over (inputs, targets) batches in evaluation mode and leave its mode as it was.

    Several ranks each give their share of the batches, all must call it, and what they find is put together.
    """
    training = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    totals = _Totals(classes, device)
    spread_buffers(model)
    model.eval()
    try:
        with unsynchronised(model):
            for inputs, targets in batches:
                totals.add(model(inputs).float(), targets)
    finally:
        model.train(training)
    totals.put_together()
    return totals.result()


def evaluate_folder(folder: RunFolder, config: TrainConfig) -> dict[str, Any]:
    """Evaluate the weights that a run saved, on the set that `config` names."""
    from leantrain.run.loop import Run

    images = load_images(config)
    # As it was built, less what only matters before training: weights to start from, and the machine it ran on.
    precision = "auto" if config.precision == "fp16" else config.precision
    config = dataclasses.replace(
        config, method=PLAIN, pretrained=False, weights=None, device="auto", precision=precision
    )
    known = folder.made_with().get("classes", images.classes)
    if tuple(known) != images.classes:
        raise LeanError(
            f"the model in '{folder}' knows the classes {', '.join(known[:4])}, …, but {config.data} has "
            f"{', '.join(images.classes[:4])}, …; evaluate it on a set of the same classes."
        )
    run = Run(resolve(config, images), images)
    load_saved(run.module, folder, config, images)
    outcome = run.evaluate()
    return {
        "data": config.data,
        "model": config.model,
        "evaluated_on": images.evaluated_on,
        "test_accuracy": outcome.accuracy,
        "test_loss": outcome.loss,
        "macro_f1": outcome.macro_f1,
        "worst_class_accuracy": outcome.worst_class_accuracy,
        "calibration_error": outcome.calibration_error,
        "class_accuracy": dict(zip(images.classes, outcome.class_accuracy, strict=True)),
    }


class _Totals:
    """Running sums on the device."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        self.classes = torch.zeros(3, classes, dtype=torch.float32, device=device)  # hits, actual, predicted
        self.bins = torch.zeros(3, BINS, dtype=torch.float32, device=device)  # count, confidence, correct

    def add(self, logits: Tensor, targets: Tensor) -> None:
        self.loss += F.cross_entropy(logits, targets, reduction="sum").to(self.loss)
        confidence, predicted = logits.softmax(1).max(1)
        correct, ones = (predicted == targets).float(), torch.ones_like(confidence)
        for row, index, values in ((0, targets, correct), (1, targets, ones), (2, predicted, ones)):
            self.classes[row].index_add_(0, index, values)
        # A model gone wrong has no confidence; the loss says so, and the bins must not fail on it.
        bin_of = (confidence.nan_to_num(0.0) * BINS).long().clamp_(0, BINS - 1)
        self.bins.index_add_(1, bin_of, torch.stack([ones, confidence, correct]))

    def put_together(self) -> None:
        """Add what the other ranks have seen."""
        if world_size() > 1:
            for part in (self.loss, self.classes, self.bins):
                torch.distributed.all_reduce(part)

    def result(self) -> Evaluation:
        hits, actual, predicted = self.classes.cpu().double()
        if not actual.any():
            raise ValueError("nothing to evaluate on")
        count, confidence, correct = self.bins.cpu().double()
        present = actual > 0
        recall = hits / actual.clamp(min=1)
        f1 = 2 * hits / (actual + predicted).clamp(min=1)
        return Evaluation(
            loss=float(self.loss) / float(actual.sum()),
            accuracy=float(hits.sum() / actual.sum()),
            macro_f1=float(f1[present].mean()),
            worst_class_accuracy=float(recall[present].min()),
            calibration_error=float((confidence - correct).abs().sum() / count.sum()),
            class_accuracy=tuple(recall.tolist()),
        )

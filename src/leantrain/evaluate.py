"""Evaluation: accuracy and its companions over a test set, accumulated on the device and read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BINS = 15  # of the calibration error, as is usual


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
    """Run a model over (inputs, targets) batches in evaluation mode and leave its mode as it was."""
    training = model.training
    model.eval()
    totals: _Totals | None = None
    try:
        for inputs, targets in batches:
            logits = model(inputs).float()
            totals = totals or _Totals(classes, logits.device)
            totals.add(logits, targets)
    finally:
        model.train(training)
    if totals is None:
        raise ValueError("nothing to evaluate on")
    return totals.result()


class _Totals:
    """Running sums on the device."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.classes = classes
        self.confusion = torch.zeros(classes * classes, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        self.bins = torch.zeros(3, BINS, dtype=torch.float32, device=device)  # count, confidence, correct

    def add(self, logits: Tensor, targets: Tensor) -> None:
        self.loss += F.cross_entropy(logits, targets, reduction="sum").to(self.loss)
        confidence, predicted = logits.softmax(1).max(1)
        self.confusion += torch.bincount(targets * self.classes + predicted, minlength=self.classes**2)
        bin_of = (confidence * BINS).long().clamp_(max=BINS - 1)
        values = torch.stack([torch.ones_like(confidence), confidence, (predicted == targets).float()])
        self.bins.index_add_(1, bin_of, values)

    def result(self) -> Evaluation:
        confusion = self.confusion.view(self.classes, self.classes).cpu().double()
        count, confidence, correct = self.bins.cpu().double()
        total = confusion.sum()
        hits, actual, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        present = actual > 0
        recall = hits / actual.clamp(min=1)
        f1 = 2 * hits / (actual + predicted).clamp(min=1)
        return Evaluation(
            loss=float(self.loss) / float(total),
            accuracy=float(hits.sum() / total),
            macro_f1=float(f1[present].mean()),
            worst_class_accuracy=float(recall[present].min()),
            calibration_error=float((confidence - correct).abs().sum() / count.sum()),
            class_accuracy=tuple(recall.tolist()),
        )

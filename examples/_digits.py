"""What the examples share: scikit-learn's handwritten digits as 16×16 images, a small network, and its accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    import leantrain

EPOCHS = 8
BATCH_SIZE = 32
LR = 0.05


def digits(side: int = 16) -> tuple[TensorDataset, TensorDataset]:
    """1,500 digits to train on and 297 to test with."""
    images, labels = load_digits(return_X_y=True)
    small = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    inputs = F.interpolate(small, size=(side, side), mode="bilinear")
    targets = torch.tensor(labels)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]
    return TensorDataset(inputs[train], targets[train]), TensorDataset(inputs[test], targets[test])


def layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def small_cnn() -> nn.Module:
    """Three convolutions, whose last map has 8×8 cells, an average pool and a linear layer."""
    torch.manual_seed(0)
    features = (layer(1, 16, 2), layer(16, 32, 1), layer(32, 32, 1))
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


@torch.no_grad()
def accuracy(model: nn.Module, test_set: TensorDataset) -> float:
    """The share of the test set that the model gets right; it is left in training mode, as it was."""
    inputs, targets = test_set.tensors
    device = next(model.parameters()).device
    model.eval()
    logits: Tensor = model(inputs.to(device))
    model.train()
    return float((logits.argmax(1).cpu() == targets).float().mean())


def report(model: nn.Module, test_set: TensorDataset, lean: leantrain.Lean) -> None:
    """Print what the run reached and what it spent; `lean.cost` is in examples of plain training."""
    print(f"accuracy {accuracy(model, test_set):.2f}, cost {lean.cost_share:.2f} of plain training")

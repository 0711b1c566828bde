"""Your own collate function: the data set gives raw bytes, and a whole batch is made ready at once."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset

import leantrain  # + leantrain


class RawDigits(Dataset[tuple[Any, int]]):
    """8×8 digits as numpy arrays of bytes, as a decoder would give them."""

    def __init__(self) -> None:
        images, self.labels = load_digits(return_X_y=True)
        self.images = images.reshape(-1, 8, 8).astype(np.uint8)
        self.order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1500]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        place = int(self.order[index])
        return self.images[place], int(self.labels[place])


def collate(items: list[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
    small = torch.from_numpy(np.stack([image for image, _ in items])).float()[:, None] / 8 - 1
    return F.interpolate(small, scale_factor=2, mode="bilinear"), torch.tensor([label for _, label in items])


_, test_set = digits()
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, RawDigits(), method, epochs=EPOCHS, collate=collate)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

"""Your own criterion: the focal loss, one value per example.

leantrain minimises what your criterion gives and chooses examples by their plain cross-entropy, which it records beside
it: the choice is the same whatever the criterion's scale. Write it with `reduction="none"`.
"""

import torch
import torch.nn.functional as F
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from torch import Tensor

import leantrain  # + leantrain


def focal_loss(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy that counts less the surer the model is already (Lin et al., 2017)."""
    losses = F.cross_entropy(logits, targets, reduction="none")  # + leantrain: one loss per example, no mean
    return (1 - torch.exp(-losses)) ** gamma * losses


train_set, test_set = digits()
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS, criterion=focal_loss)  # + leantrain
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

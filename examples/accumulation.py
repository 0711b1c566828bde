"""Gradient accumulation: a batch that does not fit at once goes through the model in parts.

The parts' gradients add up to the gradient of the whole batch, also where they differ in size: each part's loss is
divided by the whole batch already, so there is nothing to divide by in the loop.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

import leantrain  # + leantrain

PARTS = 2

train_set, test_set = digits()
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain: the whole batch, as the optimiser sees it
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        for part in batch.chunks(PARTS):  # + leantrain
            lean.loss(part).backward()  # + leantrain
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

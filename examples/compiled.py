"""torch.compile: compile the model as ever and attach what it gives.

Whole images and composites are graphs of their own, and batches differ in size by one, so torch compiles a few graphs
before it settles. The first epochs are slow, as with any compiled model.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

import leantrain  # + leantrain

train_set, test_set = digits()
module = small_cnn()
model = torch.compile(module)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS)  # + leantrain: before the model's first forward
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(module, test_set, lean)

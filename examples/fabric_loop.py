"""Lightning Fabric: it keeps its part (devices, precision, backward), and leantrain gives the batches and the loss."""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from lightning.fabric import Fabric

import leantrain  # + leantrain

precision = "bf16-mixed" if torch.cuda.is_available() else "32-true"  # few CPUs compute in bf16
fabric = Fabric(accelerator="auto", devices=1, precision=precision)
fabric.launch()
train_set, test_set = digits()
module = small_cnn()
optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
model, optimizer = fabric.setup(module, optimizer)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain: in place of fabric.setup_dataloaders
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch.to(fabric.device))  # + leantrain
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

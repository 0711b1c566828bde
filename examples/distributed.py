"""Several processes, one model: DistributedDataParallel under torchrun.

    torchrun --nproc_per_node 2 examples/distributed.py

`batch_size` is of all processes together. Each gets its part of every batch, all of them hold the same ledger and the
same plan, and the gradient is the mean over the whole batch, however unequal the parts. There is no DistributedSampler,
and no set_epoch.
"""

import os

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import leantrain  # + leantrain

on_gpu = torch.cuda.is_available()
distributed.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
train_set, test_set = digits()
model = small_cnn().to(device)
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(trained, train_set, method, epochs=EPOCHS)  # + leantrain: after init_process_group
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch.to(device))  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

if distributed.get_rank() == 0:
    print(f"{distributed.get_world_size()} processes")
    report(model, test_set, lean)
distributed.destroy_process_group()

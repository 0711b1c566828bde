"""Hugging Face's Accelerate, on one process or several: `torchrun --nproc_per_node 2 examples/accelerate_loop.py`.

Attach to the model that `accelerator.prepare` gave, so that gradients are averaged over all processes. The batch size
is that of all processes together.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from accelerate import Accelerator

import leantrain  # + leantrain
from leantrain.integrations.accelerate import LeanLoader  # + leantrain

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=not torch.cuda.is_available())
train_set, test_set = digits()
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=2 * LR, momentum=0.9, weight_decay=5e-4)
model, optimizer = accelerator.prepare(model, optimizer)
lean = leantrain.attach(model, train_set, "mixtrain-cutmix", epochs=EPOCHS)  # + leantrain
loader = LeanLoader(lean.loader(batch_size=BATCH_SIZE))  # + leantrain
loader, scheduler = accelerator.prepare(loader, lean.scheduler(optimizer.optimizer, "onecycle"))  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = lean.loss(batch)  # + leantrain
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

if accelerator.is_main_process:
    report(accelerator.unwrap_model(model), test_set, lean)

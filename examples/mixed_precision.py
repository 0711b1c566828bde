"""Mixed precision: `lean.loss` under `torch.autocast`, in bf16; on a GPU in fp16 with a GradScaler.

`lean.loss` runs the model, so the autocast context goes around it. Losses are computed and recorded in fp32.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

import leantrain  # + leantrain

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
emulated = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"  # there bf16 is slower than fp32
train_set, test_set = digits()
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)  # bf16 needs none
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE, pin_memory=device.type == "cuda")  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        with torch.autocast(device.type, dtype, enabled=not emulated):
            loss = lean.loss(batch.to(device))  # + leantrain
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

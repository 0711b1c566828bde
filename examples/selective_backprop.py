"""Selective-Backprop: the model looks at every digit, and trains on those whose loss is high among recent ones.

Looking happens in the loader, before the loop sees a batch. So what the loop would do to a batch first, here moving it
to the device and shifting its images at random there, is given to `attach` as `prepare`.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, accuracy, digits, report, small_cnn

import leantrain  # + leantrain

device = "cuda" if torch.cuda.is_available() else "cpu"
shifts = torch.Generator().manual_seed(0)


def prepare(batch: leantrain.Batch) -> leantrain.Batch:  # + leantrain
    batch = batch.to(device)
    down, across = torch.randint(-1, 2, (2,), generator=shifts).tolist()
    return batch.with_inputs(batch.inputs.roll((down, across), dims=(2, 3)))


train_set, test_set = digits()
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = "selective-backprop[keep=0.45]"  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS, prepare=prepare)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for epoch in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    totals = lean.epoch_totals
    print(
        f"epoch {epoch + 1}: accuracy {accuracy(model, test_set):.3f}, trained on {totals['examples']} of "
        f"{len(train_set)} digits in {totals['steps']} steps, cost {totals['cost']:.0f}"
    )

report(model, test_set, lean)  # 1/3 for looking at each digit, 1 for each one trained on

"""Label smoothing: an option of `attach`. What is recorded of each example, and chosen by, stays unsmoothed."""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

import leantrain  # + leantrain

train_set, test_set = digits()
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS, label_smoothing=0.1)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

hardest = lean.ledger["loss"].topk(3)
for index, loss in zip(hardest.indices.tolist(), hardest.values.tolist(), strict=True):
    print(f"hardest: example {index}, a {int(train_set[index][1])}, with a clean loss of {loss:.2f}")
report(model, test_set, lean)

"""Half the cost: plain_loop.py with a budget and no method named, which means `lean`.

Digits are shown small at first and whole at the end. The loop goes on until the budget is spent, and the
learning rate comes down fully over it.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, accuracy, digits, small_cnn

import leantrain  # + leantrain

device = "cuda" if torch.cuda.is_available() else "cpu"
train_set, test_set = digits(side=32)
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
lean = leantrain.attach(model, train_set, epochs=EPOCHS, budget=0.5)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

while not lean.finished:  # + leantrain
    for batch in loader:  # + leantrain
        loss = lean.loss(batch.to(device))  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    print(f"epoch {lean.epoch + 1}: accuracy {accuracy(model, test_set):.3f}, {lean.cost_share:.2f} of the cost spent")

print(f"accuracy {accuracy(model, test_set):.2f}, cost {lean.cost_share:.2f} of plain training")

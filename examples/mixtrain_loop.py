"""MixTrain in a plain PyTorch loop: plain_loop.py with the lines marked `# + leantrain` added or changed.

What is learnt already is shown two digits to an image, so an epoch gets shorter as training goes on. The learning rate
follows `lean.progress`, and so comes down fully however short the epochs get.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, accuracy, digits, small_cnn

import leantrain  # + leantrain

device = "cuda" if torch.cuda.is_available() else "cpu"
train_set, test_set = digits()
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
lean = leantrain.attach(model, train_set, method=leantrain.MixTrain("cutmix"), epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain; takes what DataLoader takes: num_workers, pin_memory, …
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for epoch in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch.to(device))  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    print(f"epoch {epoch + 1}: accuracy {accuracy(model, test_set):.3f}, {len(lean.plan)} batches")

print(f"accuracy {accuracy(model, test_set):.2f}, cost {lean.cost_share:.2f} of plain training")

"""A plain PyTorch loop, before leantrain. Compare with mixtrain_loop.py, which is this file and a few changed lines."""

import torch
import torch.nn.functional as F
from _digits import BATCH_SIZE, EPOCHS, LR, accuracy, digits, small_cnn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
train_set, test_set = digits()
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
scheduler = OneCycleLR(optimizer, LR, total_steps=EPOCHS * len(loader))

for epoch in range(EPOCHS):
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    print(f"epoch {epoch + 1}: accuracy {accuracy(model, test_set):.3f}, {len(loader)} batches")

print(f"accuracy {accuracy(model, test_set):.2f}, cost 1.00 of plain training")

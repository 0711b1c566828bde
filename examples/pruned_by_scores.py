"""EL2N: score every digit with a few short-trained models, keep the scores in a file, and train without the lowest.

A file of scores serves other models, other seeds and other machines. The run that re-uses it does not count what making
it cost, and says so.
"""

import tempfile
from pathlib import Path

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

import leantrain  # + leantrain

device = "cuda" if torch.cuda.is_available() else "cpu"
train_set, test_set = digits()
scores = leantrain.score(small_cnn, train_set, "el2n", models=2, epochs=2, batch_size=BATCH_SIZE)  # + leantrain
file = Path(tempfile.mkdtemp()) / "scores.npz"
scores.save(file)
hardest = scores.values.argsort(descending=True)[:5].tolist()
print(f"scores cost {scores.cost / len(train_set):.1f} epochs; the five highest are those of digits {hardest}")

model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
lean = leantrain.attach(model, train_set, f"el2n[prune=0.3,scores={file}]", epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for epoch in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch.to(device))  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if epoch == 0:
        print(lean.report()["note"])

report(model, test_set, lean)

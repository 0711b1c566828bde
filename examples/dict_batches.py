"""Examples that are dicts, as Hugging Face data sets give them: {"pixel_values": …, "labels": …}.

The usual names are found by themselves; others are said with `inputs=` and `targets=`. Everything else in the dict
stays in `batch.data`.
"""

from typing import Any

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from torch.utils.data import Dataset

import leantrain  # + leantrain

images, test_set = digits()


class Dicts(Dataset[dict[str, Any]]):
    """The digits in the form in which a Hugging Face data set hands them out."""

    def __len__(self) -> int:
        return len(images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = images[index]
        return {"pixel_values": image, "labels": int(label), "file": f"{index}.png"}


model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
lean = leantrain.attach(model, Dicts(), method, epochs=EPOCHS)  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

print(f"the last batch had {', '.join(batch.data)}, the first file {batch.data['file'][0]}")
report(model, test_set, lean)

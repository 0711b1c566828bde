"""timm's loader, with the prefetcher that normalises on the device: `attach` takes it over as it is.

timm's own Mixup augments and costs what it did before; MixTrain saves. A loader with Mixup in it is refused.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from PIL import Image
from timm.data import create_loader

from leantrain.integrations.timm import attach  # + leantrain

train_set, test_set = digits()


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Digits as grey pictures, with the transform that `create_loader` gives them."""

    transform = None

    def __len__(self) -> int:
        return len(train_set)

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        image, label = train_set[index]
        return self.transform(Image.fromarray(((image[0] + 1) * 127.5).byte().numpy())), int(label)


model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model.to(device)
loader = create_loader(
    Pictures(), (1, 16, 16), BATCH_SIZE, is_training=True, no_aug=True, mean=(0.5,), std=(0.5,), num_workers=0,
    persistent_workers=False, device=device,
)  # fmt: skip
lean, loader = attach(model, loader, "rs2[keep=0.5]", epochs=EPOCHS)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

while not lean.finished:  # + leantrain
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

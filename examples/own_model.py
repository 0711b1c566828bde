"""Your own model, whose last feature map is not found by itself: name it with `split_layer=`.

With CutMix the model answers once per constituent of a composite. For that leantrain averages each constituent's part
of the last feature map apart, and looks for that map among the last layers that run. Here those belong to a decoder
that draws the image again, so `attach` says that it found none, lists candidates, and takes a name.
"""

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, layer, report
from torch import Tensor, nn

import leantrain  # + leantrain


class DrawingClassifier(nn.Module):
    """Classifies an image, and keeps a drawing of it to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(layer(1, 16, 2), layer(16, 32, 1), layer(32, 32, 1))
        self.classify = nn.Linear(32, 10)
        self.draw = nn.Sequential(layer(32, 8, 1), nn.Upsample(scale_factor=2), layer(8, 8, 1), nn.Conv2d(8, 1, 1))
        self.drawing: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.features(inputs)
        self.drawing = self.draw(features.detach())
        return self.classify(features.flatten(2).mean(2))


train_set, test_set = digits()
torch.manual_seed(0)
model = DrawingClassifier()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
method = leantrain.MixTrain("cutmix")  # + leantrain
try:
    leantrain.attach(model, train_set, method, epochs=EPOCHS)
except leantrain.LeanError as error:
    print(f"without a name: {error}")
lean = leantrain.attach(model, train_set, method, epochs=EPOCHS, split_layer="features")  # + leantrain
loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain

for _ in range(EPOCHS):
    for batch in loader:  # + leantrain
        loss = lean.loss(batch)  # + leantrain
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

report(model, test_set, lean)

"""Lightning's Trainer: a callback brings the method, and `training_step` changes one line.

The data stay as they are. Validation comes after every epoch, however short; the learning rate follows the run's
progress; a checkpoint holds the ledger; and what the method did is in the logger under `lean/`.
"""

import lightning.pytorch as pl
import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from leantrain.integrations.lightning import LeanCallback  # + leantrain


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = small_cnn()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)

    def training_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        return self.lean.loss(batch)  # + leantrain: instead of F.cross_entropy(self(inputs), targets)

    def validation_step(self, batch, batch_idx):  # type: ignore[no-untyped-def]
        inputs, targets = batch
        self.log("accuracy", (self(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        optimizer = torch.optim.SGD(self.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
        scheduler = OneCycleLR(optimizer, LR, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


train_set, test_set = digits()
module = Digits()
lean_callback = LeanCallback("mixtrain-cutmix")  # + leantrain
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    callbacks=[lean_callback],  # + leantrain
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(module, DataLoader(train_set, BATCH_SIZE, shuffle=True), DataLoader(test_set, 99))
report(module, test_set, lean_callback.lean)

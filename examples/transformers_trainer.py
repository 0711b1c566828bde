"""Hugging Face's Trainer: `LeanTrainer` takes a method or a budget, and everything else stays.

Here a small ResNet from a config at half the cost. The linear schedule comes down fully; a checkpoint holds the ledger.
"""

import tempfile

import torch
from _digits import BATCH_SIZE, EPOCHS, digits
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments

from leantrain.integrations.transformers import LeanTrainer  # + leantrain

train_set, test_set = digits(side=32)


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, tensors: torch.utils.data.TensorDataset) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> dict[str, object]:
        image, label = self.tensors[index]
        return {"pixel_values": image, "label": int(label)}


torch.manual_seed(0)
config = ResNetConfig(
    num_channels=1, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=4e-3,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = LeanTrainer(  # + leantrain: instead of Trainer
        ResNetForImageClassification(config),
        arguments,
        train_dataset=Pictures(train_set),
        eval_dataset=Pictures(test_set),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
        budget=0.5,  # + leantrain
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
print(f"accuracy {accuracy:.2f}, cost {trainer.lean.cost_share:.2f} of plain training")

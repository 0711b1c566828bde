"""Hugging Face's own Trainer, with a method: what it trains is what a plain loop trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from integration_helpers import BATCH, EPOCHS, LR, METHODS, images, plain_loop, plain_steps, same_run
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from leantrain.errors import LeanError

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install accelerate")
from leantrain.integrations.transformers import LeanTrainer  # noqa: E402


class Named(torch.utils.data.Dataset[dict[str, Any]]):
    """`label` here, and `labels` in the batch, as Hugging Face's collate function makes it."""

    def __init__(self) -> None:
        self.images, self.labels = images().tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.images[i], "label": int(self.labels[i])}


def classifier() -> nn.Module:
    """An image classifier from a config, whose last map has 6×6 cells."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.ResNetConfig(
            num_channels=1, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic", num_labels=2
        )
        model: nn.Module = transformers.ResNetForImageClassification(config)
        model.resnet.embedder.pooler = nn.Identity()
        return model


class Recording(LeanTrainer):
    losses: list[float]
    rates: list[float]

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        loss: Tensor = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        return loss


def trainer(folder: Path, method: str | None, budget: float | None = None, **options: Any) -> Recording:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "max_grad_norm": 0.0}
    given = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "learning_rate": LR, "seed": 0}
    args = transformers.TrainingArguments(str(folder), **{**quiet, **given, "eval_strategy": "epoch", **options})
    model = classifier()
    optimizers = (torch.optim.SGD(model.parameters(), lr=LR), None)
    data = {"train_dataset": Named(), "eval_dataset": Named()}
    made = Recording(model, args, **data, optimizers=optimizers, method=method, budget=budget)
    made.losses, made.rates = [], []
    return made


def linear(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 - step / plain_steps())


@pytest.mark.parametrize("method", METHODS)
def test_losses_rates_ledger_and_steps_are_those_of_a_plain_loop(method: str, tmp_path: Path) -> None:
    ours = trainer(tmp_path, method)
    ours.train()
    plain = plain_loop(method, model=classifier(), schedule=linear)
    assert ours.losses == pytest.approx(plain.losses, abs=1e-6)
    assert ours.rates[1:] == pytest.approx(plain.rates[:-1])
    assert ours.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12), "fully decayed"
    assert same_run(ours.lean, plain.lean)
    assert ours.state.global_step == len(plain.losses)
    evaluations = [row for row in ours.state.log_history if "eval_loss" in row]
    assert len(evaluations) == EPOCHS
    assert [row for row in ours.state.log_history if "lean/cost_share" in row][-1]["lean/progress"] == 1.0


def test_a_budget_is_spent_and_accumulation_steps_less_often(tmp_path: Path) -> None:
    ours = trainer(tmp_path, "plain", budget=0.5, gradient_accumulation_steps=2)
    ours.train()
    assert ours.lean.finished
    assert ours.lean.cost_share == pytest.approx(0.5, abs=0.02)
    lengths = [12, 12, 6]  # batches of the epochs, the last of them cut
    assert len(ours.losses) == sum(lengths)
    assert ours.state.global_step == sum(-(-length // 2) for length in lengths)


@pytest.mark.parametrize("when", [{"save_strategy": "steps", "save_steps": 17}, {"save_strategy": "epoch"}])
def test_a_checkpoint_resumes_with_the_ledger(when: dict[str, Any], tmp_path: Path) -> None:
    whole = trainer(tmp_path, METHODS[0], **when)
    whole.train()
    first = min(tmp_path.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    resumed = trainer(tmp_path / "again", METHODS[0])
    resumed.train(resume_from_checkpoint=str(first))
    assert resumed.losses == pytest.approx(whole.losses[int(first.name.split("-")[1]) :], abs=1e-6)
    assert same_run(resumed.lean, whole.lean)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("infobatch", {"max_steps": 10}, "max_steps is 10, but a method needs num_train_epochs"),
        ("infobatch", {"num_train_epochs": 1.5}, "num_train_epochs is 1.5, but must be a whole number"),
        ("selective-backprop", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2; set it to 1"),
    ],
)
def test_what_it_cannot_do_is_refused(method: str, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(LeanError, match=words):
        trainer(tmp_path, method, **options).train()

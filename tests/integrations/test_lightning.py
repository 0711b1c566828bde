"""Lightning's own Trainer, with the callback: what it trains is what a plain loop trains."""

from __future__ import annotations

import csv
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from integration_helpers import BATCH, EPOCHS, LR, METHODS, images, network, plain_loop, same_run, two_processes
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, WeightedRandomSampler

import leantrain
from leantrain.errors import LeanError

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install lightning")
from leantrain.integrations.lightning import LeanCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*num_workers.*", "ignore:.*logging.*")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):  # type: ignore[name-defined,misc]
    """A user's own; the one line that differs is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.validated: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        assert len(inputs) == len(targets)
        loss = self.lean.loss(batch)
        self.losses.append(float(loss.detach()))
        self.log("loss", loss, on_epoch=True, batch_size=len(targets))
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def on_validation_epoch_end(self) -> None:
        self.validated.append(self.trainer.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=LR)
        steps = self.trainer.estimated_stepping_batches
        scheduler = OneCycleLR(optimizer, LR, total_steps=steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Data(pl.LightningDataModule):  # type: ignore[name-defined,misc]
    def train_dataloader(self) -> Any:
        return DataLoader(images(), BATCH, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(images(), 45)


def trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    quiet |= {"logger": False, "enable_checkpointing": any("Checkpoint" in type(one).__name__ for one in callbacks)}
    options = {"max_epochs": EPOCHS, "accelerator": "cpu", "devices": 1, **quiet, **options}
    return pl.Trainer(callbacks=list(callbacks), **options)


@pytest.mark.parametrize("method", METHODS)
def test_losses_rates_ledger_and_steps_are_those_of_a_plain_loop(method: str) -> None:
    callback, module = LeanCallback(method), Module()
    fit = trainer(callback)
    fit.fit(module, datamodule=Data())
    plain = plain_loop(method, ahead="selective" in method)  # Lightning looks ahead where a length is not known
    assert module.losses == pytest.approx(plain.losses, abs=1e-6)
    assert module.rates == pytest.approx(plain.rates)
    assert module.rates[-1] < 1e-4 * LR
    assert same_run(callback.lean, plain.lean)
    assert fit.global_step == len(plain.losses)
    assert module.validated == list(range(EPOCHS)), "after every epoch, however short"
    assert not hasattr(module, "lean"), "the module is left as it was"


def test_a_budget_ends_the_fit_when_it_is_spent() -> None:
    for budget in (0.5, 1.3):
        callback, module = LeanCallback("plain", budget=budget), Module()
        trainer(callback).fit(module, DataLoader(images(), BATCH, shuffle=True), DataLoader(images(), 45))
        assert same_run(callback.lean, plain_loop("plain", budget).lean)
        assert len(module.validated) == callback.lean.epoch + 1


def test_a_step_that_does_without_the_method_is_refused_and_can_be_replaced() -> None:
    class Untouched(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self(x), y)

    with pytest.raises(
        LeanError, match=r"Untouched did not use the method's loss; write `loss = self.lean.loss\(batch"
    ):
        trainer(LeanCallback("infobatch")).fit(Untouched(), datamodule=Data())
    callback = LeanCallback(METHODS[0], replace_step=True, model="network")
    fit = trainer(callback)
    fit.fit(Untouched(), datamodule=Data())
    assert same_run(callback.lean, plain_loop(METHODS[0]).lean)
    assert fit.callback_metrics["train_loss"].isfinite()


@pytest.mark.parametrize(
    ("method", "when"),
    [
        (METHODS[0], {"every_n_train_steps": 17}),
        (METHODS[0], {"every_n_epochs": 2}),
        (METHODS[2], {"every_n_train_steps": 17}),
    ],
)
def test_a_checkpoint_holds_the_ledger_and_a_fit_goes_on_from_it(
    method: str, when: dict[str, int], tmp_path: Path
) -> None:
    saving = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", **when)
    whole, module = LeanCallback(method), Module()
    trainer(whole, saving).fit(module, datamodule=Data())
    first = min(tmp_path.glob("*.ckpt"), key=lambda file: int(file.stem.removeprefix("step=")))
    steps = int(first.stem.removeprefix("step="))
    callback, resumed = LeanCallback(method), Module()
    trainer(callback).fit(resumed, datamodule=Data(), ckpt_path=first)
    assert resumed.losses == pytest.approx(module.losses[steps:], abs=1e-6)
    assert same_run(callback.lean, whole.lean)
    assert resumed.validated[-1] == EPOCHS - 1


def test_accumulation_precision_and_the_user_s_logger(tmp_path: Path) -> None:
    logger = pl.loggers.CSVLogger(tmp_path)
    callback, module = LeanCallback(METHODS[0]), Module()
    fit = trainer(callback, accumulate_grad_batches=2, precision="bf16-true", logger=logger, log_every_n_steps=1)
    lengths = []
    module.on_train_epoch_end = lambda: lengths.append(len(callback.lean.plan))
    fit.fit(module, datamodule=Data())
    assert fit.global_step == sum(-(-length // 2) for length in lengths) < sum(lengths)
    assert module.rates[-1] < 1e-4 * LR
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    costs = [float(row["lean/cost_share"]) for row in rows if row.get("lean/cost_share")]
    assert len(costs) == EPOCHS
    assert costs[-1] == pytest.approx(callback.lean.cost_share)


def rank(folder: Path) -> None:
    """What each of two processes does."""
    saving = pl.callbacks.ModelCheckpoint(folder, filename="last")
    data = DataLoader(images(), BATCH // 2, shuffle=True)  # per process
    trainer(LeanCallback("infobatch[prune=0.9]"), saving, strategy="ddp", devices=2).fit(Module(), data)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    two_processes(__file__, tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["leantrain"]
    alone = leantrain.attach(network(), images(), "infobatch[prune=0.9]", epochs=EPOCHS)
    alone.load_state_dict(state)
    assert alone.finished
    assert (alone.ledger["trained"] > 0).all()


@pytest.mark.parametrize(
    ("make", "data", "words"),
    [
        (lambda: trainer(LeanCallback("infobatch"), max_epochs=-1), Data(), "max_epochs is -1"),
        (
            lambda: trainer(LeanCallback("infobatch")),
            DataLoader(images(), BATCH, sampler=WeightedRandomSampler([1.0] * 90, 90)),
            "comes from a WeightedRandomSampler",
        ),
        (lambda: trainer(LeanCallback("infobatch")), [(torch.zeros(2, 1, 12, 12),)], "is a list, but must be one"),
        (lambda: trainer(LeanCallback("infobatch", model="net")), Data(), "Module has no network 'net'"),
    ],
    ids=["endless", "sampler", "list", "name"],
)
def test_what_it_cannot_take_is_refused_in_a_sentence(make: Any, data: Any, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        make().fit(Module(), data)


if __name__ == "__main__":
    rank(Path(sys.argv[1]))

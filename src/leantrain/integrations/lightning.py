"""Lightning: a callback that puts a method into `Trainer.fit`, around the user's own module and data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.lean import Lean
from leantrain.loader import PlannedLoader
from leantrain.methods import Method
from leantrain.takeover import loader_of, options_of


class LeanCallback(pl.Callback):
    """Trains with a method: `Trainer(max_epochs=90, callbacks=[LeanCallback("infobatch")])`.

    `training_step` changes one line, to `loss = self.lean.loss(batch)`; or stays as it is and is not called, with
    `replace_step=True`. Everything else of Lightning goes on as it did: precision, accumulation, DDP, validation after
    every epoch, loggers, and checkpoints, which hold the run's ledger and resume in mid-epoch. Schedulers are driven by
    progress, and so come down fully whatever is skipped.

    Args:
        method, budget, seed: as for `leantrain.attach`. The run stands for the trainer's `max_epochs`.
        replace_step: use the method's loss as the training step, and log it as `train_loss`.
        model: the name of the module's attribute that gives the logits, where the module has no `forward` that does.
        options: further ones of `leantrain.attach`, such as `label_smoothing` and `prepare`.
    """

    def __init__(
        self,
        method: Method | str | None = None,
        *,
        budget: float | None = None,
        seed: int = 0,
        replace_step: bool = False,
        model: str | None = None,
        **options: Any,
    ) -> None:
        self.lean: Lean | None = None
        """The run, from the start of `fit` on."""
        self._settings = {"method": method, "budget": budget, "seed": seed, **options}
        self._replace_step = replace_step
        self._model = model
        self._loaded: dict[str, Any] | None = None
        self._cost = 0.0
        self._undo: list[Callable[[], None]] = []

    @property
    def state_key(self) -> str:
        return "leantrain"

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit" and (trainer.max_epochs is None or trainer.max_epochs < 1):
            raise LeanError(f"the trainer's max_epochs is {trainer.max_epochs}; say how many the run stands for.")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        fit, epochs = trainer.fit_loop, trainer.max_epochs
        assert epochs is not None
        theirs = loader_of(fit._data_source.dataloader(), "the trainer's training data")
        self.lean = lean = Lean(self._network(pl_module), theirs.dataset, epochs=epochs, **self._with_collate(theirs))
        lean.synchronised = True
        if self._loaded is not None:
            lean.load_state_dict(self._loaded)
        size, options = options_of(theirs)
        loader = lean.loader(size * trainer.world_size, **options)
        self._drive_schedulers(trainer, math.ceil(len(theirs) / trainer.accumulate_grad_batches) * epochs)
        # Asked anew before every epoch, where its length is known: Lightning keeps the first one otherwise, and
        # validates when that many batches are over. Where it is not known, Lightning looks one batch ahead instead.
        sized = not lean.decides_inside
        self._replace(fit, "_data_source", _DataLoaderSource(_SizedEpochs(loader) if sized else _Epochs(loader), ""))
        self._replace(fit, "_combined_loader", None)
        self._replace(trainer, "reload_dataloaders_every_n_epochs", int(sized))
        self._replace(trainer.precision_plugin, "convert_input", _converted(trainer.precision_plugin.convert_input))
        self._replace(pl_module, "lean", lean)
        if self._replace_step:
            self._replace(pl_module, "training_step", _step_of(lean, pl_module))

    def _network(self, pl_module: pl.LightningModule) -> nn.Module:
        if self._model is not None:
            network = getattr(pl_module, self._model, None)
            if not isinstance(network, nn.Module):
                raise LeanError(f"{type(pl_module).__name__} has no network '{self._model}'; name the attribute it is.")
            return network
        if not is_overridden("forward", pl_module):
            raise LeanError(
                f"{type(pl_module).__name__} has no forward of its own; say model=NAME, an attribute that gives logits."
            )
        return cast(nn.Module, pl_module)

    def _with_collate(self, theirs: DataLoader[Any]) -> dict[str, Any]:
        return {"collate": theirs.collate_fn, **self._settings}

    def _drive_schedulers(self, trainer: pl.Trainer, steps: int) -> None:
        """Let progress drive every scheduler that counts, by the steps or epochs that plain training would have."""
        assert self.lean is not None
        for config in trainer.lr_scheduler_configs:
            if not config.reduce_on_plateau:
                known = any(hasattr(config.scheduler, name) for name in ("total_steps", "T_max"))
                count = None if known else self.lean.epochs if config.interval == "epoch" else steps
                config.scheduler = self.lean.drive(config.scheduler, count)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until the fit is over."""
        had, before = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, value)
        self._undo.append((lambda: setattr(owner, name, before)) if had else (lambda: delattr(owner, name)))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.lean is not None and self.lean.budget is not None:
            # It may be spent in more epochs than these, or in fewer; Lightning sets its limit anew in every fit.
            trainer.fit_loop.max_epochs = -1

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert self.lean is not None
        self._cost = self.lean.cost

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.lean is not None
        if self.lean.cost == self._cost:
            raise LeanError(
                f"the training_step of {type(pl_module).__name__} did not use the method's loss; write "
                "`loss = self.lean.loss(batch)` there, or let LeanCallback(..., replace_step=True) replace it."
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        lean = self.lean
        assert lean is not None
        report = {"progress": lean.progress, "cost_share": lean.cost_share, **lean.epoch_totals, **lean.report()}
        numbers = {f"lean/{name}": float(value) for name, value in report.items() if isinstance(value, int | float)}
        pl_module.log_dict(numbers, batch_size=1)
        if lean.finished:
            trainer.should_stop = True

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        while self._undo:
            self._undo.pop()()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.lean is None else self.lean.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict or None
        if self.lean is not None and state_dict:  # of a strategy that restores once the fit has started
            self.lean.load_state_dict(state_dict)


class _Epochs:
    """The loader as Lightning is to see it: without a length, as what a method keeps shows in the epoch only."""

    def __init__(self, loader: PlannedLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)


class _SizedEpochs(_Epochs):
    """The same with the length of the whole epoch, of which a resumed one has some behind it."""

    def __len__(self) -> int:
        lean = self.loader.lean
        return len(lean.plan if lean.finished else lean.start_epoch(self.loader.batch_size))


def _converted(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A precision plugin's conversion of inputs, of what a batch holds rather than of the batch itself."""

    def converted(data: Any) -> Any:
        return dataclasses.replace(data, data=convert(data.data)) if isinstance(data, Batch) else convert(data)

    return converted


def _step_of(lean: Lean, pl_module: pl.LightningModule) -> Callable[[Batch, int], Tensor]:
    def training_step(batch: Batch, batch_idx: int) -> Tensor:
        loss = lean.loss(batch)
        pl_module.log("train_loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    return training_step

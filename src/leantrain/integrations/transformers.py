"""Hugging Face's Trainer: a mixin that trains with a method, and the Trainer that has it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.lean import Lean
from leantrain.loader import PlannedLoader
from leantrain.methods import Method

if TYPE_CHECKING:
    from transformers import Trainer as Base  # or whatever stands behind the mixin
else:
    Base = object

STATE = "leantrain.pt"
"""Beside the model in a checkpoint's folder."""


class LeanMixin(Base):
    """What a Trainer needs to train with a method; put it before your own: `class Mine(LeanMixin, MyTrainer)`.

    Arguments, evaluation, logging, callbacks and checkpoints stay the Trainer's. The scheduler is made for the steps of
    plain training and driven by progress, and so comes down fully whatever is skipped.

    Args:
        method, budget: as for `leantrain.attach`. The run stands for `num_train_epochs`; seed and label smoothing are
            those of the training arguments.
        attach: further options of `leantrain.attach`.
    """

    def __init__(
        self,
        *args: Any,
        method: Method | str | None = None,
        budget: float | None = None,
        attach: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lean: Lean | None = None
        """The run, from the start of `train` on."""
        self.loss_is_scaled_for_ga = False
        self._settings = {"method": method, "budget": budget, **(attach or {})}
        self._loader: PlannedLoader | None = None
        options = self.args
        if options.max_steps > 0:
            raise LeanError(
                f"max_steps is {options.max_steps}, but a method needs num_train_epochs; give these instead."
            )
        if options.num_train_epochs != int(options.num_train_epochs):
            raise LeanError(f"num_train_epochs is {options.num_train_epochs}, but must be a whole number.")

    def get_train_dataloader(self) -> Any:
        theirs: Any = super().get_train_dataloader()
        model: Any = self.model
        options = self.args
        self.lean = lean = Lean(
            model,
            theirs.dataset,
            epochs=int(options.num_train_epochs),
            **{
                "seed": options.seed,
                "label_smoothing": options.label_smoothing_factor,
                "collate": theirs.collate_fn,
                **self._settings,
            },
        )
        if lean.decides_inside and options.gradient_accumulation_steps > 1:
            raise LeanError(
                f"{lean.method} decides inside the epoch what is trained on, and gradient_accumulation_steps is "
                f"{options.gradient_accumulation_steps}; set it to 1 or use a method that decides before the epoch."
            )
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        given = {name: getattr(theirs, name) for name in names if theirs.num_workers or name == "pin_memory"}
        self._loader = lean.loader(self._train_batch_size * options.world_size, **given)
        return self._loader

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Epochs of any length, until the run is finished."""
        assert self.lean is not None
        epochs, updates, examples, samples, size, steps, _ = super().set_initial_training_values(args, dataloader)
        epochs = epochs if self.lean.budget is None else sys.maxsize
        return epochs, updates, examples, samples, size, steps, self.lean.max_steps

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        lean, options = self.lean, self.args
        assert lean is not None and self._loader is not None
        batches = math.ceil(len(self._loader.dataset) / self._loader.batch_size)
        steps = lean.epochs * math.ceil(batches / options.gradient_accumulation_steps)
        scheduler = super().create_scheduler(steps, optimizer)
        if not isinstance(scheduler, ReduceLROnPlateau):
            self.lr_scheduler = lean.drive(scheduler, steps)  # type: ignore[assignment]
        return self.lr_scheduler

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Go on where the run's own state says; the loader gives the rest of an epoch that was cut."""
        lean = self.lean
        assert lean is not None
        super()._init_training_state(*args, **kwargs)
        folder = kwargs.get("resume_from_checkpoint", args[3] if len(args) > 3 else None)
        if folder is None:
            return 0, 0
        file = Path(folder) / STATE
        if not file.exists():
            raise LeanError(f"{folder} has no {STATE}; resume from a checkpoint of a run with a method.")
        lean.load_state_dict(torch.load(file, weights_only=True))
        return lean.epoch + lean.epoch_done, 0

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        lean, loader = self.lean, self._loader
        assert lean is not None and loader is not None
        # A Trainer takes the first epoch's length for all of them.
        batches = len(lean.start_epoch(loader.batch_size)) + 1 if lean.decides_inside else len(loader)
        updates = math.ceil(batches / self.args.gradient_accumulation_steps)
        super()._run_epoch(*args, **{**kwargs, "steps_in_epoch": batches, "num_update_steps_per_epoch": updates})  # type: ignore[no-untyped-call]
        report = {"progress": lean.progress, "cost_share": lean.cost_share, **lean.epoch_totals, **lean.report()}
        self.log({f"lean/{name}": value for name, value in report.items() if isinstance(value, int | float)})
        if lean.finished:
            self.control.should_training_stop = True

    def _prepare_inputs(self, inputs: Any) -> Any:
        if isinstance(inputs, Batch):
            return inputs.to(self.args.device)
        return super()._prepare_inputs(inputs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The method's loss of a batch to train on; of any other, the Trainer's own."""
        if not isinstance(inputs, Batch):
            return super().compute_loss(model, inputs, *args, **kwargs)
        assert self.lean is not None
        self.lean.model = model  # which the Trainer may have wrapped since
        return self.lean.loss(inputs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.lean is not None
        state = self.lean.state_dict()  # on all ranks, as it lets their ledgers agree
        if self.args.should_save:
            torch.save(state, Path(output_dir) / STATE)


class LeanTrainer(LeanMixin, Trainer):
    """Hugging Face's Trainer with a method: `LeanTrainer(..., method="infobatch")`, or with a budget alone."""

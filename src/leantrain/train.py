"""The training loop, on Lightning Fabric: precision, accumulation, schedule, checkpoints and what a run writes down."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from lightning_fabric import Fabric
from torch import Tensor, nn

from leantrain import checkpoint, data, history, machine
from leantrain.config import TrainConfig, default_workers
from leantrain.data import Augment, ImageSet
from leantrain.display import Display, Notes, Quiet
from leantrain.errors import LeanError
from leantrain.evaluate import Evaluation, evaluate
from leantrain.files import append_line, remove_leftovers, write_atomically, write_text
from leantrain.lean import Lean
from leantrain.ledger import Ledger
from leantrain.loader import Batch, InOrder, PlannedDataset, planned_dataloader
from leantrain.methods import Moment, Pruning, parse_method
from leantrain.models import build, default_model
from leantrain.rng import derive, generator
from leantrain.schedule import parse_schedule
from leantrain.scoring.scores import Scores
from leantrain.signals import Interrupted, on_stop

logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # our own first line says the precision
FINITE_EVERY = 50  # steps between two looks at the non-finite flag; each look waits for the device


class NotFinite(LeanError):
    """The loss became infinite or not a number."""


def load_images(config: TrainConfig) -> ImageSet:
    """The data set that the settings name."""
    return data.load(
        config.data,
        config.data_root,
        train_limit=config.train_limit,
        validation=config.validation,
        seed=config.seed,
        skip_bad_images=config.skip_bad_images,
        image_size=config.image_size,
    )


def resolve(config: TrainConfig, images: ImageSet) -> TrainConfig:
    """Fill in what the user left open, to suit the data and the machine."""
    device = machine.choose_device(config.device)
    base_lr = 0.2 if config.optimizer == "sgd" else 0.001
    chosen: dict[str, Any] = {
        "device": str(device),
        "precision": machine.choose_precision(config.precision, device),
        "model": config.model or default_model(images.image_size, len(images.train), device.type),
        "epochs": config.epochs or default_epochs(len(images.train)),
        "lr": config.lr or base_lr * config.batch_size / 128,
        "workers": default_workers(images.in_memory) if config.workers is None else config.workers,
        "pin_memory": device.type == "cuda" if config.pin_memory is None else config.pin_memory,
    }
    parse_schedule(config.schedule)  # a mistake in either is told before anything starts
    chosen["method"] = str(parse_method(config.method))
    return dataclasses.replace(config, **chosen)


def default_epochs(examples: int) -> int:
    """Small sets need more passes: about 800,000 examples in all, between 16 and 40 epochs."""
    return max(16, min(40, round(800_000 / examples)))


class Run:
    """One training run, epoch by epoch, so that several can take turns.

    A run draws from generators of its own; those of the process are as before whenever it is not its turn.

    Args:
        config: resolved settings.
        images: the data set.
        out: where to write; None keeps everything in memory.
        display: what the user sees.
    """

    def __init__(
        self, config: TrainConfig, images: ImageSet, out: Path | None = None, display: Display | None = None
    ) -> None:
        assert config.model is not None and config.epochs is not None
        self.config = config
        self.images = images
        self.out = out
        self.display: Display = display or Quiet()
        self.device = torch.device(config.device)
        self.rows: list[dict[str, Any]] = []
        self.evaluation: Evaluation | None = None
        self.steps = 0
        self.stop_signal = 0
        self._timing = {"seconds": 0.0, "data": 0.0, "total": 0.0}
        self._generators = _Generators(self.device, derive(config.seed, "run"))
        self._schedule = parse_schedule(config.schedule)
        self._fabric = Fabric(
            accelerator=self.device.type,
            devices=[self.device.index or 0] if self.device.type == "cuda" else 1,
            precision=machine.FABRIC_PRECISION[config.precision],  # type: ignore[arg-type]
        )
        self.module = self._build_model()
        self._optimizer = self._build_optimizer()
        trained = cast(nn.Module, torch.compile(self.module)) if config.compile else self.module
        self._model, self._fabric_optimizer = self._fabric.setup(trained, self._optimizer)
        self._augment = Augment(images, config.seed, self.device)
        self.lean = Lean(
            self._model,
            images.train,
            parse_method(config.method),
            epochs=config.epochs,
            budget=config.budget,
            seed=config.seed,
            label_smoothing=config.label_smoothing,
            prepare=_Prepare(self._augment, self.device),
            example=self._example_inputs(),
        )
        self._loader = self.lean.loader(config.batch_size, **self._loader_options())
        self._bad_step = torch.full((), -1, dtype=torch.int64, device=self.device)

    # -- what it is made of ------------------------------------------------------------------------------------------

    def _build_model(self) -> nn.Module:
        config, images = self.config, self.images
        assert config.model is not None
        # A checkpoint replaces the weights to start from, so they need not be there any more.
        resuming = self.out is not None and (self.out / "checkpoint.pt").exists()
        model = build(
            config.model,
            classes=len(images.classes),
            channels=images.channels,
            image_size=images.image_size,
            width=config.width,
            dropout=config.dropout,
            pretrained=config.pretrained and not resuming,
            weights=None if config.weights is None or resuming else Path(config.weights),
            seed=config.seed,
        )
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if config.channels_last else model  # type: ignore[call-overload,no-any-return]

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """Weight decay on matrices and kernels only; fused where the device has it (Fabric cannot clip fp16 then)."""
        config = self.config
        assert config.lr is not None
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        fused = self.device.type in ("cpu", "cuda") and not (config.clip and config.precision == "fp16")
        kernel: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
        if config.optimizer == "sgd":
            return torch.optim.SGD(
                groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, **kernel
            )
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=config.lr, **kernel)

    def _example_inputs(self) -> Tensor:
        inputs, _ = self.images.train.batch(torch.arange(min(2, len(self.images.train))), -1)
        return self._augment.evaluate(inputs.to(self.device))

    def _loader_options(self) -> dict[str, Any]:
        workers = self.config.workers or 0
        persistent = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
        return {"num_workers": workers, "pin_memory": bool(self.config.pin_memory), **persistent}

    # -- training ----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.lean.finished and bool(self.rows) and self.rows[-1]["epoch"] == self.lean.epoch

    def train_epoch(self) -> dict[str, Any]:
        """Train the next epoch, or the rest of one that was cut, evaluate when due and write the epoch down."""
        if self._makes_scores:
            self._make_scores()
        with self._generators:
            written = self.rows[-1]["epoch"] if self.rows else -1
            if not (self.lean.epoch_done and written < self.lean.epoch):  # else: cut between its last step and its row
                self._train_batches()
            return self._finish_epoch()

    def _train_batches(self) -> None:
        started, waited = time.perf_counter(), self._loader.waited
        batches = iter(self._loader)
        lean, display = self.lean, self.display
        display.epoch(lean.epoch, len(self._loader) + int(lean.epoch_totals["steps"]), int(lean.epoch_totals["steps"]))
        self._model.train()
        for batch in batches:
            self._timing["data"] += self._loader.waited - waited
            waited = self._loader.waited
            self._step(batch)
            display.step(len(batch), lean.progress)
            if self.steps % FINITE_EVERY == 0:
                self._check_finite()
            every = self.config.checkpoint_every
            if self.stop_signal or (every and self.steps % every == 0):
                started = self._lap(started)
                self.save_checkpoint()
                started = time.perf_counter()
            self._leave_if_asked()
        self._lap(started)
        self._check_finite()

    @property
    def _makes_scores(self) -> bool:
        wanted = self.lean.method.wanted
        return self.lean.needs_scores and wanted is not None and wanted.file is None

    def check(self) -> None:
        """Plan the first epoch, so that options which do not fit the data are told before anything is written."""
        if self._makes_scores:
            assert self.lean.method.wanted is not None
            self.lean.check_affordable(self.lean.method.wanted.cost * len(self.images.train))
        else:
            self.lean.start_epoch(self.config.batch_size)

    def _make_scores(self) -> None:
        """Train the short ensemble that the method's scores come from; its cost and its time are this run's.

        Beside the run they survive a cut, and can be looked at or re-used by another one.
        """
        from leantrain.scoring import load, score_images

        wanted = self.lean.method.wanted
        assert wanted is not None
        file = None if self.out is None else self.out / "scores.npz"
        scores = load(file) if file is not None and file.exists() else None
        if scores is None or not self._are_own(scores):
            self.display.note(f"scoring: {wanted.models} models of {wanted.epochs} epochs each")
            scores = score_images(
                self.config,
                self.images,
                wanted.kind,
                models=wanted.models,
                epochs=wanted.epochs,
                display=_UntilStopped(self),
            )
            if file is not None:
                scores.save(file)
        self.lean.use_scores(scores)
        self._timing["seconds"] += scores.seconds
        self._timing["total"] += scores.seconds

    def _are_own(self, scores: Scores) -> bool:
        """Whether scores that lie beside the run are those that it would make."""
        wanted, made = self.lean.method.wanted, scores.made_with
        assert wanted is not None
        own = (wanted.kind, wanted.models, wanted.epochs, self.config.seed, self.images.fingerprint)
        return own == (scores.kind, *(made.get(name) for name in ("models", "epochs", "seed", "fingerprint")))

    def _lap(self, started: float) -> float:
        """Add the time since `started` to the epoch's clock, once the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self._timing["seconds"] += now - started
        self._timing["total"] += now - started
        return now

    def _step(self, batch: Batch) -> None:
        config = self.config
        rate = self.learning_rate
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros((), device=self.device)
        for part in batch.chunks(config.accumulate):
            loss = self.lean.loss(part)
            self._fabric.backward(loss)
            total += loss.detach()
        if config.clip:
            self._fabric.clip_gradients(
                self._model, self._fabric_optimizer, max_norm=config.clip, error_if_nonfinite=False
            )
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        # A flag on the device, read now and then: asking every step would make the host wait for the GPU.
        self._bad_step = torch.where((self._bad_step < 0) & ~total.isfinite(), self.steps, self._bad_step)

    @property
    def learning_rate(self) -> float:
        assert self.config.lr is not None and self.config.epochs is not None
        return self.config.lr * self._schedule.at(self.lean.progress, self.config.epochs)

    def _check_finite(self, weights: bool = False) -> None:
        """Stop a run gone wrong; before a checkpoint by its weights too. Synchronises with the device."""
        step = int(self._bad_step)
        if step >= 0:
            raise self._not_finite(step, "loss")
        if weights:
            norms = torch._foreach_norm([p.detach() for p in self.module.parameters()])
            if not bool(torch.stack(norms).isfinite().all()):
                raise self._not_finite(self.steps, "norm of the weights")

    def _not_finite(self, step: int, what: str) -> NotFinite:
        kept = self.out is not None and (self.out / "checkpoint.pt").exists()
        return NotFinite(
            f"the {what} was not finite at step {step} (epoch {self.lean.epoch + 1}) with --lr {self.config.lr:g}; "
            "try a smaller --lr, --clip 1 or --precision fp32"
            + (" in a new --out; the last good checkpoint is kept." if kept else ".")
        )

    def _finish_epoch(self) -> dict[str, Any]:
        lean, timing = self.lean, dict(self._timing)
        due = (lean.epoch + 1) % self.config.eval_every == 0 or lean.finished
        started = time.perf_counter()
        self.evaluation = self.evaluate() if due else self.evaluation
        if self.evaluation is not None and not math.isfinite(self.evaluation.loss):
            raise self._not_finite(self.steps, "test loss")
        evaluated = self.evaluation if due else None
        row = {
            "epoch": lean.epoch,
            "progress": lean.progress,
            **lean.report(),
            "test_loss": evaluated.loss if evaluated else None,
            "test_accuracy": evaluated.accuracy if evaluated else None,
            "lr": self.learning_rate,
            **lean.epoch_totals,
            "total_cost": lean.cost,
            "seconds": timing["seconds"],
            "total_seconds": timing["total"],
            "data_seconds": timing["data"],
            "eval_seconds": time.perf_counter() - started,
        }
        self.rows.append(row)
        self._timing.update(seconds=0.0, data=0.0)
        if self.out is not None:
            append_line(self.out / "metrics.jsonl", json.dumps(row))
            if self.config.history:
                history.write_epoch(self.out / "history", lean.ledger, lean.epoch)
            if self.config.tensorboard:
                log_tensorboard(self.out / "tensorboard", row)
            self.save_checkpoint()
        self.display.row(row)
        if "note" in row:
            self.display.note(f"note: {row['note']}")
        if timing["data"] > 0.5 * timing["seconds"] and timing["seconds"] > 1:
            self.display.note(
                f"note: {timing['data'] / timing['seconds']:.0%} of this epoch was spent waiting for data; "
                f"more --workers (now {self.config.workers}) or smaller images would help more than a faster model."
            )
        self._leave_if_asked()
        return row

    def _leave_if_asked(self) -> None:
        if self.stop_signal:
            raise Interrupted(self.stop_signal)

    def stop(self, number: int) -> None:
        """Save a checkpoint after the step at hand and leave with `Interrupted`."""
        self.stop_signal = number

    def train(self) -> dict[str, Any]:
        """Train to the end and write the result; signals save a checkpoint and raise `Interrupted`."""
        assert self.config.epochs is not None
        self.display.start(self.config.epochs, self.lean.progress)
        try:
            with on_stop(self.stop):
                while not self.finished:
                    self.train_epoch()
        finally:
            self.display.stop()
        return self.write_result()

    def train_only(self, after_epoch: Callable[[], None] = lambda: None) -> None:
        """Train to the end and neither evaluate nor write: for a model whose only purpose is to score examples."""
        with self._generators:
            while not self.lean.finished:
                self._train_batches()
                after_epoch()

    # -- evaluation --------------------------------------------------------------------------------------------------

    def evaluate(self) -> Evaluation:
        return evaluate(self._model, self._test_batches(), len(self.images.classes))

    def _test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in test_batches(self.images, self.config):
            batch = batch.to(self.device)
            yield self._augment.evaluate(batch.inputs), batch.targets

    # -- what it writes ----------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """The outcome, as result.json holds it."""
        evaluation = self.evaluation or self.evaluate()  # a finished run that is resumed has none in memory
        config, length = self.config, len(self.images.train)
        tested = [row["test_accuracy"] for row in self.rows if row["test_accuracy"] is not None]
        return {
            "method": config.method,
            "data": config.data,
            "model": config.model,
            "seed": config.seed,
            "evaluated_on": self.images.evaluated_on,
            "test_accuracy": evaluation.accuracy,
            "best_test_accuracy": max(tested),
            "test_loss": evaluation.loss,
            "macro_f1": evaluation.macro_f1,
            "worst_class_accuracy": evaluation.worst_class_accuracy,
            "calibration_error": evaluation.calibration_error,
            "class_accuracy": dict(zip(self.images.classes, evaluation.class_accuracy, strict=True)),
            "train_examples": length,
            "test_examples": len(self.images.test),
            "epochs": len(self.rows),
            "planned_epochs": config.epochs,
            "steps": self.steps,
            "examples": self.lean.examples,
            "cost": self.lean.cost,
            "cost_epochs": self.lean.cost / length,
            "train_seconds": self._timing["total"],
            "peak_memory_mb": machine.peak_memory_mb(self.device),
            "bad_images": self.images.bad_images,
            "scores": self._about_scores(),
        }

    def _about_scores(self) -> dict[str, Any] | None:
        told = self.lean.scores_told
        return told and {**told, "cost_epochs": told["cost"] / len(self.images.train)}

    def write_result(self) -> dict[str, Any]:
        result = self.result()
        if self.out is not None:
            self._save_weights(self.out / "model.safetensors")
            write_text(self.out / "result.json", json.dumps(result, indent=2) + "\n")
        return result

    def _save_weights(self, path: Path) -> None:
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.module.state_dict().items()}
        # One entry: safetensors writes several in random order, and equal runs should give equal files.
        data = save(tensors, metadata={"model": str(self.config.model)})
        write_atomically(path, lambda file: file.write(data))

    def write_config(self) -> None:
        """config.yaml: every setting, and what it was made with."""
        assert self.out is not None
        made_with = {
            **machine.describe(self.device),
            "data_fingerprint": self.images.fingerprint,
            "classes": list(self.images.classes),
        }
        content = {**dataclasses.asdict(self.config), "made_with": made_with}
        write_text(self.out / "config.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def save_checkpoint(self) -> None:
        """Everything needed to go on bit for bit. Synchronises with the device; never saves a run gone wrong."""
        if self.out is None:
            return
        self._check_finite(weights=True)
        checkpoint.save(
            self.out / "checkpoint.pt",
            {
                "identity": self._identity(),
                "model": self.module.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "scaler": self._fabric.strategy.precision.state_dict(),
                "lean": self.lean.state_dict(),
                "steps": self.steps,
                "rows": len(self.rows),
                "timing": dict(self._timing),
                "generators": self._generators.now(),
            },
        )

    def load_checkpoint(self) -> bool:
        """Go on from the last checkpoint, if there is one; the metrics of later epochs are dropped and made again."""
        assert self.out is not None
        remove_leftovers(self.out)
        path = self.out / "checkpoint.pt"
        if not path.exists():
            keep_rows(self.out / "metrics.jsonl", 0)
            return False
        saved = checkpoint.load(path)
        for name, now in self._identity().items():
            if saved["identity"].get(name) != now:
                raise LeanError(
                    f"'{path}' belongs to a run with {name} {saved['identity'].get(name)}, not {now}; "
                    "resume with that one, or choose another --out."
                )
        try:
            self.module.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise LeanError(
                f"'{path}' does not fit the model {self.config.model}: {str(error).splitlines()[0]}"
            ) from None
        self._fabric.strategy.precision.load_state_dict(saved["scaler"])
        self.lean.load_state_dict(saved["lean"])
        self.steps, self._timing = saved["steps"], saved["timing"]
        self._generators.set(saved["generators"])
        self.rows = keep_rows(self.out / "metrics.jsonl", saved["rows"])
        return True

    def _identity(self) -> dict[str, Any]:
        return {"model": self.config.model, "data": self.images.fingerprint, "method": self.config.method}


@dataclasses.dataclass(frozen=True)
class _Prepare:
    """Brings batches to the device and augments them there, by draws that depend on example and epoch alone.

    No method of the run: a cycle through it would keep the loader's workers alive after the run.
    """

    augment: Augment
    device: torch.device

    def __call__(self, batch: Batch) -> Batch:
        batch = batch.to(self.device)
        return batch.with_inputs(self.augment.train(batch.inputs, batch.index, batch.epoch))


class _UntilStopped(Notes):
    """The display of models that are trained for a run's scores: its notes, and an end when the run is to stop."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.display)
        self._run = run

    def step(self, examples: int, progress: float) -> None:
        self._run.display.scoring(progress)
        self._run._leave_if_asked()


class _Generators:
    """A run's own copy of torch's global generators (dropout, stochastic depth), in force while it is its turn."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._inside = False
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            self._state = self._read()

    def _read(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    def _write(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self._device)

    def now(self) -> dict[str, Tensor]:
        return self._read() if self._inside else self._state

    def set(self, state: dict[str, Tensor]) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._outside = self._read()
        self._write(self._state)
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._state = self._read()
        self._inside = False
        self._write(self._outside)


def test_batches(images: ImageSet, config: TrainConfig) -> Iterator[Batch]:
    """The test set in order, through the same loader as training."""
    sampler = InOrder(len(images.test), max(config.batch_size, 256))
    options = {"num_workers": config.workers or 0, "pin_memory": bool(config.pin_memory)}
    dataset = PlannedDataset(images.test, None, (0, 1))
    return iter(planned_dataloader(dataset, sampler, generator=generator(0, "evaluation"), **options))


def expected_cost(config: TrainConfig, length: int, side: int = 0) -> float:
    """What a run costs at most, in epochs of plain training, judged by its plans before anything is known.

    Judged on a small set, as shares are the same for any; at moments all over the run, as a method may change with its
    progress.
    """
    assert config.epochs is not None
    method = parse_method(config.method)
    scoring = 0.0 if method.wanted is None else method.wanted.cost
    if config.budget is not None:
        return config.budget * config.epochs
    small = min(length, 16 * config.batch_size)
    moments = min(config.epochs, 20)
    ledger = Ledger(small)
    state, total = method.init(ledger), 0.0
    if isinstance(method, Pruning):
        state |= method.discard(ledger, torch.zeros(small), torch.zeros(small, dtype=torch.int64))
    for number in range(moments):
        moment = Moment(number, number / moments, moments, config.batch_size, side)
        plan, state = method.plan(state, ledger, moment, generator(config.seed, "expected", number))
        total += plan.cost / small
    return scoring + config.epochs * total / moments


def warm_up(run: Run) -> float:
    """Seconds per example of one forward and backward pass, tried on a copy of the model; it also warms the caches."""
    model = copy.deepcopy(run.module).train()
    size = min(run.config.batch_size, len(run.images.train), 64)
    index = torch.arange(size)
    inputs, targets = (x.to(run.device) for x in run.images.train.batch(index, 0))
    seconds = math.inf
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        for _ in range(2):
            started = time.perf_counter()
            with run._fabric.autocast():
                loss = torch.nn.functional.cross_entropy(model(run._augment.train(inputs, index, 0)), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
            seconds = min(seconds, time.perf_counter() - started)
    return seconds / size


def expected_seconds(run: Run) -> float:
    """About how long the rest of the training takes."""
    examples = expected_cost(run.config, len(run.images.train), run.images.image_size) * len(run.images.train)
    return (1.0 - run.lean.progress) * examples * warm_up(run)


def keep_rows(path: Path, count: int) -> list[dict[str, Any]]:
    """The metrics of the first `count` epochs; later or half-written lines are taken out of the file."""
    rows = read_rows(path)[:count]
    if path.exists():
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def log_tensorboard(folder: Path, row: dict[str, Any]) -> None:
    """An epoch's metrics as TensorBoard scalars; one that was logged before a cut is replaced."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=row["epoch"]) as writer:  # type: ignore[no-untyped-call]
        for name, value in row.items():
            if isinstance(value, int | float) and name != "epoch":
                writer.add_scalar(name, value, row["epoch"])  # type: ignore[no-untyped-call]


def evaluate_folder(folder: Path, config: TrainConfig) -> dict[str, Any]:
    """Evaluate the weights that a run saved, on the set that `config` names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    images = load_images(config)
    # As it was built, less what only matters before training: weights to start from, and the machine it ran on.
    precision = "auto" if config.precision == "fp16" else config.precision
    config = dataclasses.replace(
        config, method="sgd", pretrained=False, weights=None, device="auto", precision=precision
    )
    made_with = yaml.safe_load((folder / "config.yaml").read_text()).get("made_with", {})
    if tuple(made_with.get("classes", images.classes)) != images.classes:
        raise LeanError(
            f"the model in '{folder}' tells {', '.join(made_with['classes'][:4])}, … apart, but {config.data} has "
            f"{', '.join(images.classes[:4])}, …; evaluate it on a set of the same classes."
        )
    run = Run(resolve(config, images), images)
    try:
        run.module.load_state_dict(load_file(folder / "model.safetensors"))
    except (RuntimeError, SafetensorError) as error:
        raise LeanError(
            f"the weights in '{folder}' do not fit {config.model} with {len(images.classes)} classes of "
            f"{config.data}: {str(error).splitlines()[0]}"
        ) from None
    outcome = run.evaluate()
    return {
        "data": config.data,
        "model": config.model,
        "evaluated_on": images.evaluated_on,
        "test_accuracy": outcome.accuracy,
        "test_loss": outcome.loss,
        "macro_f1": outcome.macro_f1,
        "worst_class_accuracy": outcome.worst_class_accuracy,
        "calibration_error": outcome.calibration_error,
        "class_accuracy": dict(zip(images.classes, outcome.class_accuracy, strict=True)),
    }

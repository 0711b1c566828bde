"""The training loop: precision, accumulation, schedule, checkpoints and what a run writes down."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from leantrain.batch import Batch
from leantrain.cost import scoring_cost
from leantrain.data import Augment, ImageSet
from leantrain.errors import LeanError, LeanWarning, shortened
from leantrain.lean import Lean
from leantrain.methods import NeedsScores, ScoreRequest, as_method, chain
from leantrain.ranks import gathered, of_the_first, spread_buffers
from leantrain.rng import derive
from leantrain.run import loggers, machine, processes, tuning
from leantrain.run.config import FIELDS, OPERATIONAL, TrainConfig
from leantrain.run.display import Display, Notes, Quiet
from leantrain.run.evaluate import Evaluation, evaluate
from leantrain.run.finite import NotFinite, not_finite_in
from leantrain.run.folder import RunFolder
from leantrain.run.generators import Generators
from leantrain.run.optimizers import build_optimizer
from leantrain.run.precision import Precision
from leantrain.run.setup import (
    build_model,
    evaluation_batches,
)
from leantrain.run.signals import Interrupted, on_stop
from leantrain.schedule import parse_schedule
from leantrain.scoring.kinds import parse_score
from leantrain.scoring.scores import Scores, load
from leantrain.tuning import keep_statistics

STOP_EVERY = 10  # steps after which several processes agree on whether to stop
FINITE_EVERY = 50  # steps between two looks at whether their losses were finite; each look waits for the device


class Run:
    """One training run, epoch by epoch, so that several can take turns.

    Where torchrun started several processes, each has its own and trains its part of every batch; the first one writes.

    A run draws from its own generators; those of the process are as before whenever it is not its turn.

    Args:
        config: resolved settings.
        images: the data set.
        out: where to write; None keeps everything in memory.
        display: what the user sees.
        alone: it has the process to itself, so that the memory which the process held is the run's.
    """

    def __init__(
        self,
        config: TrainConfig,
        images: ImageSet,
        out: Path | None = None,
        display: Display | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self._alone = alone
        assert config.model is not None and config.epochs is not None
        self.batch_size = config.step_size  # a step's batches come as one, and are computed in parts
        self.config = config
        self.images = images
        self.folder = None if out is None else RunFolder(out)
        self.display: Display = display or Quiet()
        self.rank, self.ranks = processes.rank(), processes.count()
        self.device = processes.own_device(torch.device(config.device))
        self.rows: list[dict[str, Any]] = []
        self.evaluation: Evaluation | None = None
        self.steps = 0
        self.stop_signal = 0
        self._heard = 0  # the signal that came; several processes agree on `stop_signal`
        self._timing = {"seconds": 0.0, "data": 0.0, "total": 0.0}
        self._generators = Generators(self.device, self._generator_seed())
        self._schedule = parse_schedule(config.schedule)
        processes.connect(self.device)
        self.precision = Precision(config.precision, self.device)
        # On the CPU also where gradients go from GPU to GPU: to ask whether to stop must not wait for the device.
        self._control = torch.distributed.new_group(backend="gloo") if self.ranks > 1 else None
        self.module = self._build_model()
        self._optimizer = build_optimizer(config, self.module, self.device)
        self._parallel = self._parallelised() if self.ranks > 1 else None
        trained = self._parallel or self.module
        trained = cast(nn.Module, torch.compile(trained)) if config.compile else trained
        self.model = self.precision.wrapped(trained)
        self.augment = Augment(images, config.seed, self.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeanWarning)  # the command says what it warns of itself
            self.lean = Lean(
                self.model,
                images.train,
                config.method,
                epochs=config.epochs,
                budget=config.budget,
                seed=config.seed,
                label_smoothing=config.label_smoothing,
                prepare=self.augment,
                example=self.example_inputs(),
                optimizer=self._optimizer,
            )
        if chain(self.lean.method).wanted_accuracy is not None and images.evaluated_on != "validation":
            raise LeanError(
                f"{self.lean.method} waits for an accuracy on held-out data, and nothing is held out; give "
                "--validation 0.1, or end at a share of the run."
            )
        self._to_fit = 0  # examples that the classifier is fitted to before the first step
        if config.fit_head and tuning.has_new_head(config, images, self.module, self.example_inputs()):
            self._to_fit = tuning.fitted_examples(config, len(images.train), len(images.classes))
            self.lean.pay(scoring_cost(self._to_fit))
        self._loader = self.lean.loader(self.batch_size, **self._loader_options())
        self._never_finite = not_finite_in(self.module)  # a mask of -inf is as it should be
        self._losses = torch.zeros(FINITE_EVERY, device=self.device)  # of the last steps, each at its own place

    # -- what it is made of ------------------------------------------------------------------------------------------

    def _build_model(self) -> nn.Module:
        # A checkpoint replaces the weights to start from.
        model = build_model(self.config, self.images, fresh=self.folder is None or not self.folder.has_checkpoint)
        if self.config.sync_batchnorm and self.ranks > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.config.channels_last else model  # type: ignore[call-overload,no-any-return]

    def _parallelised(self) -> DistributedDataParallel:
        """The network, with gradients that are averaged over the processes."""
        leaves_out = chain(as_method(self.config.method or "plain")).leaves_out(self.images.image_size)
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(self.module, device_ids=devices, find_unused_parameters=leaves_out)

    def example_inputs(self) -> Tensor:
        """Two training images as the model sees them."""
        inputs, _ = self.images.train.batch(torch.arange(min(2, len(self.images.train))), -1)
        return self.augment.evaluate(inputs.to(self.device))

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
        self._make_scores()
        with self._generators:
            written = self.rows[-1]["epoch"] if self.rows else -1
            if not (self.lean.epoch_done and written < self.lean.epoch):  # else: cut between its last step and its row
                self._train_batches()
            return self._finish_epoch()

    def _train_batches(self) -> None:
        started, waited = time.perf_counter(), self._loader.waited
        if self.steps == 0 and self._to_fit:
            found, self._to_fit = tuning.fit(self, self._to_fit), 0
            self.display.note(
                f"head: fitted to {found.examples:,} images, of which {found.accuracy:.1%} are right by a fit to the "
                "others alone"
            )
        batches = iter(self._loader)
        lean, display = self.lean, self.display
        self.augment.strength = lean.epoch_start
        display.epoch(lean.epoch, len(self._loader) + int(lean.epoch_totals["steps"]), int(lean.epoch_totals["steps"]))
        self.model.train()
        if self.config.keep_statistics:
            keep_statistics(self.module)
        for batch in batches:
            self._timing["data"] += self._loader.waited - waited
            waited = self._loader.waited
            self._step(batch)
            display.step(batch.examples, lean.progress)
            self._listen(at_once=False)
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

    def check(self) -> None:
        """Plan the first epoch, so that options which do not fit the data are reported before anything is written."""
        methods = chain(self.lean.method)
        for _, method in methods.having(NeedsScores):
            if method.score_request.file is not None:
                load(Path(method.score_request.file))  # one that is missing is reported before others are made
        if self.lean.score_request is not None:
            self.lean.check_affordable(methods.scores_cost * len(self.images.train))
        else:
            started = time.perf_counter()
            self.lean.start_epoch(self.batch_size)
            self._lap(started)  # choosing may take its time

    def _make_scores(self) -> None:
        """Train the short ensembles that the method's scores come from; their cost and their time are this run's.

        Beside the run they survive a cut, and can be looked at or re-used by another one.
        """
        from leantrain.run.scores import score_images

        number, made = 0, dict[ScoreRequest, Scores]()
        while (request := self.lean.score_request) is not None and request.file is None:
            if request in made:  # two methods ask for the same, which is made and paid for once
                self.lean.use_scores(made[request], reused=True)
                continue
            number += 1
            file = None if self.folder is None else self.folder.scores_file(number)
            scores = load(file) if file is not None and file.exists() else None
            if scores is None or not self._are_own(scores, request):
                many = f"{request.models} model{'s' * (request.models > 1)}"
                self.display.note(f"scoring: {many} of {request.epochs} epoch{'s' * (request.epochs > 1)} each")
                scores = score_images(
                    self.config,
                    self.images,
                    request.score,
                    models=request.models,
                    epochs=request.epochs,
                    display=_UntilStopped(self),
                )
                scores = dataclasses.replace(scores, values=of_the_first(scores.values, self.device))
                if file is not None and self.rank == 0:
                    scores.save(file)
            made[request] = scores
            self.lean.use_scores(scores)
            self._timing["seconds"] += scores.seconds
            self._timing["total"] += scores.seconds

    def _are_own(self, scores: Scores, request: ScoreRequest) -> bool:
        """Whether scores that lie beside the run are those that it would make."""
        score, made = parse_score(request.score), scores.made_with
        options = {name: made.get(name) for name in score.options}
        own = (request.models, request.epochs, self.config.seed, self.images.fingerprint)
        same = own == tuple(made.get(name) for name in ("models", "epochs", "seed", "fingerprint"))
        return same and scores.kind == score.name and options == score.options

    def _lap(self, started: float) -> float:
        """Add the time since `started` to the epoch's clock, once the device has done what it was given."""
        machine.wait_for(self.device)
        now = time.perf_counter()
        self._timing["seconds"] += now - started
        self._timing["total"] += now - started
        return now

    def _step(self, batch: Batch) -> None:
        config = self.config
        rate = self.learning_rate
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        losses = list[Tensor]()
        for part in batch.chunks(config.step_parts):
            waiting = None if part.last else self._parallel  # to average gradients once per step
            with contextlib.nullcontext() if waiting is None else waiting.no_sync():
                loss = self.lean.loss(part)
                self.precision.backward(loss)
            losses.append(loss.detach())
        self.precision.step(self._optimizer, config.clip, self.module.parameters())
        self._optimizer.zero_grad(set_to_none=True)
        # Looked at now and then: asking every step would make the host wait for the GPU.
        self._losses[self.steps % FINITE_EVERY] = sum(losses[1:], start=losses[0])
        self.steps += 1

    @property
    def learning_rate(self) -> float:
        assert self.config.lr is not None and self.config.epochs is not None
        return self.config.lr * self._schedule.at(self.lean.progress, self.config.epochs)

    def _check_finite(self, weights: bool = False) -> None:
        """Stop a run gone wrong; before a checkpoint by weights and statistics too. Synchronises with the device."""
        losses = self._losses.clone()
        if self.ranks > 1:
            torch.distributed.all_reduce(losses)  # one that is not finite makes the sum so
        bad = [place for place, loss in enumerate(losses.tolist()) if not math.isfinite(loss)]
        if bad:
            ago = max((self.steps - 1 - place) % FINITE_EVERY for place in bad)
            raise self._not_finite(self.steps - ago, "loss")
        if weights and not_finite_in(self.module) - self._never_finite:
            raise self._not_finite(self.steps, "largest weight or BatchNorm statistic")

    def _not_finite(self, step: int, what: str) -> NotFinite:
        kept = self.folder is not None and self.folder.has_checkpoint
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
        if evaluated is not None and self.images.evaluated_on == "validation":
            lean.validated(evaluated.accuracy)
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
        if self._written is not None:
            self._written.add_row(row)
            if self.config.history:
                self._written.write_epoch(lean.ledger, lean.epoch)
            every = self.config.keep_weights
            if every and ((lean.epoch + 1) % every == 0 or lean.finished):
                self._written.write_weights(self.module.state_dict(), str(self.config.model), lean.epoch)
            loggers.log_epoch(
                loggers.parse(self.config.log), self._written.path, self.rows, dataclasses.asdict(self.config)
            )
        self.save_checkpoint()
        self.display.row(row)
        if "note" in row:
            self.display.note(f"note: {row['note']}")
        if timing["data"] > 0.5 * timing["seconds"] and timing["seconds"] > 1:
            self.display.note(
                f"note: {timing['data'] / timing['seconds']:.0%} of this epoch was spent waiting for data; "
                f"more --workers (now {self.config.workers}) or smaller images would help more than a faster model."
            )
        self._listen(at_once=True)
        self._leave_if_asked()
        return row

    @property
    def _written(self) -> RunFolder | None:
        """The folder, for what one of several processes writes."""
        return self.folder if self.rank == 0 else None

    def _listen(self, at_once: bool) -> None:
        """Heed a signal. Several processes do so after the same step, and not after every one, unless `at_once`."""
        if self._control is None:
            self.stop_signal = self._heard
        elif at_once or self.steps % STOP_EVERY == 0:
            heard = torch.tensor(self._heard)
            torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX, group=self._control)
            self.stop_signal = int(heard)

    def _leave_if_asked(self) -> None:
        if self.stop_signal:
            raise Interrupted(self.stop_signal)

    def stop(self, number: int) -> None:
        """Save a checkpoint after the step at hand, or soon after, and leave with `Interrupted`."""
        self._heard = number

    def train(self) -> dict[str, Any]:
        """Train to the end and write the result; signals save a checkpoint and raise `Interrupted`."""
        assert self.config.epochs is not None
        self.display.start(self.config.epochs, self.lean.progress)
        try:
            with on_stop(self.stop, once=self.ranks == 1):
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
        spread_buffers(self.module)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def evaluate(self) -> Evaluation:
        return evaluate(self.model, self._test_batches(), len(self.images.classes))

    def _test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in evaluation_batches(self.images.test, self.config, self.rank, self.ranks):
            batch = batch.to(self.device)
            yield self.augment.evaluate(batch.inputs), batch.targets

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
            "peak_memory_mb": machine.peak_memory_mb(self.device) if self._alone else None,
            "bad_images": self.images.bad_images,
            "scores": self._about_scores(),
            "note": self.lean.note,
        }

    def _about_scores(self) -> dict[str, Any] | None:
        summary = self.lean.scores_summary
        return summary and {**summary, "cost_epochs": summary["cost"] / len(self.images.train)}

    def write_result(self) -> dict[str, Any]:
        result = self.result()
        if self._written is not None:
            self._written.write_weights(self.module.state_dict(), str(self.config.model))
            self._written.write_result(result)
        return result

    def write_config(self) -> None:
        """config.yaml: every setting, and what it was made with."""
        if self._written is None:
            return
        made_with = {
            **machine.describe(self.device),
            "data_fingerprint": self.images.fingerprint,
            **self.images.shown(),
        }
        self._written.write_config(self.config, made_with)

    def save_checkpoint(self) -> None:
        """Everything needed to go on bit for bit. Synchronises with the device; never saves a run gone wrong."""
        if self.folder is None:
            return
        self._check_finite(weights=True)
        lean, (generators, *others) = self.lean.state_dict(), gathered(self._generators.now())  # of all processes
        if self._written is None:
            return
        self._written.write_checkpoint(
            {
                "identity": self._identity(),
                "model": self.module.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "scaler": self.precision.state_dict(),
                "lean": lean,
                "steps": self.steps,
                "rows": self.rows,
                "timing": dict(self._timing),
                "generators": generators,
                "other_generators": others,
            },
        )

    def load_checkpoint(self) -> bool:
        """Go on from the last whole checkpoint, if there is one; what came after it is made again."""
        assert self.folder is not None
        if self._written is not None:
            self._written.remove_leftovers()
        path = self.folder.checkpoint_file
        saved = self.folder.checkpoint_to_resume(self.display.note)
        if saved is None:
            if self._written is not None:
                self._written.write_rows([])
            return False
        try:
            self._go_on_from(saved)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise LeanError(
                f"'{path}' does not hold what a checkpoint does ({type(error).__name__}: {shortened(str(error))}); "
                "delete it to start over."
            ) from error
        return True

    def _go_on_from(self, saved: dict[str, Any]) -> None:
        assert self.folder is not None
        self._check_identity(saved["identity"])
        self.lean.load_state_dict(saved["lean"])  # before the weights, as they may be of fewer channels
        self.augment.strength = self.lean.epoch_start  # as planning the next epoch may look at examples
        try:
            self.module.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise LeanError(
                f"'{self.folder.checkpoint_file}' does not fit the model {self.config.model} "
                f"({str(error).splitlines()[0].rstrip(':')}); choose another --out."
            ) from None
        self.precision.load_state_dict(saved["scaler"])
        self.steps, self._timing = saved["steps"], saved["timing"]
        known = [saved["generators"], *saved["other_generators"]]
        if self.rank < len(known):
            self._generators.set(known[self.rank])
        else:  # saved by fewer processes
            self._generators = Generators(self.device, self._generator_seed(self.steps))
        # From the checkpoint, not from the file, in which lines may be damaged or missing by now.
        self.rows = list(saved["rows"])
        if self._written is not None:
            self._written.write_rows(self.rows)

    def _generator_seed(self, *when: int) -> int:
        """What a process's own generators start from: others than those of the others."""
        return derive(self.config.seed, "run", *((self.rank, *when) if self.rank else ()))

    def _identity(self) -> dict[str, Any]:
        """What decides what is computed: a checkpoint goes on with the same alone."""
        settings = {name: getattr(self.config, name) for name in FIELDS if name not in OPERATIONAL}
        return {**settings, "data": self.images.fingerprint}  # its content, not its name

    def _check_identity(self, saved: dict[str, Any]) -> None:
        """Refuse a checkpoint of other settings: another run's, or of a config.yaml that was edited since."""
        assert self.folder is not None
        for name, now in self._identity().items():
            if saved.get(name) != now:
                raise LeanError(
                    f"'{self.folder.checkpoint_file}' belongs to a run with {name} {saved.get(name)}, not {now}; "
                    f"put that back, in {self.folder.settings_file.name} or as the data was, or choose another --out."
                )


class _UntilStopped(Notes):
    """The display of models that are trained for a run's scores: its notes, and an end when the run is to stop."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.display)
        self._run = run

    def step(self, examples: int, progress: float) -> None:
        self._run.display.scoring(progress)
        self._run.stop_signal = self._run._heard  # there is nothing to save yet, so processes need not agree
        self._run._leave_if_asked()

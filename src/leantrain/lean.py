"""Lean: what a training loop holds on to. It plans each epoch, computes each loss and keeps the ledger."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from leantrain.batch import Batch, Key
from leantrain.clock import Stopwatch
from leantrain.coresets import Looked
from leantrain.cost import scoring_cost, training_cost
from leantrain.errors import LeanError, LeanWarning, check_type
from leantrain.estimate import expected_costs
from leantrain.eval_mode import trial
from leantrain.forms import WHOLE, Answer, Form
from leantrain.head import features_of, find_linear_head
from leantrain.ledger import MOST_EPOCHS, Ledger
from leantrain.loader import PlannedDataset, PlannedLoader, check_dataset
from leantrain.methods import (
    Chain,
    Condenses,
    Learns,
    Method,
    Moment,
    Reshapes,
    ScoreRequest,
    Seen,
    Selects,
    Thins,
    choose_method,
    for_a_budget,
)
from leantrain.methods import chain as as_chain
from leantrain.plan import Plan, PlannedBatch, shared_out
from leantrain.ranks import (
    check_rewrappable,
    check_sharding,
    gathered,
    own_rank,
    shared,
    spread_buffers,
    unsynchronised,
    waits_for_all,
    world_size,
    wrap_again,
    wrapping_warning,
)
from leantrain.rng import generator, uniform
from leantrain.schedule import parse_schedule
from leantrain.schedulers import DrivenScheduler, ProgressScheduler
from leantrain.scoring.given import GivenScores
from leantrain.scoring.scores import Scores
from leantrain.scoring.scores import load as load_scores
from leantrain.showing import Presenter
from leantrain.slimming import Slim
from leantrain.split import Split
from leantrain.thinning import gather
from leantrain.tuning import has_learnt

CARRIED = "leantrain"
"""Where a run's state is in that of an optimiser, in its first group of parameters."""
SMALL_SHARE = 8  # inputs per process; who asks for fewer has perhaps divided the batch size already
Criterion = Callable[[Tensor, Tensor], Tensor]
Prepare = Callable[[Batch], Batch]
AUXILIARY = {1: 0.4, 2: 0.3}
"""What each auxiliary head counts, by how many there are: one in Inception v3, two in GoogLeNet, as in their papers."""


class Unpaid(NamedTuple):
    """What of the candidates that were looked at is not in the run's cost yet, as their batch has not been trained.

    Attributes:
        cost: of looking at them.
        kept: how many were kept and wait.
        size: what one of these costs.
    """

    cost: float = 0.0
    kept: int = 0
    size: float = 1.0

    @staticmethod
    def waiting(leftover: Batch | None) -> Unpaid:
        return Unpaid() if leftover is None else Unpaid(0.0, leftover.examples, leftover.form.size)


@dataclasses.dataclass(frozen=True)
class Last:
    """What the model answered in the step that was just made, one row per example; both constituents of a composite.

    Attributes:
        logits: (examples, classes), without a gradient.
        targets: int64 class indices.
        losses: clean losses, as they are recorded.
        index: int64, which examples these are.
    """

    logits: Tensor
    targets: Tensor
    losses: Tensor
    index: Tensor


class Lean:
    """A method at work in a loop: `loader` gives the epoch's batches, `loss` trains on one and records it.

    `leantrain.attach(...)` makes one: it puts a method between a data set and a model, and the loop around it stays
    the caller's. What it knows is in `state_dict`, to go into the loop's own checkpoint.

    Args:
        model: the model that is trained. Wrap it (DDP, Fabric, compile) before or after; assign `lean.model` then.
        dataset: a map-style data set of (input, class index), or of dicts.
        method: a method or a chain of methods, or its text such as `"random-backprop[keep=0.25]"` or
            `"infobatch + progressive-resizing"`. Default: `lean` where there is a budget, else plain training.
        epochs: how many epochs the run stands for.
        budget: the share of the plain run's cost to spend; the run then ends when it is spent, and `progress` is
            the share of it spent.
        seed: what every choice of the method derives from; torch's global generators are left alone.
        criterion: a loss per example, `criterion(logits, targets)` with `reduction="none"`. Default: cross-entropy.
        label_smoothing: for the default criterion; what is recorded stays unsmoothed.
        collate: the data set's own collate function.
        inputs, targets: where an example keeps its input and its label, if not in the usual place.
        prepare: what happens to a batch between loading and the model, such as moving it and augmenting it on the
            device; the loader then gives prepared batches. Methods that look at examples before these are trained on
            need it where the loop would do that itself. If it prepares each example by itself, and so does `collate`,
            an `at_once` of it lets up to so many be loaded and prepared together, for several steps.
        example: a small batch of inputs as the model sees them, to find the split point or the sizes it takes with; by
            default the first two examples of the data set. Give it where inputs are transformed after loading.
        split_layer: the layer that makes the last feature map, where a model's split point is not found by itself.
        optimizer: for a method that removes channels from the model, which the optimiser's momentum loses with them.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        method: Method | str | None = None,
        *,
        epochs: int,
        budget: float | None = None,
        seed: int = 0,
        criterion: Criterion | None = None,
        label_smoothing: float = 0.0,
        collate: Callable[[list[Any]], Any] | None = None,
        inputs: Key | None = None,
        targets: Key | None = None,
        prepare: Prepare | None = None,
        example: Tensor | None = None,
        split_layer: str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        check_type("model", model, nn.Module, "an nn.Module")
        check_type("method", method, Method | str | None, "a method or its text, such as 'infobatch'")
        check_type("epochs", epochs, Integral, "a whole number")
        check_type("budget", budget, Real | None, "a number such as 0.5")
        check_type("seed", seed, Integral, "a whole number")
        check_type("label_smoothing", label_smoothing, Real, "a number")
        for name, given in {"criterion": criterion, "collate": collate, "prepare": prepare}.items():
            check_type(name, given, Callable | None, "a function")
        for name, key in {"inputs": inputs, "targets": targets}.items():
            check_type(name, key, str | int | None, "a key of a batch")
        check_type("split_layer", split_layer, str | None, "a layer's name")
        check_type("optimizer", optimizer, torch.optim.Optimizer | None, "an optimiser of torch's")
        check_dataset(dataset)
        if not 1 <= epochs <= MOST_EPOCHS:
            raise LeanError(f"epochs is {epochs}, but must be a whole number from 1 to {MOST_EPOCHS}.")
        if budget is not None and not budget > 0:
            raise LeanError(f"budget is {budget}, but must be above 0; 0.5 spends half of what plain training costs.")
        if not 0 <= label_smoothing < 1:
            raise LeanError(f"label_smoothing is {label_smoothing}, but must be at least 0 and below 1.")
        if criterion is not None and label_smoothing:
            raise LeanError(
                f"label_smoothing is {label_smoothing}, but your own criterion does its own smoothing; drop one."
            )
        # As they were given, or what leaving them open means; the method is a single one, or a chain.
        self.method, self.budget = choose_method(method, budget)
        self._is_open = method is None and budget is not None  # so the method follows from there being a budget
        self._chain: Chain = as_chain(self.method)
        for text in self._chain.warnings(epochs, self.budget):
            warnings.warn(text, LeanWarning, stacklevel=2)
        self.epochs = epochs
        self.seed = seed
        self.ledger = Ledger(len(dataset))
        self.criterion = criterion
        self.label_smoothing = label_smoothing
        self.examples = 0
        """Examples trained so far."""
        self.cost = 0.0
        """Cost spent so far, in examples of plain training."""
        self.clock = Stopwatch()
        self.synchronised = False
        """Whether gradients are averaged over the ranks outside of `model`, as in Lightning."""
        self._total_cost = None if self.budget is None else self.budget * epochs * len(dataset)
        self._prepare = prepare
        self._states = self._chain.init_all(self.ledger)
        self._given = GivenScores(self._chain)
        self._prepaid = 0.0  # what was spent on the model before the first epoch
        self._plan: Plan | None = None
        self._done = 0
        self._leftover: Batch | None = None  # kept of the candidates so far, and not yet trained
        self._ahead: dict[str, Any] = {}  # what looking at candidates changed in the state, ahead of their training
        self._unpaid = Unpaid()
        self._done_cost = 0.0
        self._done_examples = 0
        self._done_steps = 0
        self._span = (0.0, 0.0)  # progress at the start and at the end of the epoch
        self._ended = False  # by a method that waited for an accuracy
        self._resumed = False
        self._planned_for = 0  # the batch size that the plan was made for
        self._reported: tuple[int, dict[str, Any]] | None = None  # the last epoch reported, and its report
        self._is_checked = False  # whether the model is wrapped as several processes need it
        self._is_carried = False  # by an optimiser's state
        self._agreed = True  # whether all ranks know what each of them recorded
        self._warned: set[str] = set()
        self._last: Last | None = None
        self._batch_size = 0  # of the loader that was made last
        check_sharding(model)
        self._dataset = PlannedDataset(dataset, collate, (0, 1), own_rank(), world_size(), seed)
        self._dataset.find_keys(inputs, targets)
        selects = bool(self._chain.having(Selects))
        # Every step asks for these two, and looking a protocol up takes about 0.1 ms.
        self._reshaping, self._learning = self._chain.having(Reshapes), self._chain.learners
        self.optimizer = optimizer
        """The loop's optimiser, where it was given."""
        if self._reshaping and optimizer is None:
            raise LeanError(
                f"{self.method} removes channels from the model, and the optimiser's momentum must lose the same; give "
                "it as attach(optimizer=…)."
            )
        self._read_score_files()
        self._split_layer, self._given_example = split_layer, example
        self._presenter = self.presenter(model, self.clock)
        if optimizer is not None and self._reshaping:
            optimizer.register_step_post_hook(self._shrink)
        self._head = find_linear_head(model, self._example(model)) if selects else None
        if self.note is not None:
            warnings.warn(self.note, LeanWarning, stacklevel=2)

    def presenter(self, model: nn.Module, clock: Stopwatch | None = None) -> Presenter:
        """What shows batches to a model in the method's forms; another one than the run's own for a copy of it."""
        example = functools.partial(self._example, model)
        clock = Stopwatch() if clock is None else clock
        return Presenter(model, self._chain, example, self._split_layer, self.ledger, self.seed, clock)

    @property
    def note(self) -> str | None:
        """What to know before training of how the model takes the method's ways of showing examples; None if nothing.

        That it shows none smaller, where the model takes no other size; or that it keeps the images of a composite
        badly apart (`lean.split.leak()`).
        """
        return self._presenter.note

    @property
    def forms(self) -> tuple[Form, ...]:
        """Every form but whole in which the method may show examples to this model."""
        return self._presenter.forms

    def expected_costs(self, batch_size: int, budget: float | None = None) -> dict[Form, float]:
        """About what the rest of the run costs in each form, in epochs of plain training.

        Judged before anything is known of the examples; without what choosing and scoring them costs.

        Args:
            budget: as if the run had this one.
        """
        shown = self._presenter
        return expected_costs(
            self.method,
            examples=len(self.ledger),
            epochs=self.epochs,
            batch_size=batch_size,
            side=shown.side,
            budget=self.budget if budget is None else budget,
            progress=self.progress,
            offer=shown.offer,
            fitted=shown.fitted,
        )

    def answer(self, batch: Batch) -> Answer:
        """The model's answer to a batch in its form, with nothing trained or recorded."""
        return self._presenter.answer(batch)

    @property
    def model(self) -> nn.Module:
        """The model that is trained; assign it again once it is wrapped."""
        return self._presenter.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._presenter.model = model
        self._is_checked = False

    @property
    def split(self) -> Split | None:
        """Where the model is split for composites; None where it is not."""
        return self._presenter.split

    # -- the epoch ---------------------------------------------------------------------------------------------------

    def loader(
        self,
        batch_size: int | None = None,
        *,
        batch_size_per_rank: int | None = None,
        unpacked: bool = False,
        **options: Any,
    ) -> PlannedLoader:
        """The batches of every epoch: each `iter()` starts one.

        Args:
            batch_size: inputs per optimiser step, of all processes together.
            batch_size_per_rank: instead of it, inputs per step of each process.
            unpacked: for a loop that has `for images, targets in loader` and keeps it: `images` is then the batch
                itself, to be moved and given to `loss`.
            options: those of torch's DataLoader.
        """
        ranks = self._dataset.ranks
        sizes = {"batch_size": batch_size, "batch_size_per_rank": batch_size_per_rank}
        given = {name: size for name, size in sizes.items() if size is not None}
        if len(given) != 1:
            raise LeanError(
                f"batch_size is {batch_size} and batch_size_per_rank is {batch_size_per_rank}; give one of them."
            )
        for name, size in given.items():
            check_type(name, size, Integral, "a whole number")
            if size < 1:
                raise LeanError(f"{name} is {size}, but must be at least 1.")
        if batch_size is not None and ranks > 1 and batch_size < SMALL_SHARE * ranks:
            warnings.warn(
                f"batch_size is {batch_size}, of all {ranks} processes together, so each gets {batch_size / ranks:.2g} "
                f"inputs per step; if it was divided by {ranks} already, say batch_size_per_rank={batch_size}.",
                LeanWarning,
                stacklevel=2,
            )
        self._batch_size = batch_size or given["batch_size_per_rank"] * ranks
        # Of several processes each loads a part of every batch.
        at_once = getattr(self._prepare, "at_once", 1) if ranks == 1 else 1
        return PlannedLoader(self, self._dataset, self._batch_size, options, unpacked, at_once)

    def passes(self, start: int = 0) -> Iterator[int]:
        """Numbers for the loop over epochs, until the run is finished: `for epoch in lean.passes(): …`.

        A budget pays for more passes over the loader than the epochs that the run stands for, or for fewer, so that a
        loop over a fixed number would leave some of it unspent, with the learning rate not down.

        Args:
            start: the first of them, in a loop that goes on with a run.
        """
        if start > 1 and self._plan is None:  # some count from 1
            self.warn_once(
                f"the loop goes on with epoch {start}, but this run begins anew, with all of its {self.epochs} epochs: "
                "its state was not loaded; see lean.state_dict, or lean.save_with."
            )
        for number in itertools.count(start):
            if self.finished:
                return
            before = self.cost
            yield number
            if self.cost == before:
                raise LeanError(
                    f"nothing was trained in pass {number}, so the loop over lean.passes() would not end; iterate over "
                    "the loader and call lean.loss(batch) in it."
                )
            if self._total_cost is None and self.epoch + 1 >= self.epochs:  # also where the loop left an epoch early
                return

    @property
    def max_steps(self) -> int:
        """More steps than these no run of the loader's batch size takes, for loops and trainers that want a bound.

        How many it really takes follows from what its method leaves out, and from when the budget is spent. A budget's
        bound is loose: it is that of half-filled batches of the cheapest examples.
        """
        if not self._batch_size:
            raise LeanError("max_steps follows from the batch size; make the loader with lean.loader(...) first.")
        forms = self._presenter.forms
        # A form of its own may end in a batch that is not full, and so do those that a method kept of candidates.
        short = 1 + max((form.constituents for form in forms), default=1)
        inputs, full = float(self.epochs * len(self.ledger)), 1.0
        if self._total_cost is not None:
            inputs, full = self._total_cost / min((form.size for form in forms), default=1.0), 0.5
        return math.ceil(inputs / (full * self._batch_size)) + self.epochs * short

    def scheduler(self, optimizer: torch.optim.Optimizer, schedule: str = "linear") -> ProgressScheduler:
        """A learning-rate scheduler that follows `progress`, and so decays fully whatever is skipped.

        Args:
            optimizer: each of its parameter groups keeps its own base learning rate.
            schedule: by name, `linear`, `cosine`, `onecycle`, `step` or `constant`, with options as in
                `"step[every=30]"`.
        """
        return ProgressScheduler(optimizer, parse_schedule(schedule), lambda: self.progress, self.epochs)

    def drive(self, scheduler: LRScheduler, steps: int | None = None) -> DrivenScheduler:
        """One of torch's schedulers that counts steps, driven by `progress` from its first step to its last.

        Args:
            scheduler: made for as many steps as you like, such as `OneCycleLR(..., total_steps=1000)`.
            steps: how many it is made for, or the epochs where it counts these; OneCycleLR and CosineAnnealingLR say so
                themselves.
        """
        return DrivenScheduler(scheduler, steps, lambda: self.progress)

    @property
    def plan(self) -> Plan:
        """The plan of the epoch that runs, or ran last."""
        if self._plan is None:
            raise LeanError("no epoch has been planned yet; iterate over lean.loader(...) first.")
        return self._plan

    @property
    def epoch(self) -> int:
        """The epoch that runs, or ran last; -1 before the first."""
        return -1 if self._plan is None else self._plan.epoch

    @property
    def position(self) -> int:
        """How many batches of this epoch have been trained on."""
        return self._done

    @property
    def epoch_done(self) -> bool:
        """Whether everything that this epoch trains on has been trained."""
        return self._plan is not None and self._done >= len(self._plan) and self._leftover is None

    @property
    def epoch_totals(self) -> dict[str, float]:
        """What this epoch has really done so far: its steps, its examples and their cost."""
        return {"steps": self._done_steps, "examples": self._done_examples, "cost": self._done_cost}

    @property
    def progress(self) -> float:
        """0…1, how far the run is; drive the learning rate with it, so that it decays fully whatever is skipped."""
        if self._plan is None:
            return 0.0
        start, end = self._span
        if self._spends:  # what the epoch will cost is not known, but what was spent is
            return 1.0 if self.finished and not self._ended_early else min(1.0, self._spent_share)
        done = self._done_cost / self._plan.cost
        if self._plan.thinning is not None:  # how many of its candidates had their turn is known too
            waits = 0.5 if self._done >= len(self._plan) and self._leftover is not None else 0.0
            done = (self._done - waits) / len(self._plan)
        return start + (end - start) * min(1.0, done)

    @property
    def epoch_start(self) -> float:
        """What `progress` was when this epoch started."""
        return self._span[0]

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the budget is spent, or a method has ended the run before."""
        if self._spends:
            done = self._is_spent or self._done_cost == 0
        else:
            done = self._span[1] >= 1.0
        return self.epoch_done and (done or self._ended_early)

    @property
    def _ended_early(self) -> bool:
        """Whether a method ends the run with this epoch, before its schedule does."""
        reached = self._spent_share if self._spends else self._span[1]
        return self._ended or (reached >= self._chain.end - 1e-9 and self._chain.end < 1.0)

    def validated(self, accuracy: float) -> None:
        """Tell the method the accuracy on held-out data after an epoch; one that waited for it ends the run."""
        wanted = self._chain.wanted_accuracy
        self._ended = self._ended or (wanted is not None and accuracy >= wanted)

    @property
    def _spends(self) -> bool:
        """Whether the run goes on until its budget is spent, as what an epoch costs shows afterwards only."""
        return self._total_cost is not None and self._plan is not None and self._plan.thinning is not None

    @property
    def _spent_share(self) -> float:
        """What is spent of the budget, without what was paid for before the first epoch."""
        assert self._total_cost is not None
        before = self._given.paid + self._prepaid
        return (self.cost - before) / (self._total_cost - before)

    @property
    def _is_spent(self) -> bool:
        """Whether what is left of the budget, once those that wait are trained, is not worth a batch of its own."""
        assert self._total_cost is not None
        left = self._total_cost - self.cost - self._unpaid.cost - training_cost(self._unpaid.kept, self._unpaid.size)
        return left < 0.5 * training_cost(self._planned_for, self._unpaid.size)

    @property
    def score_request(self) -> ScoreRequest | None:
        """The scores that the method needs next and has not been given yet; see `use_scores`."""
        return self._given.request

    @property
    def decides_inside(self) -> bool:
        """Whether the method decides inside the epoch what is trained on, so that costs are known afterwards only."""
        return self._chain.thinner is not None

    @property
    def cost_share(self) -> float:
        """What was spent so far, as a share of what plain training of all epochs costs."""
        return self.cost / (self.epochs * len(self.ledger))

    def start_epoch(self, batch_size: int) -> Plan:
        """Plan the next epoch; or go on with the one that is planned, if it has not begun or was cut and resumed.

        So asking for a loader's length, looking at a first batch or making another loader of that batch size costs no
        epoch.
        """
        self._check_model()
        if self._plan is not None:
            waiting = self._done == 0 and self._done_cost == 0 and self._planned_for == batch_size
            cut = self._resumed and not self.epoch_done
            if waiting or cut:
                return self._plan
            self.report()  # while the ledger still says what the epoch was
        elif self._is_open and has_learnt(self.model):
            self.warn_once(
                f"the model comes with weights, and a budget alone means {self.method}, which is for training from "
                f"nothing; to fine-tune, give method='{for_a_budget(tuned=True)}' (docs/own-loop.md, 'Fine-tuning')."
            )
        self._read_score_files(required=True)
        if (request := self.score_request) is not None:
            raise LeanError(
                f"{self.method} prunes by {request.score} scores and has none; make them with leantrain.score or "
                "`leantrain score` and give the file as scores=FILE, or call lean.use_scores."
            )
        self._planned_for, self._resumed = batch_size, False
        budgeted = self._total_cost is not None
        start = min(1.0, self._spent_share) if budgeted else self._span[1]
        left = math.inf if self._total_cost is None else self._total_cost - self.cost
        shown = self._presenter
        moment = Moment(
            self.epoch + 1, start, self.epochs, batch_size, shown.side, left, budget=self.budget, offer=shown.offer
        )
        self._agree()
        self._reshape(moment)
        rng = generator(self.seed, "plan", moment.epoch)
        selection = functools.partial(self.clock.measure, "selection", torch.device("cpu"))
        measure = functools.partial(self._measure, moment=moment)
        look = functools.cache(functools.partial(self._look, moment))  # once for all methods that choose by it
        worth = moment.epoch == 0 or left > len(self.ledger)  # a choice for the rest of the budget
        draft, self._states = self._chain.draft_all(
            self._states, self.ledger, moment, rng, measure, selection, look if worth else None
        )
        if shown.channels is not None:  # also after the method's `until`: what is removed stays so
            draft = draft.show(Slim.name, shown.channels.share)
        left = math.inf if self._total_cost is None else self._total_cost - self.cost
        with selection():
            # Fitted before the cost is asked for, which follows from the sizes really shown.
            plan = self._presenter.fitted(draft.cut(moment.epoch, batch_size, rng))
        if not budgeted:
            end = min(1.0, (moment.epoch + 1) / self.epochs)
        else:
            planned = plan.cost
            plan = plan.truncated(left) if plan.thinning is None else plan
            # Cut, or what would be left is not worth a batch of its own: this epoch is the last one.
            is_last = plan.cost < planned or left - plan.cost < 0.5 * plan.cost / len(plan)
            end = 1.0 if is_last else min(1.0, start + (1.0 - start) * plan.cost / left)
        self._plan, self._done, self._leftover, self._span = plan, 0, None, (start, end)
        self._done_cost, self._done_examples, self._done_steps = 0.0, 0, 0
        return plan

    def _reshape(self, moment: Moment) -> None:
        """Let a method take channels out of the model, or put some in; every rank does the same to the same weights."""
        for place, method in self._reshaping:
            if self._chain.methods[place].active(moment):
                channels, optimizer = self._presenter.channels, self.optimizer
                assert channels is not None and optimizer is not None
                rng = generator(self.seed, "reshape", moment.epoch)
                before = list(self.model.parameters())
                self._states[place] = method.reshape(self._states[place], channels, optimizer, moment, rng)
                if any(old is not new for old, new in zip(before, self.model.parameters(), strict=True)):
                    wrap_again(self.model)

    def _shrink(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """After a step of the optimiser, the lasso's part of it, in the epochs of the method that has one."""
        moment = Moment(self.epoch, self._span[0], self.epochs, self._planned_for)
        for place, _ in self._reshaping:
            coefficient, channels = self._states[place]["coefficient"], self._presenter.channels
            if coefficient is not None and channels is not None and self._chain.methods[place].active(moment):
                channels.shrink(coefficient, optimizer)

    def _weigh_lasso(self, loss: Tensor, batch: Batch) -> None:
        """Fix what the lasso counts, by the loss of the run's first step; once, as it waits for the device."""
        for place, method in self._reshaping:
            if self._states[place]["coefficient"] is None and (channels := self._presenter.channels) is not None:
                own = (0.0, 0.0) if batch.padding else (float(loss.detach()), len(batch) / batch.form.constituents)
                losses, inputs = map(math.fsum, zip(*gathered(own), strict=True))  # of one part, over all ranks
                mean = losses * batch.total / inputs
                self._update(place, {"coefficient": method.coefficient(mean, channels.lasso())})

    def _check_model(self) -> None:
        """What several processes need of the model, once it is wrapped and before the first batch."""
        if not self._is_checked:
            self._is_checked = True
            check_sharding(self.model)
            if not self.synchronised and (text := wrapping_warning(self.model)) is not None:
                warnings.warn(text, LeanWarning, stacklevel=3)
            if self._reshaping:
                check_rewrappable(self.model)
            if self._presenter.leaves_out and waits_for_all(self.model):
                raise LeanError(
                    f"{self.method} leaves parameters without a gradient, for which DistributedDataParallel would "
                    "wait; wrap the model with find_unused_parameters=True."
                )

    def use_scores(self, scores: Scores, *, reused: bool = False) -> None:
        """Give the method the scores it asks for (`score_request`), before the first epoch.

        Args:
            scores: of this very data set, by its examples' ids; made by `leantrain.score` or read from a file.
            reused: they were paid for elsewhere; their cost is reported, but not counted in this run.
        """
        self._given.check_wanted(self.method)
        if self._plan is not None:
            raise LeanError(f"{self.method} has begun without these scores; give them to a new run.")
        if not reused:
            self.check_affordable(scores.cost)
        self._given.use(scores, reused, self._states, self.ledger, self._dataset.source)
        self.cost += 0.0 if reused else scores.cost
        self._read_score_files()  # of the methods behind it

    def _read_score_files(self, required: bool = False) -> None:
        """Use the files of scores that the method names; unless they are required by now, as far as they are there."""
        while (request := self.score_request) is not None and request.file is not None:
            if not required and not Path(request.file).exists():
                return
            self.use_scores(load_scores(Path(request.file)), reused=True)

    @property
    def scores_summary(self) -> dict[str, Any] | None:
        """What the scores that the method prunes by cost, whether that is counted here, and what they did."""
        return self._given.summary

    def pay(self, cost: float) -> None:
        """Count what is spent on the model before the first epoch, such as on `fit_head`; a budget pays for it first.

        Args:
            cost: in examples of plain training, of which a forward pass is a third.
        """
        if self._plan is not None:
            raise LeanError(
                "what comes before training is paid for before the first epoch, and that is planned by now."
            )
        if self._total_cost is not None and self.cost + cost >= self._total_cost:
            raise LeanError(
                f"what comes before training costs {cost:,.0f} examples, and the budget of {self.budget} is "
                f"{self._total_cost:,.0f}; raise it."
            )
        self._prepaid += cost
        self.cost += cost

    def check_affordable(self, cost: float) -> None:
        """Refuse scores that would use the whole budget up."""
        if self._total_cost is not None and self.cost + cost >= self._total_cost:
            raise LeanError(
                f"making the scores of {self.method} costs {cost:,.0f} examples, and the budget of {self.budget} is "
                f"{self._total_cost:,.0f}; raise the budget or re-use scores with scores=FILE."
            )

    def _measure(self, index: Tensor, moment: Moment) -> None:
        """Look at the losses of examples without training on them, at the size at which the others were trained."""
        form = WHOLE if self._plan is None else self._plan.forms[int(self._plan.form_of[-1])].alone()
        with self.clock.measure("measuring", self._device(self.model)):
            ranks = self._dataset.ranks
            spread_buffers(self.model)
            mine = index.tensor_split(ranks)[self._dataset.rank]
            for part in torch.split(mine, moment.batch_size) if len(mine) else ():
                # Each rank asks for its own part, so what is planned for all of them repeats it.
                planned = PlannedBatch(0, moment.epoch, part.long().repeat(ranks).cpu(), None, form)
                batch = self.prepared(self._dataset[planned]).to(self._device(self.model))
                losses, correct = self._presenter.look(batch, in_step=False)
                self.ledger.observe(batch.index, losses, correct)
        self._agreed = False
        self._agree()

    @torch.no_grad()
    def _look(self, moment: Moment) -> Looked:
        """Ask the model about every example, whole and in evaluation mode; the forward passes are paid for.

        Each rank asks about its own part and all hear every answer, so that all choose the same.
        """
        head = self._head
        assert head is not None
        device, rows, ranks = self._device(self.model), list[Tensor](), self._dataset.ranks
        with self.clock.measure("measuring", device), trial(self.model), features_of(head) as given:
            spread_buffers(self.model)
            parts = torch.arange(len(self.ledger)).tensor_split(ranks)
            mine = parts[self._dataset.rank]
            with unsynchronised(self.model):
                for part in torch.split(mine, moment.batch_size) if len(mine) else ():
                    planned = PlannedBatch(0, moment.epoch, part.repeat(ranks), None, WHOLE)
                    batch = self.prepared(self._dataset[planned]).to(device)
                    logits = self._presenter.answer(batch).logits.float()
                    rows.append(torch.cat([batch.targets.unsqueeze(1), given.pop().float(), logits], 1))
            width = 1 + head.in_features
            whole = torch.cat(rows) if rows else torch.empty(0, width + head.out_features, device=device)
            if ranks > 1:
                whole = shared(whole, torch.cat([torch.full_like(part, rank) for rank, part in enumerate(parts)]))
        self.cost += scoring_cost(len(self.ledger))
        targets, features, logits = whole.cpu().tensor_split([1, width], dim=1)
        return Looked(targets.squeeze(1).long(), features, logits)

    def prepared(self, batch: Batch) -> Batch:
        """The batch as the model is to see it."""
        return batch if self._prepare is None else self._prepare(batch)

    def thinned(self, candidates: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
        """Batches of what the method keeps of these candidates."""
        self._ahead = {}
        refill = self.plan.thinning is None or self.plan.thinning.refill
        waiting = None if self._leftover is None else self._leftover.to(self._device(self.model))
        self._unpaid = Unpaid.waiting(self._leftover)
        rank, ranks = self._dataset.rank, self._dataset.ranks
        unpaid = yield from gather(self._affordable(candidates), self._keep, batch_size, waiting, refill, rank, ranks)
        if unpaid is not None:  # nothing was kept after the last batch, if there was one
            spent, changed = unpaid
            self._done, self._leftover = len(self.plan), None
            self.cost += spent
            self._done_cost += spent
            self._unpaid = Unpaid()
            self._update(self._thinner[0], changed)

    def _affordable(self, candidates: Iterator[Batch]) -> Iterator[Batch]:
        """The candidates of this epoch, until the budget is spent."""
        for batch in candidates:
            if self._spends and self._is_spent:
                return
            yield batch

    def _keep(self, batch: Batch) -> tuple[Batch, float, dict[str, Any]]:
        batch = dataclasses.replace(batch.to(self._device(self.model)), changed=False)  # from here on, by the loop
        cost, losses = 0.0, None
        place, method = self._thinner
        with self.clock.measure("scoring", batch.index.device):
            thinning = self.plan.thinning
            if thinning is not None and thinning.scored:
                self._agreed = False
                cost = scoring_cost(batch.examples, batch.form.size)
                losses, correct = self._presenter.look(batch, in_step=True)
                if not batch.padding:
                    self.ledger.observe(batch.index, losses, correct)
            seen = self._seen(method, batch, losses)
            index = batch.index if batch.owner is None else self.plan[batch.position].index.to(batch.index.device)
            draws = uniform(self.seed, batch.epoch, index, 1, "thin").squeeze(1)
            mask, changed = method.thin({**self._states[place], **self._ahead}, seen, draws)
            places = mask.nonzero().squeeze(1)  # how many are kept decides what follows: the host must know
            kept = batch.pick(places if batch.owner is None else places.cpu(), self._dataset.rank)
        self._ahead = {**self._ahead, **changed}
        self._unpaid = Unpaid(self._unpaid.cost + cost, self._unpaid.kept + kept.examples, batch.form.size)
        return kept, cost, changed

    def _seen(self, method: Thins | Learns, batch: Batch, losses: Tensor | None, classes: int = 0) -> Seen:
        """A batch as a method may know it: what all ranks hold of it, by one exchange of a few numbers per example."""
        rows = method.condense(batch.inputs) if isinstance(method, Condenses) else None
        if batch.owner is None:
            return Seen(batch.inputs if rows is None else rows, batch.targets, losses, classes)
        known = None if losses is None else losses[:, None]
        mine = torch.cat([part.float() for part in (batch.targets[:, None], known, rows) if part is not None], dim=1)
        whole = shared(mine[:0] if batch.padding else mine, batch.owner)
        targets, rest = whole[:, 0].long(), whole[:, 1:]
        if losses is not None:
            losses, rest = rest[:, 0].contiguous(), rest[:, 1:]
        return Seen(None if rows is None else rest, targets, losses, classes)

    @property
    def _thinner(self) -> tuple[int, Thins]:
        assert self._chain.thinner is not None
        return self._chain.thinner

    def _update(self, place: int, changed: dict[str, Any]) -> None:
        """Change some entries of one method's state."""
        self._states[place] = {**self._states[place], **changed}

    def report(self) -> dict[str, Any]:
        """What the epoch that just ended says: mean loss and accuracy of its examples, and the method's own words.

        Over several ranks all of them must call it, as it lets their ledgers agree.
        """
        planned_ahead = self._done_cost == 0  # as by len(loader); the last epoch is the one to tell of
        if self._reported is None or (self._reported[0] != self.epoch and not planned_ahead):
            self._reported = (self.epoch, self._make_report())
        return self._reported[1]

    def pass_ended(self) -> None:
        """Let all ranks agree where one of them may save alone, as its optimiser's state has the run's in it."""
        if self._is_carried:
            self._agree()

    def _agree(self) -> None:
        """Let the ledgers of all ranks agree: where the model is, as NCCL speaks from a GPU only."""
        if world_size() != self._dataset.ranks:
            raise LeanError(
                f"attach found {self._dataset.ranks} process, but {world_size()} train together; "
                "call it after torch.distributed.init_process_group, or after fabric.launch."
            )
        if world_size() > 1 and not self._agreed:
            self.ledger.to(self._device(self.model))
            self.ledger.synchronise()
        self._agreed = True

    def _make_report(self) -> dict[str, Any]:
        self._agree()
        seen = self.ledger.seen_in(self.epoch)
        count = max(1, int(seen.count_nonzero()))
        loss = float(torch.where(seen, self.ledger["loss"], 0).sum(dtype=torch.float64)) / count
        accuracy = int((seen & self.ledger["correct"]).count_nonzero()) / count
        return {
            "train_loss": loss,
            "train_accuracy": accuracy,
            **self._chain.report_all(self._states, self.ledger, self.plan),
            **{f"{name}_seconds": seconds for name, seconds in self.clock.take().items()},
        }

    def warn_once(self, text: str) -> None:
        """Warn, unless this run has said so before."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, LeanWarning, stacklevel=3)

    # -- the step ----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Tensor:
        """The loss to call `backward` on; records every example's own clean loss on the way, without a device sync."""
        if not isinstance(batch, Batch):
            raise LeanError(
                f"lean.loss got a {type(batch).__name__}; give it the batch that the loader gave, with other inputs by "
                "batch.with_inputs(…)."
            )
        if batch.epoch != self.epoch:
            raise LeanError(
                f"this batch belongs to epoch {batch.epoch}, but epoch {self.epoch} is running; "
                "use each batch in the epoch whose loader gave it."
            )
        if batch.changed and batch.after is not None:
            self.warn_once(
                f"{self.method} has looked at other inputs than the loop trains on, as with_inputs changed them since; "
                "give what the loop does to a batch as attach(prepare=…)."
            )
        if batch.index.device != (device := self._device(self.model)):
            batch = batch.to(device)
        targets = batch.targets
        answer = self._presenter.answer(batch)
        logits = answer.logits
        own = self._criterion(logits, targets)
        is_clean = self.criterion is None and not self.label_smoothing
        clean = own.detach() if is_clean else F.cross_entropy(logits.detach().float(), targets, reduction="none")
        if not batch.padding:
            self._last = Last(logits.detach(), targets, clean, batch.index)
            self.ledger.record(batch.index, clean, logits.detach().argmax(1) == targets, batch.form, batch.epoch)
        self._count(batch)
        for place, method in self._learners():
            with self.clock.measure("learning", targets.device):
                seen = self._seen(method, batch, clean, logits.shape[1])
                self._update(place, method.learn(self._states[place], seen))
        losses = self._minimised(logits, answer, batch, own)
        for other in answer.auxiliary:
            losses = losses + AUXILIARY.get(len(answer.auxiliary), 0.3) * self._minimised(other, answer, batch)
        loss = losses.sum() * (0.0 if batch.padding else 1.0 / batch.total)
        self._weigh_lasso(loss, batch)
        return loss

    @property
    def last(self) -> Last:
        """The logits, targets and losses of the last `loss`, for meters; of a part, where a batch is trained in parts.

        Where this rank had nothing but padding, those of the step before.
        """
        if self._last is None:
            raise LeanError("no loss has been computed yet; lean.last is about the last lean.loss(batch).")
        return self._last

    def _learners(self) -> list[tuple[int, Learns]]:
        """The methods that learn from this epoch: all that learn, until they are done with the run."""
        return [(place, one) for place, one in self._learning if self._span[0] < self._chain.methods[place].until]

    def _minimised(self, logits: Tensor, answer: Answer, batch: Batch, own: Tensor | None = None) -> Tensor:
        """The losses to minimise of the answer of one head, each by its share and weight.

        Args:
            own: the losses with the examples' own labels, where they are known.
        """
        targets, weight, shares, partners = batch.targets, batch.weight, answer.shares, answer.partners
        losses = _weighted(self._criterion(logits, targets) if own is None else own, shares, weight)
        if partners is not None and shares is not None:  # the second label's part, with its own example's weight
            others = None if weight is None else weight[partners]
            losses = losses + _weighted(self._criterion(logits, targets[partners]), 1.0 - shares, others)
        return losses

    def _criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.criterion is None:
            return F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=self.label_smoothing)
        losses = self.criterion(logits, targets)
        if losses.shape != targets.shape:
            raise LeanError(
                f"the criterion gave a loss of shape {tuple(losses.shape)} for {len(targets)} examples; "
                'it must give one loss per example (reduction="none").'
            )
        return losses

    def _count(self, batch: Batch) -> None:
        self._agreed = False
        self.cost += batch.cost
        self._done_cost += batch.cost
        self._resumed = False
        if not batch.last:
            return
        self._done = batch.position + 1
        if batch.after is None:
            start, stop = self.plan.offsets[batch.position : batch.position + 2].tolist()
            examples = stop - start  # on all ranks, like the cost
        else:
            examples = round(batch.total * self._dataset.ranks)
            self._leftover = batch.after.leftover
            self._unpaid = Unpaid.waiting(self._leftover)
            self._update(self._thinner[0], batch.after.state)
            if self._spends and self._is_spent and self._leftover is None:
                self._done = len(self.plan)  # the candidates that are left have no turn
        self.examples += examples
        self._done_examples += examples
        self._done_steps += 1

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here bit for bit: tensors and plain values only.

        Over several ranks all of them must call it, as it lets their ledgers agree; one of them saves it.
        """
        self._agree()
        return {
            "method": str(self.method),
            "seed": self.seed,
            "epochs": self.epochs,
            "budget": self.budget,
            "ledger": self.ledger.state_dict(),
            "states": self._states,
            "scores": self._given.state_dict(),
            "plan": None if self._plan is None else self._plan.state_dict(),
            "done": self._done,
            "done_cost": self._done_cost,
            "done_examples": self._done_examples,
            "done_steps": self._done_steps,
            "leftover": None if self._leftover is None else self._whole(self._leftover).state_dict(),
            "ranks": self._dataset.ranks,
            "span": list(self._span),
            "ended": self._ended,
            "cost": self.cost,
            "prepaid": self._prepaid,
            "examples": self.examples,
            "planned_for": self._planned_for,
            "reported": None if self._reported is None else [self._reported[0], _timeless(self._reported[1])],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the next `iter()` over the loader continues that epoch."""
        for name in ("method", "seed", "epochs", "budget"):
            now = str(self.method) if name == "method" else getattr(self, name)
            if state[name] != now:
                raise LeanError(f"the saved run has {name} {state[name]}, this one {now}; they must be the same.")
        self.ledger.load_state_dict(state["ledger"])
        self._states = list(state["states"])
        self._given.load_state_dict(state["scores"])
        self._plan = None if state["plan"] is None else Plan.from_state_dict(state["plan"])
        self._done, self._done_cost = state["done"], state["done_cost"]
        self._done_examples, self._done_steps = state["done_examples"], state["done_steps"]
        self._leftover = None
        if state["leftover"] is not None:
            self._leftover = self._part(Batch.from_state_dict(state["leftover"]), state.get("ranks", 1))
        self._ahead, self._unpaid = {}, Unpaid.waiting(self._leftover)
        self._span = (state["span"][0], state["span"][1])
        self._ended = state.get("ended", False)
        self.cost, self.examples = state["cost"], state["examples"]
        self._prepaid = state.get("prepaid", 0.0)
        self._planned_for = state["planned_for"]
        self._reported = None if state["reported"] is None else (state["reported"][0], state["reported"][1])
        self._resumed = True
        self._restore_channels()

    def _restore_channels(self) -> None:
        """Give the model the widths that it had, so that the weights which were saved then fit."""
        for place, _ in self._reshaping:
            if (widths := self._states[place]["widths"]) is not None and self._presenter.channels is not None:
                self._presenter.channels.resize(widths, self.optimizer)
                wrap_again(self.model)

    def save_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser's own state hold the run's, for a script that saves and loads the optimiser anyway.

        A checkpoint that was loaded into the optimiser before is gone on with at once; one that is loaded later, then.
        Over several processes the run's state is there between two epochs, also where one process alone saves.
        """
        optimizer.register_state_dict_post_hook(self._put_into)
        optimizer.register_load_state_dict_post_hook(self._take_from)
        self._is_carried = True
        self._take_from(optimizer)

    def _put_into(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self._dataset.ranks == 1 or (self._agreed and self._leftover is None):  # else it would wait for other ranks
            state["param_groups"][0][CARRIED] = self.state_dict()

    def _take_from(self, optimizer: torch.optim.Optimizer) -> None:
        """Any optimiser keeps what it does not know in a group of parameters, also one that this was not called for."""
        state = optimizer.param_groups[0].pop(CARRIED, None)
        if state is not None:
            self.load_state_dict(state)

    def _whole(self, batch: Batch) -> Batch:
        """What all ranks hold of a batch, so that any number of them can go on with it."""
        if self._dataset.ranks == 1:
            return batch
        parts = [Batch.from_state_dict(state) for state in gathered(batch.to("cpu").state_dict())]
        return Batch.assembled(parts)

    def _part(self, batch: Batch, saved_by: int) -> Batch:
        """What this rank holds of a batch that `saved_by` ranks saved: the same as before, where they are as many."""
        rank, ranks = self._dataset.rank, self._dataset.ranks
        owner = batch.owner if saved_by == ranks else shared_out(batch.examples, ranks) if ranks > 1 else None
        return batch.held_by(rank, owner)

    def _example(self, model: nn.Module) -> Any:
        """A few inputs as the model sees them: those that were given, else the first two."""
        if self._given_example is not None:
            return self._given_example
        planned = PlannedBatch(0, 0, torch.arange(min(2, len(self.ledger))), None, WHOLE)
        inputs = self.prepared(self._dataset[planned]).inputs
        return inputs.to(self._device(model)) if isinstance(inputs, Tensor) else inputs

    def _device(self, model: nn.Module) -> torch.device:
        return next((p.device for p in model.parameters()), self.ledger.device)


def _weighted(losses: Tensor, *weights: Tensor | None) -> Tensor:
    """The losses times every weight that is given."""
    for weight in weights:
        losses = losses if weight is None else losses * weight
    return losses


def _timeless(report: dict[str, Any]) -> dict[str, Any]:
    """A report without its times, so that equal runs have equal states."""
    return {name: value for name, value in report.items() if not name.endswith("seconds")}


attach = Lean
"""Attaching is making a `Lean`: one signature and one docstring for both."""

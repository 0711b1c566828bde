"""Lean: what a training loop holds on to. It plans each epoch, computes each loss and keeps the ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from leantrain.clock import Stopwatch
from leantrain.cost import scoring_cost
from leantrain.errors import LeanError
from leantrain.frozen import frozen
from leantrain.ledger import COMPOSITE, SHRUNK, WHOLE, Ledger, world_size
from leantrain.loader import (
    Batch,
    Key,
    PlannedDataset,
    PlanSampler,
    check_dataset,
    check_target,
    find_keys,
    planned_dataloader,
)
from leantrain.methods import Method, Moment, Seen, parse_method
from leantrain.mixing import DRAWS, CutMix
from leantrain.plan import WHOLE_FORM, Form, Plan, PlannedBatch
from leantrain.rng import generator, uniform
from leantrain.scoring.scores import Scores, ids_of
from leantrain.scoring.scores import load as load_scores
from leantrain.shrinking import Shrinker
from leantrain.split import Split
from leantrain.thinning import gather

Criterion = Callable[[Tensor, Tensor], Tensor]
Prepare = Callable[[Batch], Batch]


def attach(
    model: nn.Module,
    dataset: Any,
    method: Method | str = "sgd",
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
) -> Lean:
    """Put a method between a data set and a model; the loop around it stays the caller's.

    Args:
        model: the model that is trained. Wrap it (DDP, Fabric, compile) before or after; assign `lean.model` then.
        dataset: a map-style data set of (input, class index), or of dicts.
        method: a method, or its name with options such as `"random-backprop[keep=0.25]"`.
        epochs: how many epochs the run stands for.
        budget: the share of the plain run's cost to spend; the run then ends when it is spent, and `progress` is
            the share of it spent.
        seed: what every choice of the method derives from; torch's global generators are left alone.
        criterion: a loss per example, `criterion(logits, targets)` with `reduction="none"`. Default: cross-entropy.
        label_smoothing: for the default criterion; what is recorded stays unsmoothed.
        collate: the data set's own collate function.
        inputs, targets: where an example keeps its input and its label, if not in the usual place.
        prepare: what happens to a batch between loading and the model, such as moving it and augmenting it on the
            device; the loader then gives prepared batches. Methods that look at examples before they are trained
            (Selective-Backprop, AutoAssist, oracle skipping) need it where the loop would do that itself.
        example: a small batch of inputs as the model sees them, to find the split point or the sizes it takes with; by
            default the first two examples of the data set. Give it where inputs are transformed after loading.
        split_layer: the layer that makes the last feature map, where a model's split point is not found by itself.
    """
    method = parse_method(method) if isinstance(method, str) else method
    if (wasteful := method.warning(epochs)) is not None:
        warnings.warn(wasteful, stacklevel=2)
    return Lean(
        model,
        dataset,
        method,
        epochs=epochs,
        budget=budget,
        seed=seed,
        criterion=criterion,
        label_smoothing=label_smoothing,
        collate=collate,
        keys=(inputs, targets),
        prepare=prepare,
        example=example,
        split_layer=split_layer,
    )


class Lean:
    """A method at work in a loop: `loader` gives the epoch's batches, `loss` trains on one and records it.

    Made by `attach`. What it knows is in `state_dict`, to go into the loop's own checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        method: Method,
        *,
        epochs: int,
        budget: float | None = None,
        seed: int = 0,
        criterion: Criterion | None = None,
        label_smoothing: float = 0.0,
        collate: Callable[[list[Any]], Any] | None = None,
        keys: tuple[Key | None, Key | None] = (None, None),
        prepare: Prepare | None = None,
        example: Tensor | None = None,
        split_layer: str | None = None,
    ) -> None:
        check_dataset(dataset)
        if epochs < 1:
            raise LeanError(f"epochs is {epochs}, but must be at least 1.")
        if budget is not None and not budget > 0:
            raise LeanError(f"budget is {budget}, but must be above 0; 0.5 spends half of what plain training costs.")
        if not 0 <= label_smoothing < 1:
            raise LeanError(f"label_smoothing is {label_smoothing}, but must be at least 0 and below 1.")
        if criterion is not None and label_smoothing:
            raise LeanError(
                f"label_smoothing is {label_smoothing}, but a criterion of your own does its own smoothing; drop one."
            )
        self.model = model
        self.method = method
        self.epochs = epochs
        self.seed = seed
        self.ledger = Ledger(len(dataset))
        self.criterion = criterion
        self.label_smoothing = label_smoothing
        self.examples = 0
        """Examples trained so far."""
        self.cost = 0.0
        """Cost spent so far, in examples of plain training."""
        self.budget = budget
        self._total_cost = None if budget is None else budget * epochs * len(dataset)
        self._prepare = prepare
        self._state = method.init(self.ledger)
        self._plan: Plan | None = None
        self._done = 0
        self._leftover: Batch | None = None  # kept of the candidates so far, and not yet trained
        self._ahead: dict[str, Any] = {}  # what looking at candidates changed in the state, ahead of their training
        self._done_cost = 0.0
        self._done_examples = 0
        self._done_steps = 0
        self._span = (0.0, 0.0)  # progress at the start and at the end of the epoch
        self._resumed = False
        self._planned_for = 0  # the batch size that the plan was made for
        self._reported: tuple[int, dict[str, Any]] | None = None  # the last epoch told of, and what was told
        ranks = world_size()
        rank = torch.distributed.get_rank() if ranks > 1 else 0
        self._dataset = PlannedDataset(dataset, collate, self._check_example(dataset, keys), rank, ranks, seed)
        self.clock = Stopwatch()
        self._mixer = method.mixer
        self.split: Split | None = None
        self._shrinker: Shrinker | None = None
        if method.thins and ranks > 1:
            raise LeanError(
                f"{method} decides inside the epoch what to train on, and {ranks} processes would decide differently; "
                "train with one, or use random-backprop or infobatch."
            )
        if method.wanted is not None and method.wanted.file is not None and Path(method.wanted.file).exists():
            self._read_scores(method.wanted.file)
        if method.shrinks:
            self._shrinker = Shrinker(model, self._example(model) if example is None else example)
            for scale in method.scales(self._shrinker.side):  # a size that the model cannot take is told now
                self._shrinker.fit(Form(scale=scale))
        if self._mixer is not None:
            inputs = self._example(model) if example is None else example
            self._check_mixable(inputs)
            if self._mixer.split:
                self.split = Split(model, inputs, split_layer)
                self.split.time_with(self.clock)

    # -- the epoch ---------------------------------------------------------------------------------------------------

    def loader(self, batch_size: int, **options: Any) -> PlannedLoader:
        """The batches of every epoch: each `iter()` starts one. `options` are those of torch's DataLoader."""
        if batch_size < 1:
            raise LeanError(f"batch_size is {batch_size}, but must be at least 1.")
        return PlannedLoader(self, self._dataset, batch_size, options)

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
        done = self._done_cost / self._plan.cost
        if self._plan.thinning is not None and self._total_cost is not None and end < 1.0:
            # What the epoch will cost is not known, but what was spent is; only the last epoch must end at 1.
            return min(end, (self.cost - self._paid) / (self._total_cost - self._paid))
        if self._plan.thinning is not None:  # how many of its candidates had their turn is known too
            waits = 0.5 if self._done >= len(self._plan) and self._leftover is not None else 0.0
            done = (self._done - waits) / len(self._plan)
        return start + (end - start) * min(1.0, done)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the budget is spent."""
        return self._span[1] >= 1.0 and self.epoch_done

    @property
    def needs_scores(self) -> bool:
        """Whether the method prunes by scores that it has not been given yet; see `use_scores`."""
        return self.method.wanted is not None and "scores" not in self._state

    @property
    def cost_share(self) -> float:
        """What was spent so far, as a share of what plain training of all epochs costs."""
        return self.cost / (self.epochs * len(self.ledger))

    def start_epoch(self, batch_size: int) -> Plan:
        """Plan the next epoch; or go on with the one that is planned, if it has not begun or was cut and resumed.

        So asking for a loader's length, looking at a first batch or making another loader of that batch size costs no
        epoch.
        """
        if self._plan is not None:
            waiting = self._done == 0 and self._done_cost == 0 and self._planned_for == batch_size
            cut = self._resumed and not self.epoch_done
            if waiting or cut:
                return self._plan
            self.report()  # while the ledger still says what the epoch was
        if self.needs_scores and self.method.wanted is not None and self.method.wanted.file is not None:
            self._read_scores(self.method.wanted.file)  # was not there when the run was made; it may be resumed by now
        if self.needs_scores:
            raise LeanError(
                f"{self.method} prunes by scores and has none; make them with leantrain.score or `leantrain score`, "
                f'and give the file as "{self.method.name}[scores=FILE]", or call lean.use_scores.'
            )
        self._planned_for, self._resumed = batch_size, False
        paid = self._paid
        total = None if self._total_cost is None else self._total_cost - paid
        start = self._span[1] if total is None else min(1.0, (self.cost - paid) / total)
        side = 0 if self._shrinker is None else self._shrinker.side
        left = math.inf if self._total_cost is None else self._total_cost - self.cost
        moment = Moment(self.epoch + 1, start, self.epochs, batch_size, side, left)
        self._agree()
        unknown = self.method.measures(self._state, self.ledger, moment)
        if unknown is not None and len(unknown):
            self._measure(unknown, moment)
        with self.clock.measure("selection", torch.device("cpu")):
            plan, self._state = self.method.plan(
                self._state, self.ledger, moment, generator(self.seed, "plan", moment.epoch)
            )
        if self._shrinker is not None:  # before the cost is asked for, which follows from the sizes really shown
            plan = dataclasses.replace(plan, forms=tuple(self._shrinker.fit(form) for form in plan.forms))
        if total is None:
            end = min(1.0, (moment.epoch + 1) / self.epochs)
        else:
            planned = len(plan)
            plan = plan.truncated(left)
            # Cut, or what would be left is not worth a batch of its own: this epoch is the last one.
            is_last = len(plan) < planned or left - plan.cost < 0.5 * plan.cost / len(plan)
            end = 1.0 if is_last else min(1.0, (self.cost - paid + plan.cost) / total)
        self._plan, self._done, self._leftover, self._span = plan, 0, None, (start, end)
        self._done_cost, self._done_examples, self._done_steps = 0.0, 0, 0
        return plan

    def use_scores(self, scores: Scores, *, reused: bool = False) -> None:
        """Give the method the scores it prunes by, before the first epoch.

        Args:
            scores: of this very data set, told by its examples' ids; made by `leantrain.score` or read from a file.
            reused: they were paid for elsewhere; their cost is told, but not counted in this run.
        """
        if self.method.wanted is None:
            raise LeanError(f"{self.method} prunes by no scores; el2n, grand, diet-sb and diet-random do.")
        if not self.needs_scores or self._plan is not None:
            raise LeanError(f"{self.method} has its scores already; give others to a new run.")
        if not reused:
            self.check_affordable(scores.cost)
        source = self._dataset.source
        rows = scores.rows(ids_of(source))
        # Others may change what their `targets` say on the way to a batch.
        self._check_labels(scores.targets[rows], source.targets if hasattr(source, "batch") else None)
        self._state = {
            **self._state,
            **self.method.discard(self.ledger, scores.values[rows], scores.targets[rows]),
            "scores": {"cost": scores.cost, "seconds": scores.seconds, "reused": reused},
        }
        self.cost += 0.0 if reused else scores.cost

    @property
    def _paid(self) -> float:
        """What making scores took of the budget, before the run's progress began."""
        scores = self._state.get("scores")
        return 0.0 if scores is None or scores["reused"] else scores["cost"]

    @property
    def scores_told(self) -> dict[str, Any] | None:
        """What the scores that the method prunes by cost, whether that is counted here, and what they did."""
        return {**self._state["scores"], **self._state["pruned"]} if "scores" in self._state else None

    def _read_scores(self, file: str) -> None:
        self.use_scores(load_scores(Path(file)), reused=True)

    def check_affordable(self, cost: float) -> None:
        """Refuse scores that would use the whole budget up."""
        if self._total_cost is not None and cost >= self._total_cost:
            raise LeanError(
                f"making the scores of {self.method} costs {cost:,.0f} examples, and the budget of {self.budget} is "
                f"{self._total_cost:,.0f}; raise the budget or re-use scores with scores=FILE."
            )

    def _check_labels(self, scored: Tensor, own: Any) -> None:
        """Refuse scores of another data set: ids may be mere places, but then the labels differ."""
        if not isinstance(own, Tensor) or len(own) != len(scored):  # a data set that does not tell its labels
            return
        wrong = int((own.cpu() != scored).sum())
        if wrong:
            raise LeanError(
                f"{wrong} of {len(scored)} examples have another label than their scores say; these are the scores of "
                "another data set. Make them anew with leantrain score."
            )

    def _measure(self, index: Tensor, moment: Moment) -> None:
        """Look at the losses of examples without training on them, as the coming epoch would show them."""
        with self.clock.measure("measuring", self._device(self.model)):
            ranks = self._dataset.ranks
            mine = index.tensor_split(ranks)[self._dataset.rank]
            for part in torch.split(mine, moment.batch_size) if len(mine) else ():
                # Each rank asks for its own part, so what is planned for all of them repeats it.
                planned = PlannedBatch(0, moment.epoch, part.long().repeat(ranks).cpu(), None, WHOLE_FORM)
                batch = self.prepared(self._dataset[planned]).to(self._device(self.model))
                losses, correct = self._look(batch)
                self.ledger.observe(batch.index, losses, correct)
        self._agree()

    @torch.no_grad()
    def _look(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clean losses of a batch, and which are correct, from a model that stays as it is."""
        if isinstance(batch.inputs, Tensor) and batch.inputs.dtype == torch.uint8:
            raise LeanError(
                f"the inputs of a batch are bytes, and {self.method} looks at them before the loop can convert them; "
                "give what the loop does to a batch as attach(prepare=…)."
            )
        with frozen(self.model), _unsynchronised(self.model) if self._dataset.ranks > 1 else contextlib.nullcontext():
            logits = self._forward(batch.inputs).float()
        return F.cross_entropy(logits, batch.targets, reduction="none"), logits.argmax(1) == batch.targets

    def prepared(self, batch: Batch) -> Batch:
        """The batch as the model is to see it."""
        return batch if self._prepare is None else self._prepare(batch)

    def thinned(self, candidates: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
        """Full batches of what the method keeps of these candidates."""
        self._ahead = {}
        waiting = None if self._leftover is None else self._leftover.to(self._device(self.model))
        unpaid = yield from gather(candidates, self._keep, batch_size, waiting)
        if unpaid is not None:  # nothing was kept after the last batch, if there was one
            spent, changed = unpaid
            self._done, self._leftover = len(self.plan), None
            self.cost += spent
            self._done_cost += spent
            self._state = {**self._state, **changed}

    def _keep(self, batch: Batch) -> tuple[Batch, float, dict[str, Any]]:
        batch = batch.to(self._device(self.model))
        cost, losses = 0.0, None
        with self.clock.measure("scoring", batch.index.device):
            thinning = self.plan.thinning
            if thinning is not None and thinning.scored:
                cost = scoring_cost(len(batch), batch.form.pixels)
                losses, correct = self._look(batch)
                self.ledger.observe(batch.index, losses, correct)
            draws = uniform(self.seed, batch.epoch, batch.index, 1, "thin").squeeze(1)
            seen = Seen(batch.inputs, batch.targets, losses)
            mask, changed = self.method.thin({**self._state, **self._ahead}, seen, draws)
            kept = batch.take(mask.nonzero().squeeze(1))  # how many are kept decides what follows: the host must know
        self._ahead = {**self._ahead, **changed}
        return kept, cost, changed

    def report(self) -> dict[str, Any]:
        """What the epoch that just ended says: mean loss and accuracy of its examples, and the method's own words.

        Over several ranks all of them must call it, as it lets their ledgers agree.
        """
        planned_ahead = self._done_cost == 0  # as by len(loader); the last epoch is the one to tell of
        if self._reported is None or (self._reported[0] != self.epoch and not planned_ahead):
            self._reported = (self.epoch, self._make_report())
        return self._reported[1]

    def _agree(self) -> None:
        """Let the ledgers of all ranks agree: where the model is, as NCCL speaks from a GPU only."""
        if world_size() != self._dataset.ranks:
            raise LeanError(
                f"attach found {self._dataset.ranks} process, but {world_size()} train together; "
                "call it after torch.distributed.init_process_group, or after fabric.launch."
            )
        if world_size() > 1:
            self.ledger.to(self._device(self.model))
            self.ledger.synchronise()

    def _make_report(self) -> dict[str, Any]:
        self._agree()
        seen = self.ledger.seen_in(self.epoch)
        count = max(1, int(seen.sum()))
        loss = float(torch.where(seen, self.ledger["loss"], 0).sum(dtype=torch.float64)) / count
        accuracy = int((seen & self.ledger["correct"]).sum()) / count
        return {
            "train_loss": loss,
            "train_accuracy": accuracy,
            **self.method.report(self._state, self.ledger, self.plan),
            **{f"{name}_seconds": seconds for name, seconds in self.clock.take().items()},
        }

    # -- the step ----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Tensor:
        """The loss to call `backward` on; records every example's own clean loss on the way, without a device sync."""
        if batch.epoch != self.epoch:
            raise LeanError(
                f"this batch belongs to epoch {batch.epoch}, but epoch {self.epoch} is running; "
                "use each batch in the epoch whose loader gave it."
            )
        targets = batch.targets
        if batch.form.scale < 1.0:
            if self._shrinker is None:
                raise LeanError(f"the plan shrinks examples, but {self.method} does not declare that it shrinks.")
            with self.clock.measure("shrinking", batch.inputs.device):
                batch = batch.with_inputs(self._shrinker.shrink(batch.inputs, batch.form.scale))
        logits, shares = self._answer(batch)
        if not batch.padding:
            form = WHOLE if batch.form == WHOLE_FORM else SHRUNK if batch.form.constituents == 1 else COMPOSITE
            clean = F.cross_entropy(logits.detach().float(), targets, reduction="none")
            self.ledger.record(batch.index, clean, logits.detach().argmax(1) == targets, form, batch.epoch)
        self._count(batch)
        if self.method.learns and not batch.padding:
            with self.clock.measure("learning", targets.device):
                seen = Seen(batch.inputs, targets, clean, logits.shape[1])
                self._state = {**self._state, **self.method.learn(self._state, seen)}
        losses = self._criterion(logits, targets)
        for weight in (shares, batch.weight):
            if weight is not None:
                losses = losses * weight
        return losses.sum() * (0.0 if batch.padding else 1.0 / batch.total)

    def _answer(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The model's logits for every example of the batch, and each one's share where it is one of several."""
        k = batch.form.constituents
        if k == 1:
            return self._forward(batch.inputs), None
        if self._mixer is None:
            raise LeanError(f"the plan has composites, but {self.method} declares no mixer for them.")
        inputs = batch.inputs
        with self.clock.measure("mixing", inputs.device):
            known = self.ledger["loss"].to(inputs.device, non_blocking=True)[batch.index].view(k, -1)
            first = batch.index[: known.shape[1]]
            draws = uniform(self.seed, batch.epoch, first, k * DRAWS, "mix")
            mixed = self._mixer.mix(inputs, k, known, draws)
        shares = mixed.shares.reshape(-1)
        if self.split is None:
            return self._forward(mixed.inputs).repeat(k, 1), shares  # one answer, asked about each constituent
        assert mixed.owner is not None
        with self.split.regions(mixed.owner, k):
            return self._forward(mixed.inputs), shares

    def _forward(self, inputs: Any) -> Tensor:
        output = self.model(inputs)
        logits = getattr(output, "logits", output)  # Hugging Face's models answer with an object
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise LeanError(
                f"the model answered with a {type(output).__name__}, but leantrain needs one tensor of logits "
                "(examples, classes); wrap the model so that it gives that."
            )
        return logits

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
            examples = round(batch.total)
            self._leftover = batch.after.leftover
            self._state = {**self._state, **batch.after.state}
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
            "state": self._state,
            "plan": None if self._plan is None else self._plan.state_dict(),
            "done": self._done,
            "done_cost": self._done_cost,
            "done_examples": self._done_examples,
            "done_steps": self._done_steps,
            "leftover": None if self._leftover is None else self._leftover.state_dict(),
            "span": list(self._span),
            "cost": self.cost,
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
        self._state = state["state"]
        self._plan = None if state["plan"] is None else Plan.from_state_dict(state["plan"])
        self._done, self._done_cost = state["done"], state["done_cost"]
        offsets = [0] if self._plan is None else self._plan.offsets.tolist()  # saved before these were kept
        self._done_examples = state.get("done_examples", offsets[state["done"]])
        self._done_steps = state.get("done_steps", state["done"])
        self._leftover = None if state.get("leftover") is None else Batch.from_state_dict(state["leftover"])
        self._ahead = {}
        self._span = (state["span"][0], state["span"][1])
        self.cost, self.examples = state["cost"], state["examples"]
        self._planned_for = state["planned_for"]
        self._reported = None if state["reported"] is None else (state["reported"][0], state["reported"][1])
        self._resumed = True

    def _example(self, model: nn.Module) -> Any:
        """Two inputs as the model sees them."""
        planned = PlannedBatch(0, 0, torch.arange(min(2, len(self.ledger))), None, WHOLE_FORM)
        inputs = self.prepared(self._dataset[planned]).inputs
        return inputs.to(self._device(model)) if isinstance(inputs, Tensor) else inputs

    def _check_mixable(self, inputs: Any) -> None:
        """Refuse inputs that the method's mixer cannot mix."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            what = f"{inputs.dtype} tensors" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
            raise LeanError(
                f"the inputs of a batch are {what}, but only float tensors can be mixed; convert them in the data set, "
                "or, where the loop does so, show attach a converted batch as example=…"
            )
        if isinstance(self._mixer, CutMix) and inputs.ndim != 4:
            raise LeanError(
                f"an input has shape {tuple(inputs.shape[1:])}, but CutMix needs images (channels, height, width); "
                "mix other inputs with MixUp."
            )

    def _device(self, model: nn.Module) -> torch.device:
        return next((p.device for p in model.parameters()), self.ledger.device)

    def _check_example(self, dataset: Any, keys: tuple[Key | None, Key | None]) -> tuple[Key, Key]:
        if hasattr(dataset, "batch"):
            return (0, 1)
        item = dataset[0]
        found = find_keys(item, *keys)
        check_target(item[found[1]])
        return found


@contextlib.contextmanager
def _unsynchronised(model: nn.Module) -> Iterator[None]:
    """No waiting for the other ranks inside: they may have fewer batches to look at, or none.

    Every forward pass of DistributedDataParallel spreads the buffers of the first rank, and so waits for all of them.
    """
    wrappers = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    before = [wrapper.require_forward_param_sync for wrapper in wrappers]
    for wrapper in wrappers:
        wrapper.require_forward_param_sync = False
    try:
        yield
    finally:
        for wrapper, synchronised in zip(wrappers, before, strict=True):
            wrapper.require_forward_param_sync = synchronised


def _timeless(report: dict[str, Any]) -> dict[str, Any]:
    """A report without its times, so that equal runs have equal states."""
    return {name: value for name, value in report.items() if not name.endswith("seconds")}


class PlannedLoader:
    """The batches of a run, epoch after epoch: every `iter()` plans one and gives its batches."""

    def __init__(self, lean: Lean, dataset: PlannedDataset, batch_size: int, options: dict[str, Any]) -> None:
        self.lean = lean
        self.batch_size = batch_size
        self.waited = 0.0
        """Seconds spent waiting for data so far."""
        self._sampler = PlanSampler()
        # Of its own, or every `iter()` would draw the workers' seed from torch's global generator, and a resumed run
        # would go on with other numbers than an uninterrupted one.
        options.setdefault("generator", generator(lean.seed, "workers"))
        self._dataloader: DataLoader[Batch] = planned_dataloader(dataset, self._sampler, **options)
        self._underway = False

    def __iter__(self) -> Iterator[Batch]:
        self._sampler.plan = self.lean.start_epoch(self.batch_size)
        self._sampler.start = self.lean.position
        return self._batches(self._sampler.plan)

    def _batches(self, plan: Plan) -> Iterator[Batch]:
        try:
            self._underway = True
            batches = (self.lean.prepared(batch) for batch in self._loaded())
            yield from batches if plan.thinning is None else self.lean.thinned(batches, self.batch_size)
        finally:
            self._underway = False

    def _loaded(self) -> Iterator[Batch]:
        batches = iter(self._dataloader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def __len__(self) -> int:
        """The number of batches of the epoch that runs, or, before it starts, of the one that is next.

        Where a method thins inside the epoch, about how many there will be.
        """
        running = self._sampler.plan is not None and not self.lean.epoch_done
        # Also after the step on the last batch: the loop may ask there, and maybe on one rank only.
        if running or self._underway or self.lean.finished:
            return self._expected(len(self._sampler))
        return self._expected(len(self.lean.start_epoch(self.batch_size)) - self.lean.position)

    def _expected(self, batches: int) -> int:
        thinning = self.lean.plan.thinning
        return batches if thinning is None else max(1, round(batches * thinning.keep))

"""Making scores: fresh models are trained for a few epochs, each is asked about every example, and the mean is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leantrain.batch import Key
from leantrain.errors import LeanError
from leantrain.lean import Lean, attach
from leantrain.loader import InOrder, PlannedDataset, PlannedLoader, check_dataset, planned_dataloader
from leantrain.rng import derive, generator
from leantrain.scoring.kinds import RecordedScore, Score, ScoringBatch, make_score, score_pass
from leantrain.scoring.scores import Scores, ids_of

MODELS = 3
"""How many models a score is the mean over by default."""


@dataclass(frozen=True)
class Ensemble:
    """A score, the number of models that it is the mean over, and how many epochs each of them is trained for."""

    score: Score
    models: int
    epochs: int

    def __post_init__(self) -> None:
        for name in ("models", "epochs"):
            if getattr(self, name) < 1:
                raise LeanError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.epochs < self.score.least_epochs:
            raise LeanError(f"epochs is {self.epochs}, but {self.score.name} takes at least {self.score.least_epochs}.")

    def pass_cost(self, examples: int) -> float:
        """What asking one model about every example costs, in examples of plain training."""
        return examples * self.score.pass_cost

    def trained_share(self, examples: int) -> float:
        """How much of a member's cost is its training."""
        return self.epochs * examples / (self.epochs * examples + self.pass_cost(examples))

    def cost(self, examples: int) -> float:
        """What all of it costs, training and asking."""
        return self.models * (self.epochs * examples + self.pass_cost(examples))

    def seeds(self, seed: int) -> list[int]:
        """A seed for every member, within the 31 bits that every library takes."""
        return [derive(seed, "score", member) % 2**31 for member in range(self.models)]

    def described(self) -> dict[str, Any]:
        """For `Scores.made_with`."""
        return {"models": self.models, "epochs": self.epochs, **self.score.options}


class Member(NamedTuple):
    """A model of an ensemble after its training.

    Attributes:
        model: as the score is to ask it.
        batches: every example once, as inputs, targets and indices; read only if the model is asked.
        correct: (epochs, N), which examples it had right in each epoch.
        cost: what its training cost.
    """

    model: nn.Module
    batches: Iterable[ScoringBatch]
    correct: Tensor
    cost: float


class Outcome(NamedTuple):
    """What an ensemble found, and what that took: mean scores (float32), cost in examples, and seconds."""

    values: Tensor
    cost: float
    seconds: float


TrainMember = Callable[[int, int], AbstractContextManager[Member]]
"""Trains the member of that number with that seed; the score is measured inside the context."""


def run_ensemble(ensemble: Ensemble, length: int, seed: int, train_member: TrainMember) -> Outcome:
    """Train every member, ask it about every example, and average."""
    started = time.perf_counter()
    total, cost = torch.zeros(length, dtype=torch.float64), 0.0
    for number, member_seed in enumerate(ensemble.seeds(seed)):
        values, spent = _run_member(ensemble.score, length, train_member(number, member_seed))
        total += values
        cost += spent + ensemble.pass_cost(length)
    return Outcome((total / ensemble.models).float(), cost, time.perf_counter() - started)


def _run_member(score: Score, length: int, trained: AbstractContextManager[Member]) -> tuple[Tensor, float]:
    """A member's scores and the cost of its training. By itself, so that one model is gone when the next is trained."""
    with trained as member:
        if isinstance(score, RecordedScore):
            return score.from_records(member.correct), member.cost
        return score_pass(member.model, member.batches, score, length), member.cost


# -- with your own data set and models ---------------------------------------------------------------------------------


def score(
    make_model: Callable[[], nn.Module],
    dataset: Any,
    kind: Score | str = "el2n",
    *,
    models: int = MODELS,
    epochs: int | None = None,
    batch_size: int = 128,
    lr: float = 0.1,
    device: torch.device | str | None = None,
    seed: int = 0,
    gradients: str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    inputs: Key | None = None,
    targets: Key | None = None,
    view: Any = None,
    num_workers: int = 0,
) -> Scores:
    """Score the examples of your own data set with your own models, trained plainly by SGD.

    The result depends on `seed` and not on torch's global generators, which are left as they were.

    Args:
        make_model: returns a fresh model each time it is called.
        dataset: as for `attach`; its `ids` say who its examples are, else they are "0", "1", ….
        kind: the name of a score ("el2n", "forgetting", "grand[gradients=last]", "loss", or one you registered), or a
            `Score`.
        models: how many models the score is the mean over.
        epochs: how long each is trained, with Nesterov momentum and a learning rate that falls to zero; default: what
            suits the score.
        device: default: CUDA where there is one.
        gradients: the same as `grand[gradients=…]`: "all" parameters, or the "last" layer's in closed form.
        collate, inputs, targets: as for `attach`.
        view: the same examples without augmentation, where `dataset` augments; the models are asked about these.
        num_workers: processes that load examples.
    """
    chosen = make_score(kind, gradients=gradients)
    ensemble = Ensemble(chosen, models, chosen.epochs if epochs is None else epochs)
    check_dataset(dataset)
    if not 0 < lr < float("inf"):
        raise LeanError(f"lr is {lr}, but must be a finite number above 0.")
    view, length = dataset if view is None else view, len(dataset)
    if len(view) != length:
        raise LeanError(
            f"view has {len(view)} examples and the data set {length}; show the same ones in the same order."
        )
    place = _find_device(device)
    labels = torch.zeros(length, dtype=torch.int64)
    model: nn.Module | None = None

    @contextlib.contextmanager
    def train_member(_: int, member_seed: int) -> Iterator[Member]:
        nonlocal model
        with _seeded(member_seed, place):
            previous, model = model, make_model().to(place)
            if model is previous:
                raise LeanError("make_model returned the same model twice; let it build a new one each time.")
            lean = attach(
                model, dataset, epochs=ensemble.epochs, seed=member_seed,
                collate=collate, inputs=inputs, targets=targets,
            )  # fmt: skip
            correct = _train(lean, lean.loader(batch_size, num_workers=num_workers), lr, place, labels)
            yield Member(model, asked(), correct, lean.cost)

    def asked() -> Iterator[ScoringBatch]:
        shown = PlannedDataset(view, collate, (0, 1))
        shown.find_keys(inputs, targets)
        for batch in planned_dataloader(
            shown,
            InOrder(length, batch_size),
            generator=generator(0, "scoring"),  # or the workers' seed would come from torch's global generator
            num_workers=num_workers,
        ):
            batch = batch.to(place)
            yield batch.inputs, batch.targets, batch.index

    outcome = run_ensemble(ensemble, length, seed, train_member)
    if not bool(outcome.values.isfinite().all()):
        raise LeanError(f"training with lr {lr:g} did not stay finite, and so the scores are not; try a smaller lr.")
    return Scores(
        values=outcome.values,
        ids=ids_of(dataset),
        targets=labels,
        classes=_class_names(dataset, int(labels.max()) + 1),
        kind=chosen.name,
        cost=outcome.cost,
        seconds=outcome.seconds,
        made_with={
            "data": type(dataset).__name__,
            "model": type(getattr(model, "_orig_mod", model)).__name__,
            **ensemble.described(),
            "batch_size": batch_size,
            "lr": lr,
            "seed": seed,
        },
    )


def _find_device(name: torch.device | str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device  # with the number that "cuda" stands for
    except (RuntimeError, AssertionError) as error:  # the second from a torch that was built without it
        raise LeanError(f"device is '{name}', which torch cannot use here ({str(error).splitlines()[0]}).") from None


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's global generators from a seed, inside; as they were, afterwards."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach devices that are not restored
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _train(lean: Lean, loader: PlannedLoader, lr: float, device: torch.device, labels: Tensor) -> Tensor:
    """Train a member to its end and fill in the labels; (epochs, N) of which examples it had right."""
    model = lean.model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    correct = []
    model.train()
    for _ in range(lean.epochs):
        for batch in loader:
            labels[batch.index] = batch.targets.long()
            optimizer.param_groups[0]["lr"] = lr * (1 - lean.progress)
            lean.loss(batch.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        correct.append(lean.ledger["correct"].cpu().clone())
    return torch.stack(correct)


def _class_names(dataset: Any, count: int) -> tuple[str, ...]:
    """What the data set calls its classes, as torchvision's do, or their numbers."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and len(names) >= count:
        return tuple(map(str, names))
    return tuple(map(str, range(count)))

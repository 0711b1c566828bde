"""Making scores: fresh models are trained for a few epochs, each is asked about every example, and the mean is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from leantrain.cost import BACKWARD, FORWARD
from leantrain.display import Display, Quiet
from leantrain.errors import LeanError, nearest
from leantrain.lean import Lean, PlannedLoader, attach
from leantrain.loader import InOrder, Key, PlannedDataset, check_dataset, find_keys, planned_dataloader
from leantrain.machine import choose_device
from leantrain.rng import derive, generator
from leantrain.scoring.measures import ScoringBatch, check_gradients, forgetting, score_pass
from leantrain.scoring.scores import Scores, ids_of

if TYPE_CHECKING:
    from leantrain.config import TrainConfig
    from leantrain.data import ImageSet
    from leantrain.train import Run

KINDS = ("el2n", "grand", "forgetting", "loss")
EPOCHS = {"el2n": 2, "grand": 2, "forgetting": 5, "loss": 2}
"""What a member is trained for by default; forgetting has to see an example learnt and lost again."""

SETTINGS = (
    "data", "train_limit", "validation", "model", "width", "pretrained", "weights", "dropout", "batch_size",
    "optimizer", "lr", "schedule", "label_smoothing", "precision", "seed",
)  # fmt: skip
"""What of a run's settings the scores file tells."""


@dataclass(frozen=True)
class Ensemble:
    """What is asked of how many models that were trained for how long."""

    kind: str
    models: int
    epochs: int
    gradients: str = "all"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LeanError(
                f"the score '{self.kind}' is not known; there are {', '.join(KINDS)}.{nearest(self.kind, KINDS)}"
            )
        for name in ("models", "epochs"):
            if getattr(self, name) < 1:
                raise LeanError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.kind == "forgetting" and self.epochs < 2:
            raise LeanError("epochs is 1, but forgetting takes at least 2: nothing is forgotten within one epoch.")
        check_gradients(self.gradients)

    def pass_cost(self, examples: int) -> float:
        """What asking one model about every example costs, in examples of plain training."""
        if self.kind == "forgetting":
            return 0.0  # it is read from what training records anyway
        backward = BACKWARD if self.kind == "grand" and self.gradients == "all" else 0.0
        return examples * (FORWARD + backward)

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
        gradients = {"gradients": self.gradients} if self.kind == "grand" else {}
        return {"models": self.models, "epochs": self.epochs, **gradients}


def score_images(
    config: TrainConfig,
    images: ImageSet,
    kind: str,
    *,
    models: int,
    epochs: int,
    gradients: str = "all",
    display: Display | None = None,
) -> Scores:
    """Score a set's training images by models that are trained on them as `leantrain train` does, without a method.

    Args:
        config: resolved settings; its epochs, method, budget and output are not used.
        kind: "el2n", "grand", "forgetting" or "loss".
        models: how many fresh models the score is the mean over.
        epochs: how long each is trained; its schedule decays fully within them.
        gradients: of "grand": "all" parameters, or the "last" layer's in closed form.
        display: what the user sees.
    """
    from leantrain.train import Run

    ensemble = Ensemble(kind, models, epochs, gradients)
    display = display or Quiet()
    length = len(images.train)
    total, cost, started = torch.zeros(length, dtype=torch.float64), 0.0, time.perf_counter()
    display.start(1, 0.0)
    try:
        for member, seed in enumerate(ensemble.seeds(config.seed)):
            begun = time.perf_counter()
            settings = dataclasses.replace(config, method="sgd", budget=None, epochs=epochs, seed=seed, out=None)
            shown = _Share(display, member / models, 1 / models, ensemble.trained_share(length))
            run = Run(settings, images, display=shown)
            total += _ask_run(run, ensemble, shown)
            cost += run.lean.cost + ensemble.pass_cost(length)
            display.note(f"model {member + 1} of {models}: {time.perf_counter() - begun:.1f} s")
    finally:
        display.stop()
    return Scores(
        values=(total / models).float(),
        ids=ids_of(images.train),
        targets=images.train.targets,
        classes=images.classes,
        kind=kind,
        cost=cost,
        seconds=time.perf_counter() - started,
        made_with={
            **{name: getattr(config, name) for name in SETTINGS},
            **ensemble.described(),
            "fingerprint": images.fingerprint,
        },
    )


class _Share(Quiet):
    """Passes the steps of one member on as steps of the whole: first its training, then the pass over it."""

    def __init__(self, whole: Display, start: float, span: float, trained: float) -> None:
        self._whole, self._start, self._span, self._trained = whole, start, span, trained

    def step(self, examples: int, progress: float) -> None:
        self._whole.step(examples, self._start + self._span * self._trained * progress)

    def asked(self, examples: int, progress: float) -> None:
        self._whole.step(examples, self._start + self._span * (self._trained + (1 - self._trained) * progress))


def _ask_run(run: Run, ensemble: Ensemble, shown: _Share) -> Tensor:
    """Train one member and give its score of every example."""
    correct: list[Tensor] = []
    run.train_only(lambda: correct.append(run.lean.ledger["correct"].cpu().clone()))
    if ensemble.kind == "forgetting":
        return forgetting(torch.stack(correct))
    # The gradient of each example by itself can be had of the plain module only, not through Fabric's wrapper.
    model = run.module if ensemble.kind == "grand" else run._model
    return score_pass(model, _evaluation_view(run, shown), ensemble.kind, len(run.images.train), ensemble.gradients)


def _evaluation_view(run: Run, shown: _Share) -> Iterator[ScoringBatch]:
    """The training images in order and without augmentation."""
    from leantrain.train import test_batches

    images, done = run.images, 0
    for batch in test_batches(dataclasses.replace(images, test=images.train), run.config):
        batch = batch.to(run.device)
        yield run._augment.evaluate(batch.inputs), batch.targets, batch.index
        done += len(batch.index)
        shown.asked(len(batch.index), done / len(images.train))


# -- in a loop of one's own --------------------------------------------------------------------------------------------


def score(
    make_model: Callable[[], nn.Module],
    dataset: Any,
    kind: str = "el2n",
    *,
    models: int = 3,
    epochs: int = 2,
    batch_size: int = 128,
    lr: float = 0.1,
    device: torch.device | str | None = None,
    seed: int = 0,
    gradients: str = "all",
    collate: Callable[[list[Any]], Any] | None = None,
    inputs: Key | None = None,
    targets: Key | None = None,
    view: Any = None,
    num_workers: int = 0,
) -> Scores:
    """Score the examples of a data set of one's own with models of one's own, trained plainly by SGD.

    The result depends on `seed` and not on torch's global generators, which are left as they were.

    Args:
        make_model: gives a fresh model each time it is called.
        dataset: as for `attach`; its `ids` say who its examples are, else they are "0", "1", ….
        kind: "el2n", "grand", "forgetting" or "loss".
        models: how many models the score is the mean over.
        epochs: how long each is trained, with Nesterov momentum and a learning rate that falls to zero.
        device: default: CUDA where there is one.
        gradients: of "grand": "all" parameters, or the "last" layer's in closed form.
        collate, inputs, targets: as for `attach`.
        view: the same examples without augmentation, where `dataset` augments; the models are asked about these.
        num_workers: processes that load examples.
    """
    ensemble = Ensemble(kind, models, epochs, gradients)
    check_dataset(dataset)
    if not 0 < lr < float("inf"):
        raise LeanError(f"lr is {lr}, but must be a finite number above 0.")
    view, length = dataset if view is None else view, len(dataset)
    if len(view) != length:
        raise LeanError(
            f"view has {len(view)} examples and the data set {length}; show the same ones in the same order."
        )
    place = choose_device("auto" if device is None else str(device))
    total, cost, started = torch.zeros(length, dtype=torch.float64), 0.0, time.perf_counter()
    model: nn.Module | None = None
    for member_seed in ensemble.seeds(seed):
        with _seeded(member_seed, place):
            previous, model = model, make_model().to(place)
            if model is previous:
                raise LeanError("make_model gave the same model twice; let it build a new one each time.")
            lean = attach(
                model, dataset, "sgd", epochs=epochs, seed=member_seed, collate=collate, inputs=inputs, targets=targets
            )
            correct, labels = _train(lean, lean.loader(batch_size, num_workers=num_workers), lr, place)
            if kind == "forgetting":
                total += forgetting(correct)
            else:
                keys = (0, 1) if hasattr(view, "batch") else find_keys(view[0], inputs, targets)
                batches = planned_dataloader(
                    PlannedDataset(view, collate, keys),
                    InOrder(length, batch_size),
                    generator=generator(0, "scoring"),  # or the workers' seed would come from torch's global generator
                    num_workers=num_workers,
                )
                asked = ((b.inputs, b.targets, b.index) for b in (batch.to(place) for batch in batches))
                total += score_pass(model, asked, kind, length, gradients)
            cost += lean.cost + ensemble.pass_cost(length)
    if not bool(total.isfinite().all()):
        raise LeanError(f"training with lr {lr:g} did not stay finite, and so the scores are not; try a smaller lr.")
    return Scores(
        values=(total / models).float(),
        ids=ids_of(dataset),
        targets=labels,
        classes=_class_names(dataset, int(labels.max()) + 1),
        kind=kind,
        cost=cost,
        seconds=time.perf_counter() - started,
        made_with={
            "data": type(dataset).__name__,
            "model": type(getattr(model, "_orig_mod", model)).__name__,
            **ensemble.described(),
            "batch_size": batch_size,
            "lr": lr,
            "seed": seed,
        },
    )


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


def _train(lean: Lean, loader: PlannedLoader, lr: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Train a member to its end; (epochs, N) of which examples it had right, and every example's label."""
    model = lean.model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    correct, labels = [], torch.zeros(len(lean.ledger), dtype=torch.int64)
    model.train()
    for _ in range(lean.epochs):
        for batch in loader:
            labels[batch.index] = batch.targets.long()
            optimizer.param_groups[0]["lr"] = lr * (1 - lean.progress)
            lean.loss(batch.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        correct.append(lean.ledger["correct"].cpu().clone())
    return torch.stack(correct), labels


def _class_names(dataset: Any, count: int) -> tuple[str, ...]:
    """What the data set calls its classes, as torchvision's do, or their numbers."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and len(names) >= count:
        return tuple(map(str, names))
    return tuple(map(str, range(count)))

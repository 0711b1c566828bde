"""The loader: a real DataLoader whose sampler is the plan."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from leantrain.batch import Batch, Key
from leantrain.errors import LeanError
from leantrain.forms import WHOLE
from leantrain.plan import Plan, PlannedBatch
from leantrain.rng import derive, generator

if TYPE_CHECKING:
    from leantrain.lean import Lean


INPUT_KEYS = ("image", "images", "pixel_values", "inputs", "input", "x")
TARGET_KEYS = ("label", "labels", "target", "targets", "y")


class BatchSource(Protocol):
    """A data set that makes a whole batch at once, vectorised or aware of the epoch; others are asked item by item.

    One that can also show examples in some kinds of form itself, as by decoding a smaller picture, names them in
    `shows`; `batch` then gets the form as a third argument.
    """

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]: ...


class PlannedDataset(Dataset[Batch]):
    """Turns planned batches into batches, in the main process or in a worker; the plan's key says all it needs."""

    def __init__(
        self,
        source: Any,
        collate: Callable[[list[Any]], Any] | None,
        keys: tuple[Key, Key],
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
    ) -> None:
        self.source = source
        self.collate = collate or default_collate
        self.keys = keys
        self.rank, self.ranks = rank, ranks
        self.seed = seed

    def __getitem__(self, planned: PlannedBatch) -> Batch:
        if get_worker_info() is not None:
            _seed_worker(derive(self.seed, "worker", planned.epoch, planned.position, self.rank))
        owner = planned.owner(self.ranks)
        part = (owner == self.rank).nonzero().squeeze(1)
        padding = len(part) == 0
        if padding:  # fewer inputs than ranks: the first one keeps this rank in step
            part = torch.arange(0, len(planned.index), planned.inputs)
        index = planned.index[part]
        weight = None if planned.weight is None else planned.weight[part]
        given = WHOLE
        if self.collate is default_collate and hasattr(self.source, "batch"):
            given = planned.form.of_kinds(getattr(self.source, "shows", ()))
            data: Any = self.source.batch(index, planned.epoch, *((given,) if given.parts else ()))
        elif hasattr(self.source, "__getitems__"):
            data = self.collate(self.source.__getitems__(index.tolist()))
        else:
            data = self.collate([self.source[i] for i in index.tolist()])
        return Batch(
            data,
            index,
            weight,
            planned.form,
            planned.epoch,
            planned.position,
            total=planned.inputs / self.ranks,
            cost=planned.cost,
            padding=padding,
            owner=owner if self.ranks > 1 else None,
            keys=self.keys,
            given=given,
        )


class InOrder(Sampler[PlannedBatch]):
    """Every example once, in order, in batches of `batch_size`: for passes that train nothing.

    Several ranks take turns: each gets every so many-th batch.
    """

    def __init__(self, length: int, batch_size: int, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks = rank, ranks
        offsets = torch.tensor([*range(0, length, batch_size), length])
        self.plan = Plan(-1, torch.arange(length), offsets, torch.zeros(len(offsets) - 1, dtype=torch.int64))

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self.plan[position] for position in self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def _positions(self) -> range:
        return range(self.rank, len(self.plan), self.ranks)


class PlanSampler(Sampler[PlannedBatch]):
    """Yields the planned batches from `start` on; every `iter()` is a fresh iterator, and the length is exact."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.start = 0

    def __iter__(self) -> Iterator[PlannedBatch]:
        plan = self.plan
        if plan is None:
            raise RuntimeError("no epoch has been planned")
        return (plan[position] for position in range(self.start, len(plan)))

    def __len__(self) -> int:
        return 0 if self.plan is None else len(self.plan) - self.start


def planned_dataloader(dataset: PlannedDataset, sampler: Sampler[PlannedBatch], **options: Any) -> DataLoader[Batch]:
    """A DataLoader over a plan; `options` are its usual ones, less those that the plan decides."""
    for name in ("shuffle", "sampler", "batch_sampler", "drop_last", "batch_size"):
        if name in options:
            raise LeanError(f"the loader takes no '{name}': the plan decides which examples form a batch.")
    user_init = options.pop("worker_init_fn", None)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        collate_fn=_as_it_is,
        worker_init_fn=_WorkerInit(user_init),
        **options,
    )


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


class _WorkerInit:
    """Workers leave signals to the main process: it saves the run first and ends them afterwards."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self.then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.then is not None:
            self.then(worker)


def _seed_worker(seed: int) -> None:
    """Start a worker's generators, from which a data set may augment, anew for one batch.

    So its random numbers are others in every epoch, and the same after a resume, in whatever worker.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def find_keys(item: Any, inputs: Key | None, targets: Key | None) -> tuple[Key, Key]:
    """Where an example keeps its input and its label: named by the user, else (0, 1) or the usual names of a dict."""
    if isinstance(item, Mapping):
        return _find_key(item, inputs, INPUT_KEYS, "inputs"), _find_key(item, targets, TARGET_KEYS, "targets")
    if isinstance(item, tuple | list) and len(item) >= 2:
        return 0 if inputs is None else inputs, 1 if targets is None else targets
    raise LeanError(
        f"an example of the data set is a {type(item).__name__}, but must be (input, label) or a dict; "
        "wrap the data set so that it gives one of these."
    )


def _find_key(item: Mapping[Any, Any], named: Key | None, usual: tuple[str, ...], what: str) -> Key:
    for key in (named,) if named is not None else usual:
        if key in item:
            return key
    sought = f"'{named}'" if named is not None else " or ".join(f"'{k}'" for k in usual)
    raise LeanError(f"an example has no {sought}; say {what}=KEY with one of {', '.join(map(repr, item))}.")


def check_dataset(dataset: Any) -> None:
    """Refuse what has no example indices to keep a ledger by."""
    if isinstance(dataset, IterableDataset) or (not hasattr(dataset, "__getitem__") and not hasattr(dataset, "batch")):
        raise LeanError(
            f"{type(dataset).__name__} is iterable, but leantrain keeps a record per example and needs to ask for "
            "examples by index; use a map-style data set."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise LeanError(f"{type(dataset).__name__} has no examples; give a data set with a length above zero.")


def check_target(target: Any) -> None:
    """Refuse labels that are not one class index per example."""
    target = torch.as_tensor(target)
    if target.numel() != 1:
        raise LeanError(
            f"an example's label has {target.numel()} values; leantrain takes one class index per example, not "
            "multi-label or soft labels. Give the index of the class (label smoothing is an option of the loss)."
        )
    if target.is_floating_point():
        raise LeanError(
            f"an example's label is {target.item()}, a {target.dtype}; leantrain takes one class index per example, "
            "not soft labels or regression targets. Give it as an int64."
        )


def _as_it_is(batch: Any) -> Any:
    return batch

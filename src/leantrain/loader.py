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
        self.collate: Callable[[list[Any]], Any] = collate or default_collate
        self.keys = keys
        self.rank, self.ranks = rank, ranks
        self.seed = seed

    def find_keys(self, inputs: Key | None, targets: Key | None) -> None:
        """Look where a batch of two examples, as it is collated, keeps its inputs and its labels, and check these."""
        if self.collate is default_collate and hasattr(self.source, "batch"):
            return
        index = torch.arange(min(2, len(self.source)))
        try:
            batch = self[PlannedBatch(0, 0, index, None, WHOLE)]
        except TypeError as error:
            raise LeanError(
                f"two examples of the data set cannot be collated ({str(error).splitlines()[0]}); make tensors of them "
                "in the data set, or give your own function as collate=…"
            ) from error
        self.keys = find_keys(batch.data, inputs, targets)
        check_targets(batch.data[self.keys[1]], len(batch))

    def __getitem__(self, planned: PlannedBatch) -> Batch:
        if get_worker_info() is not None:
            _seed_worker(derive(self.seed, "worker", planned.epoch, planned.position, self.rank))
        index, weight, owner, padding = planned.index, planned.weight, None, False
        if self.ranks > 1:
            owner = planned.owner(self.ranks)
            part = (owner == self.rank).nonzero().squeeze(1)
            padding = len(part) == 0
            if padding:  # fewer inputs than ranks: the first one keeps this rank in step
                part = torch.arange(0, len(index), planned.inputs)
            index, weight = index[part], None if weight is None else weight[part]
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
            owner=owner,
            places=self.keys,
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
    """Yields the planned batches from `start` on; every `iter()` is a fresh iterator, and the length is exact.

    Args:
        at_once: batches of one form come as one, up to so many examples.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.plan: Plan | None = None
        self.start = 0
        self.at_once = at_once

    def __iter__(self) -> Iterator[PlannedBatch]:
        if self.plan is None:
            raise RuntimeError("no epoch has been planned")
        return self.plan.stretches(self.start, self.at_once)

    def __len__(self) -> int:
        return 0 if self.plan is None else sum(1 for _ in self)


def _accepted(options: dict[str, Any]) -> dict[str, Any]:
    """The options of torch's DataLoader, without those that say what the plan does anyway; others it refuses."""
    for name, done, instead in (
        ("shuffle", True, "every epoch is shuffled"),
        ("drop_last", False, "batches are of near-equal size, and none is left to drop"),
        ("sampler", None, "the plan decides which examples form a batch; for other chances use a method"),
        ("batch_sampler", None, "the plan decides which examples form a batch"),
        ("collate_fn", None, "give it to attach as collate=…"),
        ("dataset", None, "it loads the data set that was given to attach"),
    ):
        if options.get(name, done) != done:
            raise LeanError(f"the loader takes no {name}={options[name]!r:.40}: {instead}.")
        options = {key: value for key, value in options.items() if key != name}
    return options


def planned_dataloader(dataset: PlannedDataset, sampler: Sampler[PlannedBatch], **options: Any) -> DataLoader[Batch]:
    """A DataLoader over a plan; `options` are its usual ones, less those that the plan decides."""
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
    """The batches of a run, epoch after epoch: every `iter()` plans one and gives its batches, or these unpacked."""

    def __init__(
        self,
        lean: Lean,
        dataset: PlannedDataset,
        batch_size: int,
        options: dict[str, Any],
        unpacked: bool = False,
        at_once: int = 1,
    ) -> None:
        self.lean = lean
        self.dataset: Any = dataset.source
        """The user's own."""
        self.batch_size = batch_size
        self.drop_last = False
        self.waited = 0.0
        """Seconds spent waiting for data so far."""
        self._sampler = PlanSampler(at_once)
        # Of its own, or every `iter()` would draw the workers' seed from torch's global generator, and a resumed run
        # would go on with other numbers than an uninterrupted one.
        options = _accepted(options)
        options.setdefault("generator", generator(lean.seed, "workers"))
        self._dataloader: DataLoader[Batch] = planned_dataloader(dataset, self._sampler, **options)
        self._underway = False
        self._unpacked = unpacked

    @property
    def batch_sampler(self) -> BatchIndices:
        """The example indices of every batch, to look at."""
        return BatchIndices(*self._epoch())

    @property
    def sampler(self) -> Indices:
        """The example indices of the epoch, to look at."""
        return Indices(*self._epoch())

    def __getattr__(self, name: str) -> Any:
        """What else scripts read from a DataLoader: `num_workers`, `pin_memory` and the like."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataloader, name)

    def __iter__(self) -> Iterator[Any]:
        if self.lean.finished:
            self.lean.warn_once(
                "this run is finished, and its loader gives no more batches; loop `while not lean.finished`, or attach "
                "with more epochs."
            )
            return iter(())
        self._sampler.plan = self.lean.start_epoch(self.batch_size)
        self._sampler.start = self.lean.position
        batches = self._batches(self._sampler.plan)
        return (batch.unpacked() for batch in batches) if self._unpacked else batches

    def _batches(self, plan: Plan) -> Iterator[Batch]:
        try:
            self._underway = True
            batches = self._one_by_one(plan) if self._sampler.at_once > 1 else map(self.lean.prepared, self._loaded())
            yield from batches if plan.thinning is None else self.lean.thinned(batches, self.batch_size)
            self.lean.pass_ended()
        finally:
            self._underway = False

    def _one_by_one(self, plan: Plan) -> Iterator[Batch]:
        """The batches of this plan, of which several are loaded and prepared as one."""
        for several in self._loaded():
            parts = self.lean.prepared(several).parts(plan.sizes(several.position, len(several)))
            yield from (batch for batch in parts if batch.position >= self._sampler.start)

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

        Where a method thins inside the epoch, about how many there will be; or no more than these, where batches come
        unpacked, as scripts take the length for the end. Once the run is finished, those of its last epoch, so that a
        mean over them can still be taken.
        """
        plan, start = self._epoch()
        if self._unpacked and plan.thinning is not None:
            return len(plan) - start + 1  # what is kept may end in two batches that are not full
        return self._expected(plan, len(plan) - start)

    def _epoch(self) -> tuple[Plan, int]:
        """The plan of the epoch that runs or is next, and the batch at which this loader begins it."""
        lean, plan = self.lean, self._sampler.plan
        # Also after the step on the last batch: the loop may ask there, and maybe on one rank only. And also where
        # a consumer that looks ahead has taken the last batch already, and has yet to train on it.
        if plan is not None and (self._underway or (plan.epoch == lean.epoch and not lean.epoch_done)):
            return plan, self._sampler.start
        if lean.finished:
            return lean.plan, 0
        return lean.start_epoch(self.batch_size), lean.position

    @staticmethod
    def _expected(plan: Plan, batches: int) -> int:
        thinning = plan.thinning
        return max(1, round(batches * thinning.keep)) if thinning is not None and thinning.refill else batches


class Indices(Sampler[int]):
    """The example indices of an epoch's batches from `start` on; where a method thins, those of its candidates."""

    def __init__(self, plan: Plan, start: int) -> None:
        self.plan, self.start = plan, start

    def __iter__(self) -> Iterator[int]:
        return iter(self.plan.order[int(self.plan.offsets[self.start]) :].tolist())

    def __len__(self) -> int:
        return self.plan.examples - int(self.plan.offsets[self.start])

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the plan knows its epoch. Scripts call it for torch's DistributedSampler."""


class BatchIndices(Sampler[list[int]]):
    """The same by batch."""

    def __init__(self, plan: Plan, start: int) -> None:
        self.plan, self.start = plan, start

    def __iter__(self) -> Iterator[list[int]]:
        return (self.plan[position].index.tolist() for position in range(self.start, len(self.plan)))

    def __len__(self) -> int:
        return len(self.plan) - self.start


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


def find_keys(data: Any, inputs: Key | None, targets: Key | None) -> tuple[Key, Key]:
    """Where a batch keeps its inputs and its labels: named by the user, else (0, 1) or the usual names of a dict."""
    if isinstance(data, Mapping):
        return _find_key(data, inputs, INPUT_KEYS, "inputs"), _find_key(data, targets, TARGET_KEYS, "targets")
    if isinstance(data, tuple | list) and len(data) >= 2:
        return 0 if inputs is None else inputs, 1 if targets is None else targets
    what = f"a {type(data).__name__}" + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
    raise LeanError(
        f"a batch of the data set is {what}, but must be (inputs, labels) or a dict; "
        "wrap the data set, or give a collate function, so that it is one of these."
    )


def _find_key(data: Mapping[Any, Any], named: Key | None, usual: tuple[str, ...], what: str) -> Key:
    for key in (named,) if named is not None else usual:
        if key in data:
            return key
    sought = f"'{named}'" if named is not None else " or ".join(f"'{k}'" for k in usual)
    raise LeanError(f"a batch has no {sought}; say {what}=KEY with one of {', '.join(map(repr, data))}.")


def check_dataset(dataset: Any) -> None:
    """Refuse what has no example indices to keep a ledger by."""
    if isinstance(dataset, DataLoader | PlannedLoader):
        raise LeanError("the dataset is a loader; give the data set itself, and make a loader with lean.loader(...).")
    if isinstance(dataset, IterableDataset) or (not hasattr(dataset, "__getitem__") and not hasattr(dataset, "batch")):
        raise LeanError(
            f"{type(dataset).__name__} is iterable, but leantrain keeps a record per example and needs to ask for "
            "examples by index; use a map-style data set."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise LeanError(f"{type(dataset).__name__} has no examples; give a data set with a length above zero.")


def check_targets(targets: Any, count: int) -> None:
    """Refuse labels that are not one class index per example."""
    if isinstance(targets, tuple | list) and all(isinstance(one, Tensor) for one in targets):
        targets = torch.stack([one.reshape(-1) for one in targets], dim=1) if targets else targets
    if not isinstance(targets, Tensor):
        raise LeanError(
            f"the labels of a batch are a {type(targets).__name__} ({targets!r:.40}), but leantrain takes one class "
            "index per example; give numbers, or name the entry that has them with targets=KEY."
        )
    values = targets.numel() // max(1, count)
    if targets.is_floating_point() and values > 1:
        raise LeanError(
            f"an example's label has {values} values, as a collate function gives that mixes examples (mixup, cutmix); "
            'leantrain takes one class index per example: drop the mixing there and use method="mixtrain-cutmix" or '
            '"mixtrain-mixup", and label_smoothing=… for smooth labels.'
        )
    if values != 1 or targets.ndim != 1:
        raise LeanError(
            f"an example's label has {values} value{'s' * (values != 1)} (a batch of {count} has labels of shape "
            f"{tuple(targets.shape)}); leantrain takes one class index per example, not multi-label or soft labels."
        )
    if targets.is_floating_point():
        raise LeanError(
            f"an example's label is {targets[0].item()}, a {targets.dtype}; leantrain takes one class index per "
            "example, not soft labels or regression targets. Give it as an int64."
        )


def _as_it_is(batch: Any) -> Any:
    return batch

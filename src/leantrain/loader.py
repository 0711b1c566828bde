"""The loader: a real DataLoader whose sampler is the plan, and the batch that carries its examples' indices along."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from leantrain.errors import LeanError
from leantrain.plan import Form, Plan, PlannedBatch
from leantrain.rng import derive

Key = str | int
INPUT_KEYS = ("image", "images", "pixel_values", "inputs", "input", "x")
TARGET_KEYS = ("label", "labels", "target", "targets", "y")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs, targets and example indices, travelling together, so that no prefetching can part them.

    Attributes:
        data: what the data set's collate function made; `inputs` and `targets` are two of its entries.
        index: int64, which example each target is. In a composite batch the first constituents of all inputs come
            first, then the second ones.
        weight: float32 per example, or None where each counts once.
        form: how the examples are to be shown.
        epoch: the epoch the batch belongs to.
        position: its place in that epoch's plan.
        total: what the batch's loss is divided by: the inputs of the whole batch, also in one of its `chunks`; over
            several ranks the mean per rank, so that averaged gradients are the mean over all inputs.
        cost: what training on it costs, on all ranks together.
        padding: whether it only keeps this rank in step with others that have examples; it neither trains nor records.
        last: whether the optimiser steps after it; False for all `chunks` but the last.
        after: for a batch gathered from candidates, where the epoch stands once it is trained.
        keys: where in `data` the inputs and the targets are.
    """

    data: Any
    index: Tensor
    weight: Tensor | None
    form: Form
    epoch: int
    position: int
    total: float
    cost: float
    last: bool = True
    padding: bool = False
    after: After | None = None
    keys: tuple[Key, Key] = (0, 1)

    def __len__(self) -> int:
        """How many examples it shows."""
        return len(self.index)

    @property
    def inputs(self) -> Any:
        return self.data[self.keys[0]]

    @property
    def targets(self) -> Tensor:
        targets: Tensor = self.data[self.keys[1]]
        return targets

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The batch on another device."""

        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=non_blocking)

        return self._map(move)

    def pin_memory(self) -> Batch:
        """The batch in pinned memory; the DataLoader's pinning thread calls this."""
        return self._map(torch.Tensor.pin_memory)

    def with_inputs(self, inputs: Any) -> Batch:
        """The same batch with other inputs, for a transform that runs on the device."""
        return dataclasses.replace(self, data=_replaced(self.data, self.keys[0], inputs))

    def chunks(self, count: int) -> Iterator[Batch]:
        """The batch in `count` parts for gradient accumulation.

        The gradients of the parts' losses add up to the gradient of the whole batch's loss, also when the parts
        differ in size: each loss is divided by the whole batch's inputs. Every rank gets as many parts as the others,
        also where it has fewer inputs than they.
        """
        count = max(1, min(count, math.ceil(self.total)))
        if count == 1:
            yield self
            return
        whole = torch.arange(len(self.index), device=self.index.device).view(self.form.constituents, -1)
        for number, part in enumerate(whole.tensor_split(count, dim=1)):
            empty = part.numel() == 0
            rows = (whole[:, :1] if empty else part).reshape(-1)  # the first input keeps this rank in step
            taken = self.take(rows)
            last = self.last and number == count - 1
            yield dataclasses.replace(taken, cost=self.cost / count, last=last, padding=self.padding or empty)

    def take(self, rows: Tensor) -> Batch:
        """The batch with these of its examples only."""
        select = functools.partial(torch.index_select, dim=0, index=rows)
        weight = None if self.weight is None else select(self.weight)
        data = _taken(self.data, select, rows, len(self.index))
        return dataclasses.replace(self, data=data, index=select(self.index), weight=weight)

    def joined(self, other: Batch) -> Batch:
        """This batch with the examples of another one behind its own."""
        weight = None
        if self.weight is not None and other.weight is not None:
            weight = torch.cat([self.weight, other.weight])
        data = _joined(self.data, other.data, (len(self), len(other)))
        return dataclasses.replace(self, data=data, index=torch.cat([self.index, other.index]), weight=weight)

    def state_dict(self) -> dict[str, Any]:
        """Its contents as tensors and plain values, for a checkpoint that keeps examples waiting for their batch."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "after"},
            "data": _plain(self.data),
            "form": list(self.form),
            "keys": list(self.keys),
        }

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> Batch:
        return Batch(**{**state, "form": Form(*state["form"]), "keys": tuple(state["keys"])})

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        weight = None if self.weight is None else function(self.weight)
        return dataclasses.replace(self, data=_tree(self.data, function), index=function(self.index), weight=weight)


@dataclasses.dataclass(frozen=True)
class After:
    """What holds once a batch gathered from candidates has been trained.

    Attributes:
        leftover: examples that were kept and wait for the next batch.
        state: what the method knows from having looked at the candidates so far.
    """

    leftover: Batch | None
    state: dict[str, Any]


class BatchSource(Protocol):
    """A data set that makes a whole batch at once, vectorised or aware of the epoch; others are asked item by item."""

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
        part = planned.part(self.rank, self.ranks)
        padding = len(part) == 0
        if padding:  # fewer inputs than ranks: the first one keeps this rank in step
            part = torch.arange(0, len(planned.index), planned.inputs)
        index = planned.index[part]
        weight = None if planned.weight is None else planned.weight[part]
        if self.collate is default_collate and hasattr(self.source, "batch"):
            data: Any = self.source.batch(index, planned.epoch)
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
            keys=self.keys,
        )


class InOrder(Sampler[PlannedBatch]):
    """Every example once, in order, in batches of `batch_size`: for passes that train nothing."""

    def __init__(self, length: int, batch_size: int) -> None:
        offsets = torch.tensor([*range(0, length, batch_size), length])
        self.plan = Plan(-1, torch.arange(length), offsets, torch.zeros(len(offsets) - 1, dtype=torch.int64))

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self.plan[position] for position in range(len(self.plan)))

    def __len__(self) -> int:
        return len(self.plan)


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


def _tree(data: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested collate result."""
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, Mapping):
        return {key: _tree(value, function) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return _sequence_like(data, [_tree(value, function) for value in data])
    return data


def _plain(data: Any) -> Any:
    """A nested collate result of tensors, dicts, lists and tuples only, as a checkpoint may hold."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return [_plain(value) for value in data] if isinstance(data, list) else tuple(_plain(value) for value in data)
    return data


def _taken(data: Any, select: Callable[[Tensor], Tensor], rows: Tensor, length: int) -> Any:
    """Some rows of a nested collate result: of its tensors, and of its columns of names, which are no tensors."""
    if isinstance(data, Tensor):
        return select(data) if data.ndim else data
    if isinstance(data, Mapping):
        return {key: _taken(value, select, rows, length) for key, value in data.items()}
    if _is_column(data) and len(data) == length:
        return _sequence_like(data, [data[row] for row in rows.tolist()])
    if isinstance(data, tuple | list):
        return _sequence_like(data, [_taken(value, select, rows, length) for value in data])
    return data


def _joined(first: Any, second: Any, lengths: tuple[int, int]) -> Any:
    """Two nested collate results as one, the rows of every tensor and column behind the other's."""
    if isinstance(first, Tensor):
        return torch.cat([first, second]) if first.ndim else second
    if isinstance(first, Mapping):
        return {key: _joined(value, second[key], lengths) for key, value in first.items()}
    if _is_column(first) and (len(first), len(second)) == lengths:
        return _sequence_like(first, [*first, *second])
    if isinstance(first, tuple | list):
        # Like the second: the first may come from a checkpoint, which knows no named tuples.
        return _sequence_like(second, [_joined(a, b, lengths) for a, b in zip(first, second, strict=True)])
    return first


def _is_column(data: Any) -> bool:
    """Whether it is a plain list of one name, number or the like per example, as default_collate makes of strings."""
    plain = isinstance(data, tuple | list) and not hasattr(data, "_fields")
    return plain and not any(isinstance(entry, Tensor | Mapping | tuple | list) for entry in data)


def _replaced(data: Any, key: Key, value: Any) -> Any:
    if isinstance(data, Mapping):
        return {**data, key: value}
    assert isinstance(key, int)
    return _sequence_like(data, [value if position == key else entry for position, entry in enumerate(data)])


def _sequence_like(data: Any, entries: list[Any]) -> Any:
    return type(data)(*entries) if hasattr(data, "_fields") else type(data)(entries)  # a named tuple, or a plain one

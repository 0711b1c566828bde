"""The batch: inputs, targets and example indices, which travel together from the data set to the ledger."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leantrain.cost import training_cost
from leantrain.forms import WHOLE, Form

Key = str | int


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
        owner: int64 on the CPU, which rank holds each example of the whole batch; None in a single process.
        places: where in `data` the inputs and the targets are.
        given: the part of the form in which the inputs are already: as the data set gave them, or `prepare` made them.
        changed: whether the loop has put other inputs into it.
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
    owner: Tensor | None = None
    places: tuple[Key, Key] = (0, 1)
    given: Form = WHOLE
    changed: bool = False

    def __len__(self) -> int:
        """How many examples it shows."""
        return len(self.index)

    @property
    def examples(self) -> int:
        """How many examples all ranks together show."""
        return len(self.index) if self.owner is None else len(self.owner)

    @property
    def inputs(self) -> Any:
        return self.data[self.places[0]]

    @property
    def targets(self) -> Tensor:
        targets: Tensor = self.data[self.places[1]]
        return targets

    def __iter__(self) -> Iterator[Any]:
        """What it holds, as in `inputs, targets = batch`; where that is a dict, its keys."""
        return iter(self.data)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __contains__(self, key: object) -> bool:
        return key in self.data if isinstance(self.data, Mapping) else False

    def __getattr__(self, name: str) -> Any:
        """Where it holds a dict, what makes it a mapping, as `model(**batch)` needs."""
        if name in ("keys", "items", "values", "get") and isinstance(self.data, Mapping):
            return getattr(self.data, name)
        raise AttributeError(
            f"a batch has no {name}; its images are the tensor batch.inputs, and batch.with_inputs(…) gives it others"
        )

    @property
    def shape(self) -> torch.Size:
        """That of its inputs, as loops ask it of the images that they unpacked; `unpacked` gives them the batch."""
        shape: torch.Size = self.inputs.shape
        return shape

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape of its inputs, or one length of it."""
        return self.shape if dim is None else self.shape[dim]

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Batch:
        """The batch with its images in that layout."""
        return self.to(memory_format=memory_format)

    def unpacked(self) -> Any:
        """What the collate function made, with this batch in the place of its inputs.

        So `images, targets = …` in a loop names the batch `images`, which moves to a device, says its size and goes to
        `lean.loss` as it is: the examples' indices stay with it, and the loop keeps the lines that unpack.
        """
        return _replaced(self.data, self.places[0], self)

    def to(
        self,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
    ) -> Batch:
        """The batch on another device; its floating-point data in another precision, its images in another layout."""
        if isinstance(device, torch.dtype):  # as a tensor takes it
            device, dtype = None, device

        def move(x: Tensor) -> Tensor:
            return x if device is None else x.to(device, non_blocking=non_blocking)

        def convert(x: Tensor) -> Tensor:
            x = x.to(dtype) if dtype is not None and x.is_floating_point() else x
            return x.contiguous(memory_format=memory_format) if memory_format is not None and x.ndim == 4 else x

        moved = self._map(move)
        return (
            moved
            if dtype is None and memory_format is None
            else dataclasses.replace(moved, data=_tree(moved.data, convert))
        )

    def cuda(self, device: torch.device | int | None = None, non_blocking: bool = True) -> Batch:
        """The batch on a GPU."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def cpu(self) -> Batch:
        """The batch on the CPU."""
        return self.to("cpu", non_blocking=False)

    def pin_memory(self) -> Batch:
        """The batch in pinned memory; the DataLoader's pinning thread calls this."""
        return self._map(torch.Tensor.pin_memory)

    def with_inputs(self, inputs: Any) -> Batch:
        """The same batch with other inputs, for a transform that runs on the device.

        Methods that look at examples before these are trained on need it in `attach(prepare=…)` instead.
        """
        return dataclasses.replace(self, data=_replaced(self.data, self.places[0], inputs), changed=True)

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
            last, owner = self.last and number == count - 1, self._owner_of_part(number, count)
            yield dataclasses.replace(
                taken, cost=self.cost / count, last=last, padding=self.padding or empty, owner=owner
            )

    def _owner_of_part(self, number: int, count: int) -> Tensor | None:
        """`owner` of one of `count` parts into which every rank cuts what it holds."""
        if self.owner is None:
            return None
        inputs = self.owner.view(self.form.constituents, -1)
        held = [(inputs[0] == rank).nonzero().squeeze(1) for rank in set(inputs[0].tolist())]
        chosen = torch.cat([places.tensor_split(count)[number] for places in held]).sort().values
        return inputs[:, chosen].reshape(-1)

    def parts(self, sizes: Sequence[int]) -> Iterator[Batch]:
        """The planned batches of so many examples each that were loaded as this one and share its memory.

        In a single process only.
        """
        data, index = _cut(self.data, sizes, len(self)), torch.split(self.index, list(sizes))
        weight = [None] * len(sizes) if self.weight is None else torch.split(self.weight, list(sizes))
        for number, size in enumerate(sizes):
            inputs = size // self.form.constituents
            yield dataclasses.replace(
                self,
                data=data[number],
                index=index[number],
                weight=weight[number],
                position=self.position + number,
                total=float(inputs),
                cost=training_cost(inputs, self.form.size),
            )

    def take(self, rows: Tensor) -> Batch:
        """The batch with these of its examples only."""
        select = functools.partial(torch.index_select, dim=0, index=rows)
        weight = None if self.weight is None else select(self.weight)
        data = _taken(self.data, select, rows, len(self.index))
        return dataclasses.replace(self, data=data, index=select(self.index), weight=weight)

    def pick(self, places: Tensor, rank: int = 0) -> Batch:
        """The batch with these examples only, given by their places in the whole of it; every rank picks the same.

        A rank that holds none of them keeps one of its own as padding.
        """
        if self.owner is None:
            return self.take(places)
        own = self.owner == rank
        return self._held((own.cumsum(0) - 1)[places[own[places]]], self.owner[places])

    def held_by(self, rank: int, owner: Tensor | None) -> Batch:
        """What one rank holds of a batch that is all here."""
        if owner is None:
            return dataclasses.replace(self, owner=None)
        return self._held((owner == rank).nonzero().squeeze(1), owner)

    def _held(self, rows: Tensor, owner: Tensor) -> Batch:
        padding = len(rows) == 0
        rows = rows.new_zeros(1) if padding else rows
        return dataclasses.replace(self.take(rows.to(self.index.device)), owner=owner, padding=padding)

    @staticmethod
    def assembled(parts: Sequence[Batch]) -> Batch:
        """The whole batch from what each rank holds of it; the opposite of `held_by`."""
        owner = parts[0].owner
        assert owner is not None
        rows = functools.reduce(Batch.joined, (part for part in parts if not part.padding))
        whole = rows.take(owner.argsort(stable=True).argsort())
        return dataclasses.replace(whole, owner=owner)

    def joined(self, other: Batch) -> Batch:
        """This batch with the examples of another one behind its own."""
        owner = None if self.owner is None or other.owner is None else torch.cat([self.owner, other.owner])
        if self.padding or other.padding:
            return dataclasses.replace(other if self.padding else self, owner=owner)
        weight = None
        if self.weight is not None and other.weight is not None:
            weight = torch.cat([self.weight, other.weight])
        data = _joined(self.data, other.data, (len(self), len(other)))
        index = torch.cat([self.index, other.index])
        return dataclasses.replace(self, data=data, index=index, weight=weight, owner=owner)

    def state_dict(self) -> dict[str, Any]:
        """Its contents as tensors and plain values, for a checkpoint that keeps examples waiting for their batch."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "after"},
            "data": _plain(self.data),
            "form": [list(part) for part in self.form.parts],
            "given": [list(part) for part in self.given.parts],
            "places": list(self.places),
        }

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> Batch:
        form, given = (Form(tuple((name, value) for name, value in state[which])) for which in ("form", "given"))
        return Batch(**{**state, "form": form, "given": given, "places": tuple(state["places"])})

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


def _cut(data: Any, sizes: Sequence[int], length: int) -> list[Any]:
    """A nested collate result of so many examples in parts of these sizes.

    What has no row for each of them, such as weights of the classes, goes into every part as it is.
    """
    if isinstance(data, Tensor) and data.ndim and len(data) == length:
        return list(torch.split(data, list(sizes)))
    if isinstance(data, Mapping):
        columns = {key: _cut(value, sizes, length) for key, value in data.items()}
        return [{key: parts[number] for key, parts in columns.items()} for number in range(len(sizes))]
    if _is_column(data) and len(data) == length:
        stops = list(itertools.accumulate(sizes))
        return [_sequence_like(data, list(data[stop - size : stop])) for size, stop in zip(sizes, stops, strict=True)]
    if isinstance(data, tuple | list):
        entries = [_cut(value, sizes, length) for value in data]
        return [_sequence_like(data, [parts[number] for parts in entries]) for number in range(len(sizes))]
    return [data] * len(sizes)


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

"""The ledger: what is known about every training example. The only per-example state there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leantrain.errors import LeanError
from leantrain.ranks import own_rank, world_size

FIELDS: dict[str, tuple[torch.dtype, float]] = {
    "loss": (torch.float32, float("nan")),  # unsmoothed, unweighted, with the example's own label
    "previous": (torch.float32, float("nan")),  # the loss before that one
    "correct": (torch.bool, False),
    "constituents": (torch.uint8, 0),  # examples in the input in which it was last trained; 0: never trained
    "size": (torch.uint8, 0),  # what that input cost, in percent of a whole one
    "epoch": (torch.int16, -1),  # when it was last trained
    "trained": (torch.int32, 0),  # how often it was trained
}
MOST_EPOCHS = torch.iinfo(FIELDS["epoch"][0]).max
SENT = {"index": torch.int32, **{name: dtype for name, (dtype, _) in FIELDS.items()}}
"""What ranks exchange per example."""
ROW = sum(dtype.itemsize for dtype in SENT.values())
ROUND = 1 << 22
"""Examples of all ranks that are exchanged at once."""


class Seen(Protocol):
    """Of the form in which a batch was trained, what the ledger records."""

    @property
    def constituents(self) -> int: ...
    @property
    def size(self) -> float: ...


@dataclass
class _Store:
    """What a ledger and its views share."""

    device: torch.device
    fields: dict[str, Tensor]
    kept: set[str]  # fields that the history keeps
    fresh: Tensor | None = None  # what this rank has recorded since ranks last agreed


class Ledger:
    """One tensor per field, each of length N, on the device where the losses arise.

    A step records what it saw with `record`, which never waits for the device. Methods read the fields when they draft
    the next epoch and may `register` their own: each method of a chain gets a view (`scoped`) in which its own fields
    have the names it gave them, so that two of a kind do not meet.
    """

    def __init__(self, length: int, device: torch.device | str = "cpu") -> None:
        self.length = length
        self._store = _Store(torch.device(device), {}, set())
        self._scope = ""
        for name, (dtype, fill) in FIELDS.items():
            self.register(name, dtype, fill)

    def scoped(self, scope: str) -> Ledger:
        """This very ledger, with the fields registered under that scope added to the common ones."""
        view = object.__new__(Ledger)
        view.length, view._store, view._scope = self.length, self._store, f"{scope}."
        return view

    @property
    def device(self) -> torch.device:
        return self._store.device

    def register(self, name: str, dtype: torch.dtype, fill: float = 0, history: bool = False) -> Tensor:
        """Add a field of a method's own; saved, restored and kept in step with the others.

        Args:
            name: under which the method, and nobody else, finds it.
            history: whether the history keeps it for every epoch, so that the page can look back.
        """
        key = self._scope + name
        if key in self._store.fields or (name in FIELDS and self._scope):
            raise LeanError(f"the ledger has a field '{name}' already; call yours otherwise.")
        self._store.fields[key] = torch.full((self.length,), fill, dtype=dtype, device=self.device)
        if history:
            self._store.kept.add(key)
        return self._store.fields[key]

    @property
    def kept(self) -> tuple[str, ...]:
        """The fields that the history keeps, by their full names."""
        return tuple(sorted(self._store.kept))

    def __getitem__(self, name: str) -> Tensor:
        own = self._store.fields.get(self._scope + name)
        return self._store.fields[name] if own is None else own

    def __contains__(self, name: str) -> bool:
        return self._scope + name in self._store.fields or name in self._store.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.fields)

    def __len__(self) -> int:
        return self.length

    @torch.no_grad()
    def record(self, index: Tensor, loss: Tensor, correct: Tensor, form: Seen, epoch: int) -> None:
        """Write one batch's results down, on the device and without waiting for it.

        Args:
            index: int64 indices of the examples; each at most once per batch.
            loss: their clean losses, one each.
            correct: whether each was classified correctly.
            form: how they were shown.
            epoch: the epoch they belong to.
        """
        index = self._here(index, loss)
        fields = self._store.fields
        # Not `field[index] = …`, which is more work to start, for so few numbers more than the work itself.
        fields["previous"].scatter_(0, index, fields["loss"].gather(0, index))
        fields["loss"].scatter_(0, index, loss.detach().float())
        fields["correct"].scatter_(0, index, correct)
        fields["constituents"].index_fill_(0, index, form.constituents)
        fields["size"].index_fill_(0, index, min(255, max(1, round(100 * form.size))))
        fields["epoch"].index_fill_(0, index, epoch)
        fields["trained"].index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        self._mark_fresh(index)

    @torch.no_grad()
    def observe(self, index: Tensor, loss: Tensor, correct: Tensor) -> None:
        """Write losses down that were measured without training on their examples; the rest stays as it was."""
        index = self._here(index, loss)
        self._store.fields["loss"][index] = loss.detach().float()
        self._store.fields["correct"][index] = correct
        self._mark_fresh(index)

    def _here(self, index: Tensor, loss: Tensor) -> Tensor:
        if loss.device != self.device:
            self.to(loss.device)  # once: losses keep arising where they do
        return index.to(self.device, non_blocking=True)

    def _mark_fresh(self, index: Tensor) -> None:
        if world_size() > 1:
            if self._store.fresh is None:
                self._store.fresh = torch.zeros(self.length, dtype=torch.bool, device=self.device)
            self._store.fresh[index] = True

    def to(self, device: torch.device) -> None:
        """Move every field to another device."""
        store = self._store
        store.device = device
        store.fields.update({name: field.to(device) for name, field in store.fields.items()})
        store.fresh = None if store.fresh is None else store.fresh.to(device)

    def synchronise(self) -> None:
        """Let all ranks hold what each of them recorded; every rank must call it. Nothing to do in a single process.

        Each sends what it recorded since they last agreed and nothing else: 21 bytes per example, in rounds of bounded
        memory. Each example is recorded by one rank, so the order does not matter.
        """
        if world_size() == 1:
            return
        store, ranks = self._store, world_size()
        empty = torch.empty(0, dtype=torch.int64, device=self.device)
        mine = empty if store.fresh is None else store.fresh.nonzero().squeeze(1)
        counts = torch.zeros(ranks, dtype=torch.int64, device=self.device)
        counts[own_rank()] = len(mine)
        torch.distributed.all_reduce(counts)
        held = counts.tolist()  # the host must know; once an epoch
        share = max(1, ROUND // ranks)
        for start in range(0, max(held), share):
            here = [max(0, min(share, count - start)) for count in held]
            sent = self._packed(mine[start : start + share], max(here))
            received = [torch.empty_like(sent) for _ in held]
            torch.distributed.all_gather(received, sent)
            for rank, (block, count) in enumerate(zip(received, here, strict=True)):
                if rank != own_rank():
                    self._unpack(block, count, max(here))
        store.fresh = None

    def _packed(self, index: Tensor, room: int) -> Tensor:
        """What is recorded of some examples, with their indices: a block of bytes with room for `room` of them."""
        block = torch.zeros(room * ROW, dtype=torch.uint8, device=self.device)
        for name, column in _columns(block, len(index), room):
            column.copy_(index if name == "index" else self._store.fields[name][index])
        return block

    def _unpack(self, block: Tensor, count: int, room: int) -> None:
        """Take over what another rank packed."""
        (_, index), *columns = _columns(block, count, room)
        for name, column in columns:
            self._store.fields[name][index.long()] = column

    def seen_in(self, epoch: int) -> Tensor:
        """Which examples were trained in that epoch, as a mask."""
        return self._store.fields["epoch"] == epoch

    def unmixed(self) -> Tensor:
        """Which examples were last trained in an input of their own, of whatever size, as a mask."""
        return self._store.fields["constituents"] == 1

    def state_dict(self) -> dict[str, Tensor]:
        return {name: field.cpu().clone() for name, field in self._store.fields.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, field in state.items():
            if field.shape != (self.length,):
                raise ValueError(f"the ledger holds {self.length} examples, but the saved '{name}' has {len(field)}")
            if name in self._store.fields:
                self._store.fields[name].copy_(field)
            else:
                self._store.fields[name] = field.to(self.device)


def _columns(block: Tensor, count: int, room: int) -> Iterator[tuple[str, Tensor]]:
    """The columns of a block of `room` rows, the wide ones first so that each is aligned; `count` entries of each."""
    start = 0
    for name, dtype in sorted(SENT.items(), key=lambda entry: -entry[1].itemsize):
        yield name, block[start : start + count * dtype.itemsize].view(dtype)
        start += room * dtype.itemsize

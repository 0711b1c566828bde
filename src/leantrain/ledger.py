"""The ledger: what is known about every training example. The only per-example state there is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

NEVER, WHOLE, COMPOSITE, SHRUNK = 0, 1, 2, 3
"""The form an example was last seen in, as the ledger and the history store it."""

FIELDS: dict[str, tuple[torch.dtype, float]] = {
    "loss": (torch.float32, float("nan")),  # unsmoothed, unweighted, with the example's own label
    "previous": (torch.float32, float("nan")),  # the loss before that one
    "correct": (torch.bool, False),
    "form": (torch.uint8, NEVER),
    "epoch": (torch.int16, -1),  # when it was last trained
    "trained": (torch.int32, 0),  # how often it was trained
}


def world_size() -> int:
    """How many processes train together."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


class Ledger:
    """One tensor per field, each of length N, on the device where the losses arise.

    A step records what it saw with `record`, which never waits for the device. Methods read the fields when they plan
    the next epoch and may `register` fields of their own.
    """

    def __init__(self, length: int, device: torch.device | str = "cpu") -> None:
        self.length = length
        self.device = torch.device(device)
        self._fields: dict[str, Tensor] = {}
        self._fresh: Tensor | None = None  # what this rank has recorded since ranks last agreed
        for name, (dtype, fill) in FIELDS.items():
            self.register(name, dtype, fill)

    def register(self, name: str, dtype: torch.dtype, fill: float = 0) -> Tensor:
        """Add a field of a method's own; saved, restored and kept in step with the others."""
        if name in self._fields:
            raise ValueError(f"the ledger has a field '{name}' already")
        self._fields[name] = torch.full((self.length,), fill, dtype=dtype, device=self.device)
        return self._fields[name]

    def __getitem__(self, name: str) -> Tensor:
        return self._fields[name]

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return self.length

    @torch.no_grad()
    def record(self, index: Tensor, loss: Tensor, correct: Tensor, form: int, epoch: int) -> None:
        """Write one batch's results down, on the device and without waiting for it.

        Args:
            index: int64 indices of the examples; each at most once per batch.
            loss: their clean losses, one each.
            correct: whether each was classified correctly.
            form: WHOLE, COMPOSITE or SHRUNK.
            epoch: the epoch they belong to.
        """
        if loss.device != self.device:
            self.to(loss.device)  # once: losses keep arising where they do
        fields = self._fields
        index = index.to(self.device, non_blocking=True)
        fields["previous"][index] = fields["loss"][index]
        fields["loss"][index] = loss.detach().float()
        fields["correct"][index] = correct
        fields["form"][index] = form
        fields["epoch"][index] = epoch
        fields["trained"].index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        self._mark_fresh(index)

    @torch.no_grad()
    def observe(self, index: Tensor, loss: Tensor, correct: Tensor) -> None:
        """Write losses down that were measured without training on their examples; the rest stays as it was."""
        if loss.device != self.device:
            self.to(loss.device)
        index = index.to(self.device, non_blocking=True)
        self._fields["loss"][index] = loss.detach().float()
        self._fields["correct"][index] = correct
        self._mark_fresh(index)

    def _mark_fresh(self, index: Tensor) -> None:
        if world_size() > 1:
            if self._fresh is None:
                self._fresh = torch.zeros(self.length, dtype=torch.bool, device=self.device)
            self._fresh[index] = True

    def to(self, device: torch.device) -> None:
        """Move every field to another device."""
        self.device = device
        self._fields = {name: field.to(device) for name, field in self._fields.items()}
        self._fresh = None if self._fresh is None else self._fresh.to(device)

    def synchronise(self) -> None:
        """Let all ranks hold what each of them recorded; every rank must call it. Nothing to do in a single process.

        Each example is recorded by one rank, so a sum over ranks of what is fresh is the value itself.
        """
        if world_size() == 1:
            return
        fresh = (
            self._fresh if self._fresh is not None else torch.zeros(self.length, dtype=torch.bool, device=self.device)
        )
        anywhere = fresh.to(torch.int32)
        torch.distributed.all_reduce(anywhere)
        for name in FIELDS:
            field = self._fields[name]
            wide = torch.float32 if field.is_floating_point() else torch.int32
            value = torch.where(fresh, field.to(wide), 0)
            torch.distributed.all_reduce(value)
            field.copy_(torch.where(anywhere > 0, value.to(field.dtype), field))
        self._fresh = None

    def seen_in(self, epoch: int) -> Tensor:
        """Which examples were trained in that epoch, as a mask."""
        return self._fields["epoch"] == epoch

    def state_dict(self) -> dict[str, Tensor]:
        return {name: field.cpu().clone() for name, field in self._fields.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, field in state.items():
            if field.shape != (self.length,):
                raise ValueError(f"the ledger holds {self.length} examples, but the saved '{name}' has {len(field)}")
            if name in self._fields:
                self._fields[name].copy_(field)
            else:
                self._fields[name] = field.to(self.device)

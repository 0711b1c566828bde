"""A user's own DataLoader, taken over: its data set, its batch size and its workers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from leantrain.errors import LeanError

_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")


def loader_of(found: Any, where: str) -> DataLoader[Any]:
    """The one DataLoader that there is, with an order that a plan may replace."""
    if not isinstance(found, DataLoader):
        raise LeanError(f"{where} is a {type(found).__name__}, but must be one DataLoader of a map-style data set.")
    if type(found.sampler) not in (RandomSampler, SequentialSampler, DistributedSampler) or found.batch_size is None:
        sampler = found.sampler if found.batch_size is not None else found.batch_sampler
        raise LeanError(
            f"{where} comes from a {type(sampler).__name__}, but the plan decides which examples form a batch; "
            "use shuffle=True and a batch_size."
        )
    return found


def options_of(loader: DataLoader[Any]) -> tuple[int, dict[str, Any]]:
    """Its batch size, and those of its options that say how examples are loaded."""
    options = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers and loader.prefetch_factor is not None:
        options["prefetch_factor"] = loader.prefetch_factor
    assert loader.batch_size is not None
    return loader.batch_size, options

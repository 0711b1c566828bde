"""Ranks: what several processes that train one model tell each other beyond their gradients."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from leantrain.errors import LeanError


def world_size() -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if _together() else 1


def own_rank() -> int:
    """This process's number among them, from 0."""
    return torch.distributed.get_rank() if _together() else 0


def _together() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def shared(rows: Tensor, owner: Tensor) -> Tensor:
    """The rows of all ranks as one tensor, in the order of the whole batch; every rank must call it.

    One sum over ranks: each row comes from one of them, and a sum with zeros is the row itself.

    Args:
        rows: float32 (n, columns), those of this rank.
        owner: which rank has each row of the whole.
    """
    whole = rows.new_zeros(len(owner), rows.shape[1])
    whole[(owner == own_rank()).nonzero().squeeze(1).to(rows.device)] = rows
    torch.distributed.all_reduce(whole)
    return whole


def gathered(value: Any) -> list[Any]:
    """What each rank gave, in their order; every rank must call it."""
    if world_size() == 1:
        return [value]
    everyone: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(everyone, value)
    return everyone


def of_the_first(values: Tensor, device: torch.device) -> Tensor:
    """The first rank's values on every rank, sent from where NCCL can; every rank must call it."""
    if world_size() == 1:
        return values
    sent = values.to(device, copy=True)
    torch.distributed.broadcast(sent, 0)
    return sent.to(values.device)


def spread_buffers(model: nn.Module) -> None:
    """Give every rank the first one's buffers (BatchNorm's statistics), which differ after a step."""
    if world_size() > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, 0)


@contextlib.contextmanager
def unsynchronised(model: nn.Module) -> Iterator[None]:
    """No waiting for the other ranks inside: they may have fewer batches to look at, or none.

    Every forward pass of DistributedDataParallel spreads the buffers of the first rank, and so waits for all of them.
    """
    wrappers = _wrappers(model)
    before = [wrapper.require_forward_param_sync for wrapper in wrappers]
    for wrapper in wrappers:
        wrapper.require_forward_param_sync = False
    try:
        yield
    finally:
        for wrapper, synchronised in zip(wrappers, before, strict=True):
            wrapper.require_forward_param_sync = synchronised


def wrap_again(model: nn.Module) -> None:
    """Let DistributedDataParallel average the gradients of the parameters that the model has now; every rank must call.

    It has laid out those that it was given, and has no way to take others. Made anew in its own place, as the loop and
    Fabric hold it; it checks that all ranks have parameters of the same shapes, and gives them the first one's values.
    `check_rewrappable` has found nothing that would be lost.
    """
    for wrapper in _wrappers(model):
        names = ("device_ids", "output_device", "dim", "process_group", "find_unused_parameters", "static_graph")
        given = {name: getattr(wrapper, name) for name in (*names, "gradient_as_bucket_view")}
        if not wrapper.bucket_bytes_cap_default:
            given["bucket_cap_mb"] = wrapper.bucket_bytes_cap / 2**20
        held = vars(wrapper)
        if not held.get("forward_sync_buffers", held.get("broadcast_buffers", True)):  # its name has changed
            given["broadcast_buffers"] = False
        kept = {name: held[name] for name in KEPT if name in held}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            DistributedDataParallel.__init__(wrapper, wrapper.module, **given)
        vars(wrapper).update(kept)


KEPT = (
    "training",
    "require_backward_grad_sync",
    *(name for name in vars(nn.Module()) if name.endswith(("_hooks", "_with_kwargs", "_always_called"))),
)
"""What belongs to the wrapper's user and not to its making."""


def check_rewrappable(model: nn.Module) -> None:
    """Refuse several ranks with a wrapper that `wrap_again` cannot find or would not make as it was."""
    if world_size() == 1:
        return
    wrappers = _wrappers(model)
    if not wrappers:
        raise LeanError(
            f"the method changes {type(model).__name__}, around which DistributedDataParallel must then be made anew, "
            "and no such wrapper is in sight; wrap the model before attach, or assign lean.model = wrapped."
        )
    if any(one._comm_hooks or one.mixed_precision is not None or one._delay_all_reduce_params for one in wrappers):
        raise LeanError(
            "DistributedDataParallel has a hook for its communication, a precision of its own or delayed parameters, "
            "which would be lost when the method changes the model; leave that out, or choose another method."
        )


def check_sharding(model: nn.Module) -> None:
    """Refuse a model whose weights are shared out over ranks: what is asked of it there needs whole ones."""
    # Who shards has imported these; importing them here would take a second in every process.
    tensor, fsdp = (sys.modules.get(f"torch.distributed.{name}") for name in ("tensor", "fsdp"))
    sharded = tensor is not None and any(isinstance(one, tensor.DTensor) for one in model.parameters())
    if sharded or (fsdp is not None and any(isinstance(one, fsdp.FullyShardedDataParallel) for one in model.modules())):
        raise LeanError(
            f"the weights of {type(model).__name__} are shared out over processes (FSDP, fully_shard), which leantrain "
            "does not support; wrap it in DistributedDataParallel instead."
        )


def wrapping_warning(model: nn.Module) -> str | None:
    """That nothing averages the gradients of several ranks, as far as can be seen; None where something does."""
    if world_size() == 1 or _wrappers(model):
        return None
    return (
        f"{world_size()} processes train together, but {type(model).__name__} is not wrapped in "
        "DistributedDataParallel, so each would go its own way; wrap it before attach, or assign lean.model = wrapped."
    )


def waits_for_all(model: nn.Module) -> bool:
    """Whether DistributedDataParallel would wait for a gradient of every parameter, or fail for want of one."""
    return any(not wrapper.find_unused_parameters for wrapper in _wrappers(model))


def _wrappers(model: nn.Module) -> list[DistributedDataParallel]:
    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]

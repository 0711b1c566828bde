"""Taking over a script: the loader and the scheduler that it has, given back with a method behind them."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from leantrain.errors import LeanError
from leantrain.lean import Lean
from leantrain.loader import PlannedLoader
from leantrain.methods import Method
from leantrain.ranks import world_size
from leantrain.schedulers import steps_of

_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")


def take_over(
    model: nn.Module,
    loader: Any,
    scheduler: LRScheduler | None,
    method: Method | str | None = None,
    *,
    epochs: int,
    steps: int | None = None,
    **options: Any,
) -> tuple[Lean, PlannedLoader, Any]:
    """Put a method behind the loader and the scheduler of a script, right before its loop, which stays.

    The loader gives what it gave, with the batch itself in the place of the images (`Batch.unpacked`), so in the loop
    `output = model(images)` and `loss = criterion(output, targets)` become `loss = loader.lean.loss(images)`, and
    `lean.last` has the output. The optimiser's state holds the run's from here on, so a script that saves and loads
    that one goes on with the run (`Lean.save_with`).

    Args:
        model: the model that is trained; under DDP the wrapped one.
        loader: the DataLoader of the training data: its data set, batch size (per process), workers and collate
            function are taken over.
        scheduler: one of torch's, driven by progress from now on; None where there is none.
        method, options: as for `leantrain.attach`. A `criterion` may be one of torch's that takes the mean.
        epochs: how many the run stands for: those of the script's loop.
        steps: how many the scheduler counts in a whole run, where it does not say so and does not count epochs.

    Returns:
        The run, its loader and the driven scheduler.
    """
    theirs = loader_of(loader, "the loader")
    given = {"collate": theirs.collate_fn, **options}
    lean = Lean(model, theirs.dataset, method, epochs=epochs, **per_example(given))
    size, kept = options_of(theirs)
    ours = lean.loader(size * world_size(), unpacked=True, **kept)
    return lean, ours, driven(lean, scheduler, steps)


def driven(lean: Lean, scheduler: Any, steps: int | None = None) -> Any:
    """A script's scheduler as the run drives it, with the run's state saved in that of its optimiser."""
    if scheduler is None:
        return None
    lean.save_with(scheduler.optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):  # by what it is told after an epoch, whatever was skipped
        return scheduler
    return lean.drive(scheduler, steps or steps_of(scheduler) or lean.epochs)


def per_example(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `attach`, with a criterion of torch's that takes the mean made one that gives a loss per example.

    With weights for classes the mean is over these, not over examples, so such a criterion is left as it is.
    """
    criterion = options.get("criterion")
    if getattr(criterion, "reduction", None) == "mean" and getattr(criterion, "weight", None) is None:
        options = {**options, "criterion": copy.copy(criterion)}
        options["criterion"].reduction = "none"
    return options


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
    assert loader.batch_size is not None
    return loader.batch_size, loading_options(loader)


def loading_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Those of its options that say how examples are loaded."""
    options = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers and loader.prefetch_factor is not None:
        options["prefetch_factor"] = loader.prefetch_factor
    return options

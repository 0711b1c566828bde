"""Schedulers: learning rates that follow a run's progress, in the shape of torch's own, for loops that step these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from leantrain.errors import LeanError
from leantrain.schedule import Schedule

Progress = Callable[[], float]


class ProgressScheduler(LRScheduler):
    """Every parameter group's own base learning rate times what a schedule says at the run's progress.

    `step()` may be called after every step of the optimiser, or after every epoch, or twice: it counts nothing.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, progress: Progress, epochs: int) -> None:
        if not isinstance(optimizer, Optimizer):
            raise LeanError(f"the optimizer is a {type(optimizer).__name__}; give one of torch's, or its like.")
        self.schedule, self._progress, self._epochs = schedule, progress, epochs
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        factor = self.schedule.at(self._progress(), self._epochs)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Plain values only; the schedule is the loop's to name again, and the progress is in the run's own state."""
        ours = ("optimizer", "schedule", "_progress", "_epochs")
        return {key: value for key, value in vars(self).items() if key not in ours}


class DrivenScheduler(LRScheduler):
    """A torch scheduler that counts steps, taken as far along its own count as the run has come.

    Args:
        scheduler: made for a run of `steps` steps.
        steps: how many it counts from the run's beginning to its end.
    """

    def __init__(self, scheduler: LRScheduler, steps: int | None, progress: Progress) -> None:
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise LeanError(
                f"{type(scheduler).__name__} counts no steps that progress could stand for; give one of torch's "
                "schedulers that does, or use lean.scheduler(optimizer, …)."
            )
        steps = steps_of(scheduler) if steps is None else steps
        if steps is None:
            raise LeanError(
                f"{type(scheduler).__name__} does not say how many steps it is made for; say steps=…, or the run's "
                "epochs where it counts these."
            )
        if steps < 1:
            raise LeanError(f"steps is {steps}, but must be at least 1.")
        self.scheduler, self.optimizer, self.steps = scheduler, scheduler.optimizer, steps
        self._step_count = 0  # which Accelerate counts up where gradients accumulate
        self.taken = max(0, getattr(scheduler, "last_epoch", 0))  # above 0 where a checkpoint was loaded into it
        """How many of its steps were taken."""
        self._progress = progress

    def step(self, epoch: int | None = None) -> None:
        due = math.floor(self._progress() * self.steps + 1e-9)
        if self.taken > due:
            raise LeanError(
                f"the scheduler goes on after {self.taken} of its {self.steps} steps, but the run is at progress "
                f"{self._progress():.2f}; load the run's state too (lean.load_state_dict), from the same checkpoint."
            )
        while self.taken < due:
            self.scheduler.step()
            self.taken += 1

    def get_lr(self) -> list[Any]:
        return self.scheduler.get_lr()

    def get_last_lr(self) -> list[Any]:
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own with one entry more, so that it also goes into one that is driven later."""
        return {**self.scheduler.state_dict(), "taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict)
        self.taken = own.pop("taken")
        self.scheduler.load_state_dict(own)


def steps_of(scheduler: LRScheduler) -> int | None:
    """How many steps OneCycleLR and CosineAnnealingLR were made for, from their own options."""
    total = getattr(scheduler, "total_steps", None)  # the first of them is the one it starts with
    return total - 1 if isinstance(total, int) else getattr(scheduler, "T_max", None)

"""Schedules: the learning rate as a function of progress alone, so that it decays fully whatever a method skips."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from leantrain.options import check, option
from leantrain.registry import Registry


@dataclass(frozen=True)
class Schedule(ABC):
    """A factor on the base learning rate for every progress in 0…1."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def at(self, progress: float, epochs: float) -> float:
        """The factor at `progress`; `epochs` is how many epochs the whole run stands for."""


SCHEDULES: Registry[Schedule] = Registry("schedule")


@SCHEDULES.register
@dataclass(frozen=True)
class Linear(Schedule):
    """Linear warm-up, then linear to zero."""

    name: ClassVar[str] = "linear"
    warmup: float = option(0.05, "share of the run spent warming up", low=0.0, below=1.0)

    def at(self, progress: float, epochs: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        return (1.0 - progress) / (1.0 - self.warmup)


@SCHEDULES.register
@dataclass(frozen=True)
class OneCycle(Schedule):
    """Half a cosine from 1/25 up to one, then half a cosine to zero (the one-cycle policy)."""

    name: ClassVar[str] = "onecycle"
    warmup: float = option(0.3, "share of the run spent rising", above=0.0, below=1.0)

    def at(self, progress: float, epochs: float) -> float:
        if progress < self.warmup:
            return _cosine(1 / 25, 1.0, progress / self.warmup)
        return _cosine(1.0, 0.0, (progress - self.warmup) / (1.0 - self.warmup))


@SCHEDULES.register
@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine to zero."""

    name: ClassVar[str] = "cosine"
    warmup: float = option(0.05, "share of the run spent warming up", low=0.0, below=1.0)

    def at(self, progress: float, epochs: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        return _cosine(1.0, 0.0, (progress - self.warmup) / (1.0 - self.warmup))


@SCHEDULES.register
@dataclass(frozen=True)
class Step(Schedule):
    """Times `factor` after every `every` epochs, as in the MixTrain papers."""

    name: ClassVar[str] = "step"
    every: float = option(30.0, "epochs between two drops", above=0.0)
    factor: float = option(0.1, "what each drop multiplies the rate by", above=0.0, high=1.0)

    def at(self, progress: float, epochs: float) -> float:
        return self.factor ** math.floor(progress * epochs / self.every + 1e-9)


@SCHEDULES.register
@dataclass(frozen=True)
class Constant(Schedule):
    """The base learning rate throughout."""

    name: ClassVar[str] = "constant"

    def at(self, progress: float, epochs: float) -> float:
        return 1.0


def parse_schedule(text: str) -> Schedule:
    """A schedule from its name and options, for example `step[every=10,factor=0.1]`."""
    return SCHEDULES.parse(text)


def _cosine(start: float, stop: float, share: float) -> float:
    return stop + (start - stop) * (1.0 + math.cos(math.pi * share)) / 2.0

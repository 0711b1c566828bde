"""A stopwatch for the parts of a step, which never makes the host wait for the device."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

import torch


class Stopwatch:
    """Adds up seconds by name: by the host's clock on a CPU, by events on a GPU, which are read when asked for."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextlib.contextmanager
    def measure(self, name: str, device: torch.device) -> Iterator[None]:
        """Count what happens inside towards `name`."""
        if device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._events.append((name, start, stop))
        else:
            started = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - started

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call. Synchronises with a GPU."""
        for name, start, stop in self._events:
            stop.synchronize()
            self._seconds[name] += start.elapsed_time(stop) / 1000
        seconds = dict(self._seconds)
        self._seconds.clear()
        self._events.clear()
        return seconds

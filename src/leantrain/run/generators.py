"""A run's own copy of torch's global generators, so that runs which take turns do not disturb each other."""

from __future__ import annotations

import torch
from torch import Tensor


class Generators:
    """A run's own copy of torch's global generators (dropout, stochastic depth), in force while it is its turn."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._inside = False
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            self._state = self._read()

    def _read(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    def _write(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self._device)

    def now(self) -> dict[str, Tensor]:
        return self._read() if self._inside else self._state

    def set(self, state: dict[str, Tensor]) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._outside = self._read()
        self._write(self._state)
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._state = self._read()
        self._inside = False
        self._write(self._outside)

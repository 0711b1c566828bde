"""The memory that a run needs by itself: measured in a process that trains a few of its steps and nothing else.

    python -m leantrain.run.memory SETTINGS.yaml

Runs that take turns in one process share its memory, so what the process held says nothing about one of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from leantrain.errors import LeanError
from leantrain.run.config import TrainConfig, read_yaml

STEPS = 2  # the optimiser has its state after the first


def peak_alone_mb(config: TrainConfig) -> float:
    """The most that a process holds which trains two steps with these settings.

    Raises:
        LeanError: the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.yaml"
        settings = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
        file.write_text(yaml.safe_dump(settings))
        done = subprocess.run([sys.executable, "-m", __name__, str(file)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or f"the process ended with code {done.returncode}").splitlines()[-1]
        raise LeanError(f"the memory of a run could not be measured: {reason}")
    return float(done.stdout.split()[-1])


def _main(file: Path) -> None:
    import torch

    from leantrain.run import machine
    from leantrain.run.allocator import keep_freed_memory
    from leantrain.run.display import Quiet
    from leantrain.run.loop import Run
    from leantrain.run.setup import load_images, resolve

    keep_freed_memory()  # as every command does
    config = TrainConfig(**read_yaml(file))
    if config.threads:
        torch.set_num_threads(config.threads)

    class Enough(Quiet):
        """Ends the run after a few steps."""

        def step(self, examples: int, progress: float) -> None:
            if run.steps >= STEPS:
                raise StopIteration

    images = load_images(config)
    run = Run(resolve(config, images), images, display=Enough())
    with contextlib.suppress(StopIteration):
        run.train_only()
    print(machine.peak_memory_mb(run.device))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

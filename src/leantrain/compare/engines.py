"""Engines: where the runs of a comparison are trained when several are under way at once.

Whatever the engine, a run is the command `train --config FILE`, with --resume where its folder holds one already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from leantrain.errors import LeanError
from leantrain.run.folder import RunFolder
from leantrain.run.signals import STOP_WITH

PATIENCE = 60.0  # seconds for runs to save themselves when a comparison is stopped


class Job(NamedTuple):
    """One run to train.

    Attributes:
        key: which one it is, for the comparison.
        settings: the file of its settings.
        out: its folder.
        log: where what it says goes.
    """

    key: Any
    settings: Path
    out: Path
    log: Path

    def words(self) -> list[str]:
        resume = ["--resume"] if RunFolder(self.out).holds_run else []
        return ["train", "--config", str(self.settings), *resume]


class Ended(NamedTuple):
    """A run that has ended, with its exit code; `why` where it never came to one."""

    job: Job
    code: int
    why: str = ""


class Engine(Protocol):
    """Trains runs side by side."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another run now."""

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""

    def start(self, job: Job) -> None: ...

    def ended(self) -> list[Ended]:
        """The runs that have ended since it was last asked; waits a little for one."""

    def stop(self) -> None:
        """Let what runs save itself, and end it."""


class Processes:
    """So many processes of this machine at once."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._running: dict[subprocess.Popen[bytes], Job] = {}
        # Through the environment: the number of threads is not among a run's settings, and may differ on resume.
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
        self._environment = {**threads, **os.environ, STOP_WITH: str(os.getpid())}

    @property
    def has_room(self) -> bool:
        return len(self._running) < self._jobs

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def start(self, job: Job) -> None:
        command = [sys.executable, "-m", "leantrain", *job.words()]
        with open(job.log, "wb") as log:  # a pipe would fill up and stop it
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=self._environment)
        self._running[process] = job

    def ended(self) -> list[Ended]:
        done = [process for process in self._running if process.poll() is not None]
        if not done:
            time.sleep(0.1)
        return [Ended(self._running.pop(process), process.returncode) for process in done]

    def stop(self) -> None:
        for process in self._running:
            process.terminate()  # it saves a checkpoint and leaves
        for process in self._running:
            process.wait()


class RayTasks:
    """A task of a Ray cluster per run. A run whose worker is lost goes on elsewhere, from its last checkpoint.

    The comparison's folder and the data must be at the same place on every machine.

    Args:
        address: of the cluster, or "auto"; None starts one on this machine.
        cpus: cores per run, which also is the number of its threads.
        gpus: GPUs per run; a fraction lets several share one.
    """

    RETRIES = 5  # of a run whose worker was lost

    def __init__(self, address: str | None, cpus: float, gpus: float) -> None:
        try:
            import ray
        except ImportError:
            raise LeanError("--engine ray needs the ray package: pip install 'leantrain[ray]'.") from None
        self._ray: Any = ray
        try:
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                # One on this machine inherits all of it.
                runtime_env={"env_vars": _own_environment()} if address else None,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise LeanError(f"--address is '{address}', but no Ray cluster answers there ({why}).") from None
        there: dict[str, float] = self._ray.cluster_resources()
        for name, wanted in (("CPU", cpus), ("GPU", gpus)):
            if wanted > there.get(name, 0):
                self.stop()
                flag = f"--{name.lower()}s-per-run"
                raise LeanError(f"{flag} is {wanted:g}, but the Ray cluster has {there.get(name, 0):g}; ask for less.")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=self.RETRIES)
        self._train = task(_train_here)
        self._running: dict[Any, Job] = {}

    @property
    def has_room(self) -> bool:
        return True  # Ray lets those wait that find none

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def start(self, job: Job) -> None:
        self._running[self._train.remote(job._replace(key=None), os.getcwd())] = job

    def ended(self) -> list[Ended]:
        ready, _ = self._ray.wait(list(self._running), timeout=0.5) if self._running else ([], [])
        return [self._outcome(task) for task in ready]

    def _outcome(self, task: Any) -> Ended:
        job = self._running.pop(task)
        try:
            return Ended(job, self._ray.get(task))
        except self._ray.exceptions.RayError as error:
            return Ended(job, 1, f"its Ray worker was lost {self.RETRIES + 1} times ({type(error).__name__})")

    def stop(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=False)  # an interrupt, at which it saves a checkpoint and leaves
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=PATIENCE)
        self._ray.shutdown()


def _own_environment() -> dict[str, str]:
    """What of this process's environment a run needs too: where modules, plugins and data are."""
    names = ("PYTHONPATH", "LEANTRAIN_PLUGINS", "LEANTRAIN_DATA")
    return {name: os.environ[name] for name in names if name in os.environ}


def _train_here(job: Job, folder: str) -> int:
    """Train a run in this very process, so that it ends when Ray's worker does and nobody else writes to its folder."""
    from leantrain.cli.program import run

    os.chdir(folder)
    with open(job.log, "w", buffering=1) as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        print(f"process {os.getpid()} on {socket.gethostname()}")
        return run(job.words())

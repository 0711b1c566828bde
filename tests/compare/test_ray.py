"""Runs of a comparison as tasks of a real Ray cluster of two workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from program import SMALL, run, same_run

pytest.importorskip("ray", reason="needs the ray package, leantrain[ray]")


def test_a_lost_worker_s_run_goes_on_to_the_same_bits_as_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the workers are programs of their own
    flags = ["compare", "--data", "digits", *SMALL, "--epochs", 12, "--checkpoint-every", 1, "--methods"]
    flags += ["random-backprop[keep=0.5]", "--seeds", 1, "--no-controls", "--out"]
    out, killed = tmp_path / "ray", []
    log = out / "settings" / "plain-seed0.log"

    def kill_a_worker() -> None:
        """Once it has saved something."""
        patience = time.monotonic() + 120
        while not (out / "runs" / "plain" / "seed-0" / "checkpoint.pt").exists() and time.monotonic() < patience:
            time.sleep(0.02)
        killed.append(int(log.read_text().split()[1]))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    done = run(*flags, out, "--engine", "ray", "--cpus-per-run", 1)
    killer.join()
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in log.read_text()
    assert int(log.read_text().split()[1]) != killed[0]
    assert run(*flags, tmp_path / "turns").returncode == 0
    for name in ("plain", "random-backprop"):
        same_run(out / "runs" / name / "seed-0", tmp_path / "turns" / "runs" / name / "seed-0")

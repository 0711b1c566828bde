"""Two processes never write into one folder, and a dead one is no obstacle."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leantrain.errors import LeanError
from leantrain.run.lock import holder, locked
from program import SMALL, run

HOLD = """
import os, sys, time
from pathlib import Path
from leantrain.run.lock import locked

with locked(Path(sys.argv[1])):
    if len(sys.argv) > 2 and os.fork() == 0:  # as a loader's worker, which outlives a killed process
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""


def hold(place: Path, *more: str) -> subprocess.Popen[str]:
    """Another process that holds a place."""
    words = [sys.executable, "-c", HOLD, str(place), *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "compare", "score"])
def test_a_place_that_another_process_writes_to_is_refused(tmp_path: Path, command: str) -> None:
    out = tmp_path / "o.npz" if command == "score" else tmp_path / "o"
    words = {"train": ["--epochs", 1], "compare": ["--epochs", 1, "--seeds", 1, "--methods", "plain"]}
    other = hold(out)
    before = sorted(tmp_path.rglob("*"))
    try:
        done = run(command, *SMALL, *words.get(command, ["--models", 1, "--score-epochs", 1]), "--out", out)
        assert done.returncode == 2
        assert f"'{out}' is being written to by process {other.pid} on " in done.stderr
        assert done.stderr.rstrip().endswith("wait until that has ended, or choose another --out.")
        assert sorted(tmp_path.rglob("*")) == before
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.communicate()


@pytest.mark.slow
def test_a_killed_holder_is_no_obstacle_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    other = hold(tmp_path / "o", "and a child")
    try:
        assert re.match(rf"process {other.pid} on .* \(since ", holder(tmp_path / "o") or "")
        other.kill()
        other.wait()
        assert holder(tmp_path / "o") is None
        with locked(tmp_path / "o"):
            pass
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.communicate()


def test_a_lock_leaves_nothing_behind(tmp_path: Path) -> None:
    for place in (tmp_path / "run", tmp_path / "scores.npz"):
        with locked(place):
            pass
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def _count(place: Path, times: int) -> None:
    """Add one to a number in a file, over and over, each time under the lock."""
    number = place / "number"
    while times:
        try:
            with locked(place):
                number.write_text(str(int(number.read_text()) + 1))
                times -= 1
        except LeanError:
            continue


@pytest.mark.slow
def test_only_one_of_many_holds_it_though_it_is_removed_each_time(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    made = [multiprocessing.get_context("fork").Process(target=_count, args=(tmp_path, 50)) for _ in range(2)]
    for process in made:
        process.start()
    for process in made:
        process.join()
    assert (tmp_path / "number").read_text() == "100"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeanError, match="cannot be written"), locked(tmp_path / "file" / "o"):
        pass


CHILD = """
import time
from leantrain.run.signals import stop_with_parent

stop_with_parent()
print("started", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
from leantrain.run.signals import STOP_WITH

subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, STOP_WITH: str(os.getpid())})
time.sleep(60)
"""


@pytest.mark.slow
def test_a_process_of_a_killed_comparison_ends_too(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    parent.kill()
    parent.communicate(timeout=20)  # the pipe closes when the child has ended, which would take a minute

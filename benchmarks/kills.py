"""Does a run that is killed again and again, and resumed each time, end in the same bits as one left alone?

`leantrain train` on digits, a checkpoint after every step, and fifty `kill -9` of it: at random moments while it
starts, trains, evaluates and writes. The first two come before there is a checkpoint. Then weights, metrics, history
and ledger are compared bit for bit with those of an uninterrupted run (`same_run` of the tests). Where each kill hit is
told from what it left on disk:

- starting: before the process had written anything
- no checkpoint yet: after config.yaml, before the first checkpoint
- writing FILE: its temporary file was left behind
- evaluating: the epoch's last step is in the checkpoint, its row of metrics is not written
- finishing an epoch: the row is written, its checkpoint is not
- training: anywhere else

    python benchmarks/kills.py

Result: 50 of 50 kills hit, same bits; n, hardware and versions in results/kills.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from _common import finish, markdown, parser, progress

from leantrain.run import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from program import SMALL, command, same_run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
AT_START = 0.15  # the share of kills that come while a resumed process still starts
PATIENCE = 120.0  # seconds for a process to get going


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        progress(f"an uninterrupted run of {arguments.epochs} epochs")
        starting, running = run_whole(whole, words(whole, arguments))
        # Kills use up about half the run, so that the last of them still finds it running.
        window = running / arguments.kills
        progress(f"it took {starting:.1f} s to start and {running:.1f} s to run; up to {window:.2f} s before each kill")
        hits = kill_and_resume(killed, words(killed, arguments), arguments, starting, window)
        litter = len(list(killed.rglob("*.tmp")))
        verdict = compare(whole, killed)
    rows = [(place, count) for place, count in hits.most_common()]
    table = markdown(("where it was killed", "kills"), [*rows, ("**all**", hits.total())])
    table += (
        f"\n\n{hits.total()} of {arguments.kills} kills hit the run; compared with the uninterrupted run: {verdict}."
    )
    result = {"hits": dict(hits), "kills": hits.total(), "verdict": verdict, "temporary_files_left": litter}
    finish("kills", arguments, table, result, n=hits.total())
    sys.exit(verdict != "same bits" or hits.total() < arguments.kills)


def words(out: Path, arguments: argparse.Namespace) -> list[object]:
    """The run's command line; dropout, so that torch's global generator matters too."""
    more = ("--checkpoint-every", arguments.checkpoint_every, "--seed", arguments.seed, "--out", out)
    return ["train", "--data", "digits", *SMALL, "--epochs", arguments.epochs, "--dropout", 0.3, *more]


def start(out: Path, line: list[object]) -> subprocess.Popen[bytes]:
    """Start the run, or go on with it where there is one; what it says goes to a file, so that no pipe can fill up."""
    resume = ["--resume"] if (out / "config.yaml").exists() else []
    with open(out.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(command(*line, *resume), stdout=log, stderr=log, env=ENVIRONMENT)


def run_whole(out: Path, line: list[object]) -> tuple[float, float]:
    """Train without interruption; seconds until the first checkpoint, and from there to the end."""
    began = time.monotonic()
    process = start(out, line)
    wait_until((out / "checkpoint.pt").exists, process)
    ready = time.monotonic()
    leave_alone(out, process)
    return ready - began, time.monotonic() - ready


def kill_and_resume(
    out: Path, line: list[object], arguments: argparse.Namespace, starting: float, window: float
) -> Counter[str]:
    """Kill the run at random moments, go on with it each time, and let it end; where it was hit, and how often."""
    rng = random.Random(arguments.seed)
    hits: Counter[str] = Counter()
    for number in range(arguments.kills):
        before = stamp(out / "checkpoint.pt")
        process = start(out, line)
        if number == 1:  # config.yaml is there, no checkpoint is
            wait_until((out / "config.yaml").exists, process)
        elif number == 0 or rng.random() < AT_START:
            time.sleep(rng.uniform(0, 0.8 * starting))
        else:
            wait_until(lambda before=before: stamp(out / "checkpoint.pt") != before, process)  # type: ignore[misc]
            time.sleep(rng.uniform(0, window))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            place = where(out, process.pid, before)
            hits[place] += 1
            progress(f"kill {number + 1}/{arguments.kills}: {place}")
        elif process.returncode:
            raise SystemExit(f"the run failed by itself:\n{out.with_suffix('.log').read_text()}")
        else:
            progress(f"kill {number + 1}/{arguments.kills}: the run had ended already")
    progress("no more kills; the run goes on to its end")
    leave_alone(out, start(out, line))
    return hits


def where(out: Path, pid: int, before: int) -> str:
    """Where a process was when it was killed, from what it left."""
    for left in out.rglob(f".*.{pid}.tmp"):
        name = left.name.removeprefix(".").removesuffix(f".{pid}.tmp")
        return f"writing {'history' if left.parent.name == 'history' else name}"
    now = stamp(out / "checkpoint.pt")
    if now == 0:
        return "no checkpoint yet" if (out / "config.yaml").exists() else "starting"
    if now == before:
        return "starting"
    saved = checkpoint.load(out / "checkpoint.pt")
    lean = saved["lean"]
    rows = (out / "metrics.jsonl").read_bytes().count(b"\n") if (out / "metrics.jsonl").exists() else 0
    if rows > len(saved["rows"]):
        return "finishing an epoch"
    ended = lean["done"] == len(lean["plan"]["form_of"])
    return "evaluating" if ended and rows == lean["plan"]["epoch"] else "training"


def stamp(path: Path) -> int:
    """When a file was last replaced; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    patience = time.monotonic() + PATIENCE
    while not true() and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.002)


def leave_alone(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Let a run end; it must do so well."""
    if process.wait() != 0:
        raise SystemExit(f"the run failed:\n{out.with_suffix('.log').read_text()}")


def compare(whole: Path, killed: Path) -> str:
    try:
        same_run(whole, killed)
    except AssertionError as error:
        return f"NOT the same bits ({str(error).splitlines()[0] if str(error) else 'metrics or weights differ'})"
    return "same bits"


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=50, help="how often to kill the run (default: 50)")
    options.add_argument("--epochs", type=int, help="length of the run, of five steps each (default: 6 per kill)")
    options.add_argument("--checkpoint-every", type=int, default=1, help="steps between checkpoints (default: 1)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.kills = 4
    arguments.epochs = arguments.epochs or 6 * arguments.kills
    return arguments


if __name__ == "__main__":
    main()

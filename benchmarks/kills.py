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

    python benchmarks/kills.py                    # a run
    python benchmarks/kills.py --case workers     # one whose files are decoded by two workers, which outlive it a while
    python benchmarks/kills.py --case compare     # `compare --jobs 2`: its runs save themselves and end with it
    python benchmarks/kills.py --case ranks       # an own loop over two ranks: both, or one of them, and the other ends
    python benchmarks/kills.py --case score       # which begins anew each time

Result: 50 of 50 kills hit, same bits; n, hardware and versions in results/kills.json.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import NamedTuple

import torch
from _common import finish, markdown, parser, progress

from leantrain.run import checkpoint
from leantrain.scoring import load as load_scores

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from program import SMALL, command, same_run
from resume.test_kill import make_folder

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
AT_START = 0.15  # the share of kills that come while a resumed process still starts
PATIENCE = 120.0  # seconds for a process to get going
BEGUN = ("config.yaml", "compare.yaml", "rank-0.pid")  # the first that each writes


class Case(NamedTuple):
    """What is killed.

    Attributes:
        words: its command line, writing to a place.
        resumes: whether it goes on with `--resume`; else it begins anew.
        same: asserts that two places hold the same.
        kills, epochs: how many kills, and how many epochs for each, so that the last still finds it running.
    """

    words: Callable[[Path, argparse.Namespace], list[object]]
    resumes: bool
    same: Callable[[Path, Path], None]
    kills: int
    epochs: int


def main() -> None:
    arguments = _arguments()
    case = CASES[arguments.case]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = (Path(folder) / f"{name}{'.npz' * (not case.resumes)}" for name in ("whole", "killed"))
        progress(f"{arguments.case}: an uninterrupted one of {arguments.epochs} epochs")
        starting, running = run_whole(whole, case, arguments)
        # Kills use up about half the run, so that the last of them still finds it running.
        window = running / arguments.kills if case.resumes else starting + running
        progress(f"it took {starting:.1f} s to start and {running:.1f} s to run; up to {window:.2f} s before each kill")
        hits = kill_and_resume(killed, case, arguments, starting, window)
        litter = len(list(killed.parent.rglob("*.tmp")))
        verdict = compare(case, whole, killed)
    rows = [(place, count) for place, count in hits.most_common()]
    table = markdown(("where it was killed", "kills"), [*rows, ("**all**", hits.total())])
    table += f"\n\n{hits.total()} of {arguments.kills} kills hit; compared with the uninterrupted one: {verdict}."
    result = {"hits": dict(hits), "kills": hits.total(), "verdict": verdict, "temporary_files_left": litter}
    name = "kills" if arguments.case == "run" else f"kills-{arguments.case}"
    finish(name, arguments, table, result, n=hits.total())
    sys.exit(verdict != "same bits" or hits.total() < arguments.kills)


def run_words(out: Path, arguments: argparse.Namespace, *more: object) -> list[object]:
    """A run's command line; dropout, so that torch's global generator matters too."""
    every = ("--checkpoint-every", arguments.checkpoint_every, "--seed", arguments.seed, "--out", out)
    return ["train", *SMALL, "--epochs", arguments.epochs, "--dropout", 0.3, *every, *more]


def worker_words(out: Path, arguments: argparse.Namespace) -> list[object]:
    """A run on files that two workers decode."""
    images = out.parent / "images"
    if not images.exists():
        make_folder(images)
    return run_words(out, arguments, "--data", images, "--workers", 2)


def compare_words(out: Path, arguments: argparse.Namespace) -> list[object]:
    methods = ("--methods", "rs2[keep=0.5],mixtrain-cutmix", "--seeds", 2, "--no-controls", "--jobs", 2)
    return ["compare", *run_words(out, arguments, *methods)[1:]]


def score_words(out: Path, arguments: argparse.Namespace) -> list[object]:
    return ["score", *SMALL, "--models", 3, "--score-epochs", 4, "--seed", arguments.seed, "--out", out]


def same_comparison(one: Path, other: Path) -> None:
    """Assert that every run of two comparisons ended in the same bits."""
    runs = sorted(path.relative_to(one) for path in one.glob("runs/*/seed-*"))
    assert len(runs) == 6, runs
    for run in runs:
        same_run(one / run, other / run)


def same_scores(one: Path, other: Path) -> None:
    """Assert that two calls wrote the same scores and the same pictures."""
    ours, theirs = load_scores(one), load_scores(other)
    assert torch.equal(ours.values, theirs.values) and ours.ids == theirs.ids and ours.cost == theirs.cost
    for picture in one.with_suffix("").glob("*.png"):
        assert picture.read_bytes() == (other.with_suffix("") / picture.name).read_bytes(), picture.name


def rank_words(out: Path, arguments: argparse.Namespace) -> list[object]:
    """Two ranks under torchrun, which save after every step."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    return [*torchrun, Path(__file__).with_name("_ranks.py"), "--epochs", arguments.epochs, "--out", out]


def same_ranks(one: Path, other: Path) -> None:
    """Assert that two such loops ended with the same weights and the same ledger."""
    ours, theirs = (torch.load(place / "final.pt", weights_only=True) for place in (one, other))
    for part in ("model", "ledger"):
        for name, tensor in ours[part].items():
            assert torch.equal(tensor.nan_to_num(-1), theirs[part][name].nan_to_num(-1)), name


CASES = {
    "run": Case(run_words, True, same_run, kills=50, epochs=6),
    "workers": Case(worker_words, True, same_run, kills=20, epochs=6),
    "compare": Case(compare_words, True, same_comparison, kills=10, epochs=2),
    "ranks": Case(rank_words, True, same_ranks, kills=10, epochs=2),
    "score": Case(score_words, False, same_scores, kills=10, epochs=1),
}


def start(out: Path, case: Case, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start it, or go on with it where there is one; what it says goes to a file, so that no pipe can fill up."""
    begun = case.resumes and any((out / name).exists() for name in BEGUN)
    words = case.words(out, arguments)
    if words[0] != sys.executable:
        words = command(*words, *(["--resume"] if begun else []))
    for left in out.glob("rank-*.pid"):
        left.unlink()
    with open(out.with_suffix(".log"), "wb") as log:
        line = list(map(str, words))
        return subprocess.Popen(line, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True)


def strike(process: subprocess.Popen[bytes], out: Path, rng: random.Random) -> bool:
    """Kill it, or one of its ranks, at which the other must end by itself; whether it was still there."""
    ranks = sorted(out.glob("rank-*.pid"))
    if "torch.distributed.run" not in process.args:  # type: ignore[operator]
        process.kill()
        return process.wait() == -signal.SIGKILL
    if not ranks or rng.random() < 0.5:  # as a machine that loses power: torchrun alone would leave its ranks behind
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError, ValueError):  # of the two, one was not that far
        os.kill(int(rng.choice(ranks).read_text()), signal.SIGKILL)
    process.wait(PATIENCE)
    return b"Signal 9 (SIGKILL)" in out.with_suffix(".log").read_bytes()


def run_whole(out: Path, case: Case, arguments: argparse.Namespace) -> tuple[float, float]:
    """Let it end without interruption; seconds until the first checkpoint, and from there to the end."""
    began = time.monotonic()
    process = start(out, case, arguments)
    wait_until(lambda: stamp(out) > 0, process)
    ready = time.monotonic()
    leave_alone(out, process)
    return ready - began, time.monotonic() - ready


def kill_and_resume(
    out: Path, case: Case, arguments: argparse.Namespace, starting: float, window: float
) -> Counter[str]:
    """Kill it at random moments, go on each time, and let it end; where it was hit, and how often."""
    rng = random.Random(arguments.seed)
    hits: Counter[str] = Counter()
    for number in range(arguments.kills):
        before = stamp(out)
        process = start(out, case, arguments)
        if not case.resumes:  # it begins anew each time, so any moment will do
            time.sleep(rng.uniform(0, 0.95 * window))
        elif number == 1:  # the settings are there, no checkpoint is
            wait_until(lambda: any((out / name).exists() for name in BEGUN), process)
        elif number == 0 or rng.random() < AT_START:
            time.sleep(rng.uniform(0, 0.8 * starting))
        else:
            wait_until(lambda before=before: stamp(out) != before, process)  # type: ignore[misc]
            time.sleep(rng.uniform(0, window))
        if strike(process, out, rng):
            place = where(out, process.pid, before)
            hits[place] += 1
            progress(f"kill {number + 1}/{arguments.kills}: {place}")
        elif process.returncode:
            raise SystemExit(f"it failed by itself:\n{out.with_suffix('.log').read_text()}")
        else:
            progress(f"kill {number + 1}/{arguments.kills}: it had ended already")
            break
    progress("no more kills; it goes on to its end")
    if case.resumes or not (out.with_suffix("") / "summary.json").exists():
        leave_alone(out, start(out, case, arguments))
    return hits


def where(out: Path, pid: int, before: int) -> str:
    """Where a process was when it was killed, from what it left."""
    for left in out.parent.rglob(f".*.{pid}.tmp"):
        name = left.name.removeprefix(".").removesuffix(f".{pid}.tmp")
        return f"writing {'history' if left.parent.name == 'history' else name}"
    if out.suffix == ".npz":
        return "drawing" if out.exists() else "starting or training"
    now = stamp(out)
    if now == 0:
        begun = any((out / name).exists() for name in BEGUN)
        return "no checkpoint yet" if begun else "starting"
    if now == before:
        return "starting"
    if not (out / "config.yaml").exists():  # several runs, or ranks
        return "training"
    saved = checkpoint.load(out / "checkpoint.pt", out / "checkpoint-before.pt")
    lean = saved["lean"]
    rows = (out / "metrics.jsonl").read_bytes().count(b"\n") if (out / "metrics.jsonl").exists() else 0
    if rows > len(saved["rows"]):
        return "finishing an epoch"
    ended = lean["done"] == len(lean["plan"]["form_of"])
    return "evaluating" if ended and rows == lean["plan"]["epoch"] else "training"


def stamp(out: Path) -> int:
    """When something was last saved; 0 where nothing was."""
    found = [0]
    for file in (out,) if out.suffix == ".npz" else (out / "checkpoint.pt", *out.glob("runs/*/*/checkpoint.pt")):
        with contextlib.suppress(FileNotFoundError):
            found.append(file.stat().st_mtime_ns)
    return max(found)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    patience = time.monotonic() + PATIENCE
    while not true() and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.002)


def leave_alone(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Let a run end; it must do so well."""
    if process.wait() != 0:
        raise SystemExit(f"the run failed:\n{out.with_suffix('.log').read_text()}")


def compare(case: Case, whole: Path, killed: Path) -> str:
    try:
        case.same(whole, killed)
    except AssertionError as error:
        return f"NOT the same bits ({str(error).splitlines()[0] if str(error) else 'metrics or weights differ'})"
    return "same bits"


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--case", choices=sorted(CASES), default="run", help="what is killed (default: run)")
    options.add_argument("--kills", type=int, help="how often to kill it (default: 50 for a run, 10 or 20 for others)")
    options.add_argument("--epochs", type=int, help="its length, of five steps each (default: 2 or 6 per kill)")
    options.add_argument("--checkpoint-every", type=int, default=1, help="steps between checkpoints (default: 1)")
    arguments = options.parse_args()
    case = CASES[arguments.case]
    arguments.kills = arguments.kills or (4 if arguments.quick else case.kills)
    arguments.epochs = arguments.epochs or max(10, case.epochs * arguments.kills)
    return arguments


if __name__ == "__main__":
    main()

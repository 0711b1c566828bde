"""How do time and memory of planning and bookkeeping grow with the number of training examples?

For every method that plans from the ledger alone, and N up to 14.2 million (ImageNet-22k): the first epoch's plan, then
three epochs of losses recorded in batches of 256 as training does it, each followed by the next epoch's plan, made
from the full ledger while the last plan is still held. (Three, because MixTrain mixes nothing before its third epoch.)
Given are the first plan, the mean epoch of recording and the slowest of the later plans. Every N has a process of its
own. Memory is its peak (the kernel's VmHWM, so Linux only) above what it held after importing torch and leantrain and
doing the same with 1,000 examples.

    python benchmarks/scale.py

Result: at N = 14.2 million the next plan takes 0.6 s (plain), 1.2 s (lean), 1.7 s (mixtrain-cutmix) and 2.3 s (a chain
of three), and 848 MB at most; n = 1 each, one thread of an AMD EPYC with AVX-512, torch 2.13.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import finish, markdown, parser, progress
from torch import Tensor, nn

import leantrain
from leantrain.lean import Lean
from leantrain.methods import METHODS
from leantrain.models import build
from leantrain.rng import generator

BATCH = 256
EPOCHS = 3
SIZES = (10_000, 100_000, 1_000_000, 14_200_000)
QUICK_SIZES = (1_000, 10_000)
LIMIT_MB = 1000
CHAIN = "infobatch + mixtrain-cutmix + progressive-resizing"


def main() -> None:
    arguments = _arguments()
    if arguments.child is not None:
        print(json.dumps(measure(arguments.methods[0], arguments.child, arguments.seed)))
        return
    found: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for method in arguments.methods:
        for size in arguments.sizes:
            progress(f"{method}, N = {size:,}")
            outcome = in_a_fresh_process(method, size, arguments.seed)
            if isinstance(outcome, str):
                skipped[method] = outcome
                progress(f"{method} is left out: {outcome}")
                break
            found.append(outcome)
    columns = ("plan", "record", "record_batch_us", "replan", "peak_mb", "bytes_per_example")
    table = markdown(
        ("method", "N", "first plan, s", "record an epoch, s", "per batch, µs", "next plan, s", "MB", "bytes/example"),
        [(one["method"], f"{one['n']:,}", *(_short(one[column]) for column in columns)) for one in found],
    )
    most = max((one["peak_mb"] for one in found), default=0.0)
    verdict = "holds" if most < LIMIT_MB else "does NOT hold"
    table += f"\n\nMost memory: {most:,.0f} MB; less than {LIMIT_MB:,} MB {verdict}."
    for method, why in skipped.items():
        table += f"\nLeft out: {method} ({why})."
    finish("scale", arguments, table, {"rows": found, "skipped": skipped, "most_mb": most}, n=1)
    sys.exit(most >= LIMIT_MB)


def in_a_fresh_process(method: str, size: int, seed: int) -> dict[str, Any] | str:
    """What `measure` gives, or the last line of what went wrong."""
    words = [sys.executable, str(Path(__file__)), "--methods", method, "--child", str(size), "--seed", str(seed)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def measure(method: str, size: int, seed: int) -> dict[str, Any]:
    """Plan and record some epochs in this process."""
    some_epochs(method, 1_000, seed)  # what is loaded at first use is not the method's memory
    base = _memory_mb("VmRSS")
    times = some_epochs(method, size, seed)
    peak = max(0.0, _memory_mb("VmHWM") - base)
    return {"method": method, "n": size, **times, "peak_mb": peak, "bytes_per_example": peak * 1e6 / size}


def some_epochs(method: str, size: int, seed: int) -> dict[str, float]:
    """Seconds for the first plan, for recording an epoch and for the plans after that."""
    lean = leantrain.attach(_model(seed), _Noise(size), method, epochs=10, seed=seed)
    plans, records, batches = [_timed(lambda: lean.start_epoch(BATCH))], [], 0
    for _ in range(EPOCHS):
        records.append(_timed(lambda: _record(lean, seed)))
        batches += len(lean.plan)
        lean._done, lean._done_cost = len(lean.plan), lean.plan.cost  # as if `loss` had seen every batch
        plans.append(_timed(lambda: lean.start_epoch(BATCH)))
    return {
        "plan": plans[0],
        "record": sum(records) / EPOCHS,
        "record_batch_us": sum(records) / batches * 1e6,
        "replan": max(plans[1:]),
        "last_plan_examples": lean.plan.examples,
        "last_plan_cost": lean.plan.cost,
    }


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _record(lean: Lean, seed: int) -> None:
    """What the steps of an epoch leave in the ledger: skewed losses, the small ones mostly right."""
    rng = generator(seed, "losses")
    for planned in (lean.plan[position] for position in range(len(lean.plan))):
        loss = torch.empty(len(planned.index)).exponential_(generator=rng)
        lean.ledger.record(planned.index, loss, loss < 0.7, planned.form, planned.epoch)


def _model(seed: int) -> nn.Module:
    """The smallest that every method accepts; planning never asks it anything."""
    return build("resnet8", classes=10, image_size=32, width=1, seed=seed)


class _Noise:
    """A data set with a length and nothing in it: planning never looks at the images."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        images = torch.rand(len(indices), 3, 32, 32, generator=generator(0, "noise"))
        return images, torch.zeros_like(indices)


def _memory_mb(field: str) -> float:
    # Not getrusage: its ru_maxrss starts at the parent's size in a process that was just forked.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3f}"


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument(
        "--methods",
        nargs="+",
        default=[*METHODS, CHAIN],
        help="methods and chains (default: all, and one chain)",
    )
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of examples")
    options.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.sizes = list(QUICK_SIZES)
    return arguments


if __name__ == "__main__":
    main()

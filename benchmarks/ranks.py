"""What do several processes cost beyond their gradients, as the number of examples and of processes grows?

Real processes with gloo on this machine. Per number of processes R and of examples N: every process has recorded its
share of an epoch, and then all ledgers are brought to agree, as at an epoch's end. Given are the seconds of that (the
median of the rounds); how many of them the process computed itself (the rest it waited, on a busy machine for its turn
too); the bytes that it receives; its memory at the peak above what it held before; and the time of an exchange that
finds nothing new, and of the one by which processes agree on what Selective-Backprop keeps of 4,096 candidates.

    python benchmarks/ranks.py

Result: in results/ranks.json, with n, hardware and versions; docs/scaling.md puts it beside gradient traffic.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import finish, markdown, parser, progress

from leantrain.ledger import ROW, Ledger
from leantrain.ranks import own_rank, shared, world_size

SIZES = (50_000, 1_281_167, 14_200_000)
QUICK_SIZES = (10_000,)
RANKS = (2, 4)
CANDIDATES = 4096


class Form:
    """Whole, as the ledger records it."""

    constituents = 1
    size = 1.0


def main() -> None:
    arguments = _arguments()
    found = []
    for ranks in arguments.ranks:
        for size in arguments.sizes:
            progress(f"{ranks} processes, N = {size:,}")
            found.append(measure(ranks, size, arguments.rounds))
    columns = ("seconds", "cpu_seconds", "received_mb", "peak_mb", "idle_ms", "candidates_us")
    table = markdown(
        (
            "processes",
            "N",
            "agree, s",
            "of which computing, s",
            "received, MB",
            "peak, MB",
            "nothing new, ms",
            "4,096 candidates, µs",
        ),
        [(one["ranks"], f"{one['n']:,}", *(f"{one[name]:,.3g}" for name in columns)) for one in found],
    )
    finish("ranks", arguments, table, {"rows": found, "bytes_per_example": ROW}, n=arguments.rounds)


def measure(ranks: int, size: int, rounds: int) -> dict[str, Any]:
    """What the first process of a group measures."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        members = [
            context.Process(target=_member, args=(rank, ranks, size, rounds, f"{folder}/store", theirs))
            for rank in range(ranks)
        ]
        for member in members:
            member.start()
        outcome: dict[str, Any] = ours.recv()
        for member in members:
            member.join()
    return {"ranks": ranks, "n": size, **outcome}


def _member(rank: int, ranks: int, size: int, rounds: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    ledger = Ledger(size)
    # A share that lies all over the set, as a shuffled plan has it.
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    mine = order[own_rank() :: world_size()]
    base, seconds, busy, idle = _memory_mb("VmRSS"), [], [], []
    for number in range(rounds):
        for part in mine.split(100_000):
            ledger.record(part, torch.rand(len(part)), torch.rand(len(part)) < 0.5, Form(), number)
        used = time.process_time()
        seconds.append(_timed(ledger.synchronise))
        busy.append(time.process_time() - used)
        idle.append(_timed(ledger.synchronise))
    assert bool((ledger["trained"] == rounds).all())
    owner = torch.arange(ranks).repeat_interleave(CANDIDATES // ranks)
    losses = torch.rand(CANDIDATES // ranks, 2)
    looks = [_timed(lambda: shared(losses, owner)) for _ in range(50)]
    if rank == 0:
        pipe.send(
            {
                "seconds": statistics.median(seconds),
                "cpu_seconds": statistics.median(busy),
                "received_mb": (size - len(mine)) * ROW / 1e6,
                "peak_mb": max(0.0, _memory_mb("VmHWM") - base),
                "idle_ms": 1e3 * statistics.median(idle),
                "candidates_us": 1e6 * statistics.median(looks),
            }
        )
    torch.distributed.destroy_process_group()


def _timed(work: Any) -> float:
    torch.distributed.barrier()  # who comes late would be waited for
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="numbers of processes")
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of examples")
    options.add_argument("--rounds", type=int, default=3, help="epochs to agree on (default: 3)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.ranks = list(QUICK_SIZES), [2]
    return arguments


if __name__ == "__main__":
    main()

"""How much faster is training on a CPU when the process keeps the memory that it frees, as every command does?

    python benchmarks/malloc.py

A process per turn, with glibc's defaults and with `leantrain.run.allocator.keep_freed_memory`, in turns: forward,
backward and optimiser step of one network on one batch of random images, channels_last, in the precision that `auto`
takes. Times are CPU seconds per step, kernel included, compared within a round; pages are those that the kernel
handed out per step; memory is the most that the process held.
Result: see benchmarks/README.md and results/malloc.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import torch
from _common import Spread, finish, markdown, parser, progress
from torch.nn.functional import cross_entropy

from leantrain.models import build
from leantrain.run import machine
from leantrain.run.allocator import keep_freed_memory


class Case(NamedTuple):
    model: str
    size: int
    batch: int
    width: int | None = None


CASES = (
    Case("resnet8", 32, 64, 16),
    Case("resnet8", 32, 128, 64),
    Case("resnet18", 128, 32),
    Case("tf_efficientnet_lite0", 128, 32),
    Case("vit_tiny_patch16_224", 224, 16),
)
WAYS = ("default", "kept")


def main() -> None:
    arguments = _arguments()
    if arguments.one is not None:
        print(json.dumps(_measure(CASES[arguments.one], arguments)))
        return
    lines, result = [], {}
    for number, case in enumerate(CASES[: 1 if arguments.quick else None]):
        turns = [{way: _in_a_process(number, way, arguments) for way in WAYS} for _ in range(arguments.rounds)]
        ratio = Spread.of([turn["kept"]["seconds"] / turn["default"]["seconds"] for turn in turns])
        names = ("seconds", "pages", "megabytes")
        middle = {name: {way: statistics.median(turn[way][name] for turn in turns) for way in WAYS} for name in names}
        label = f"{case.model}{'' if case.width is None else f' of width {case.width}'}, {case.size} px, {case.batch}"
        progress(f"{label}: {ratio.text()}")
        cells = [f"{middle[name]['default']:,.0f} → {middle[name]['kept']:,.0f}" for name in ("pages", "megabytes")]
        lines.append((label, ratio.text(), *cells))
        result[label] = {"time": ratio._asdict(), **middle, "turns": turns}
    header = ("network, size, batch", "time of a step / with the defaults", "pages per step", "memory (MB)")
    finish("malloc", arguments, markdown(header, lines), result, n=arguments.rounds)


def _in_a_process(number: int, way: str, arguments: argparse.Namespace) -> dict[str, float]:
    words = ["--one", number, "--way", way, "--steps", arguments.steps, "--threads", arguments.threads]
    done = subprocess.run([sys.executable, __file__, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _measure(case: Case, arguments: argparse.Namespace) -> dict[str, float]:
    """The median step of one process, after three to warm up."""
    if arguments.way == "kept" and not keep_freed_memory():
        raise SystemExit("this C library does not take these settings, or the environment has its own")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    more: dict[str, Any] = {} if case.width is None else {"width": case.width}
    model = build(case.model, classes=10, image_size=case.size, **more).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    inputs = torch.randn(case.batch, 3, case.size, case.size).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (case.batch,))
    cpu = torch.device("cpu")
    mixed = machine.choose_precision("auto", cpu, lambda: model) == "bf16"
    seconds, pages = list[float](), list[float]()
    for _ in range(3 + arguments.steps):
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            output = model(inputs)
        cross_entropy(output.float(), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.process_time() - started)
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    kept = {"seconds": seconds[3:], "pages": pages[3:]}
    return {name: statistics.median(values) for name, values in kept.items()} | {
        "megabytes": machine.peak_memory_mb(cpu)
    }


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=1, help="torch's threads (default: 1)")
    options.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    options.add_argument("--steps", type=int, default=12, help="of each process, after three to warm up (default: 12)")
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 1, 1
    return arguments


if __name__ == "__main__":
    main()

"""What the benchmarks share: alternating timing, ratios with their spread, a Markdown table and a JSON file that says
what made it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from leantrain.data import ImageSet
from leantrain.run import machine
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve

RESULTS = Path(__file__).parent / "results"
PLACES = ("out", "weights", "repos")
"""Options that say where something lies on this machine, which no result needs."""


class Spread(NamedTuple):
    """The middle of some measurements and how far they reach."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def alternate(contenders: Mapping[str, Callable[[], int]], rounds: int, discard: int = 1) -> dict[str, list[float]]:
    """Let every contender do one chunk per round, in one process, and give its rates: units per second, round by round.

    A noisy machine slows neighbours in time alike, so compare rates of the same round (`ratios`), never across rounds.
    The order turns by one each round; the first `discard` rounds warm up and do not count.

    Args:
        contenders: by name, what does one chunk and says how many units it held.
    """
    names = list(contenders)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(discard + rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = time.perf_counter()
            units = contenders[name]()
            rate = units / (time.perf_counter() - started)
            kind = "warm-up" if number < discard else "round"
            progress(f"{kind} {number + 1}/{discard + rounds}: {name} {rate:,.0f}/s")
            if number >= discard:
                rates[name].append(rate)
    return rates


def chunks(arguments: argparse.Namespace, **more: Any) -> tuple[TrainConfig, ImageSet]:
    """Settings and images, of which an epoch is one chunk of `--steps` batches: ResNet-8 on CIFAR-10, unless said."""
    settings = {"data": "cifar10", "model": "resnet8", **more}
    config = TrainConfig(
        train_limit=arguments.steps * arguments.batch_size,
        batch_size=arguments.batch_size,
        epochs=arguments.rounds + 2,  # never the last epoch, which would be evaluated
        eval_every=arguments.rounds + 2,
        seed=arguments.seed,
        **settings,
    )
    progress(f"reading {config.data}")
    return config, load_images(config)


def lean_loop(images: ImageSet, config: TrainConfig, **changes: Any) -> Callable[[], int]:
    """One epoch of leantrain's own loop, with these settings changed: its planning and its bookkeeping included."""
    run = Run(resolve(dataclasses.replace(config, **changes), images), images)

    def chunk() -> int:
        examples: int = run.train_epoch()["examples"]
        return examples

    return chunk


def ratios(rates: Mapping[str, Sequence[float]], name: str, base: str) -> Spread:
    """How many times as fast `name` was as `base`, compared within each round."""
    return Spread.of([one / other for one, other in zip(rates[name], rates[base], strict=True)])


def progress(text: str) -> None:
    """Where the benchmark is; on standard error, so that the table alone can be piped."""
    print(text, file=sys.stderr, flush=True)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has; its docstring is its help."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a smoke run of seconds; its numbers mean nothing")
    made.add_argument("--seed", type=int, default=0, help="what every random choice derives from (default: 0)")
    return made


def finish(name: str, arguments: argparse.Namespace, table: str, result: Mapping[str, Any], n: int) -> None:
    """Print the table and write `results/NAME.json`: the result, n, the settings, hardware and versions.

    A quick run writes `NAME-quick.json`, so that it never replaces a measurement.
    """
    print(table)
    made_with = machine.describe(torch.device("cpu"))
    content = {
        "benchmark": name,
        "n": n,
        "result": result,
        "settings": {name: value for name, value in vars(arguments).items() if name not in PLACES},
        "measured": time.strftime("%Y-%m-%d"),
        "load_at_end": os.getloadavg()[0],
        **made_with,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'-quick' if arguments.quick else ''}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    hardware = made_with["hardware"]
    versions = made_with["versions"]
    print(
        f"\nn = {n}; {hardware['cpu']}, {os.cpu_count()} cores, {hardware['threads']} torch threads; "
        f"torch {versions['torch']}, leantrain {versions['leantrain']}, Python {versions['python']}"
    )
    progress(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")

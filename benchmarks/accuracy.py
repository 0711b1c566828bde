"""Does plain training reach the accuracy it should, so that the methods are measured against an honest baseline?

What `leantrain train --data cifar10 --train-limit 10000 --model resnet8 --epochs 16 --precision bf16` does, for three
seeds: accuracy on the 10,000 test images after the last epoch (not the best one), seconds of training without
evaluation, and cost in epochs over the 10,000 images. At least 73 % is expected in the mean.

    python benchmarks/accuracy.py

Result: not yet measured
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from _common import finish, markdown, parser, progress

from leantrain.run.config import TrainConfig
from leantrain.run.display import Lines
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve

EXPECTED = 0.73


def main() -> None:
    arguments = _arguments()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    results = [train(seed, arguments) for seed in seeds]
    rows: list[tuple[object, ...]] = [
        (r["seed"], f"{r['test_accuracy']:.2%}", f"{r['train_seconds']:.0f}", f"{r['cost_epochs']:.2f}")
        for r in results
    ]
    accuracy = [r["test_accuracy"] for r in results]
    seconds = [r["train_seconds"] for r in results]
    cost = statistics.mean(r["cost_epochs"] for r in results)
    mean, spread = statistics.mean(accuracy), statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
    low, high = min(seconds), max(seconds)
    rows.append(("**mean**", f"{mean:.2%} ± {spread:.2%}", f"{statistics.mean(seconds):.0f}", f"{cost:.2f}"))
    table = markdown(("seed", "test accuracy", "training, s", "cost, epochs"), rows)
    holds = mean >= EXPECTED
    table += (
        f"\n\n± is the standard deviation over seeds; training took {low:.0f}–{high:.0f} s. "
        f"At least {EXPECTED:.0%} in the mean: {'holds' if holds else 'does NOT hold'}."
    )
    result = {"mean": mean, "standard_deviation": spread, "expected": EXPECTED, "holds": holds, "runs": results}
    finish("accuracy", arguments, table, result, n=len(results))
    sys.exit(not holds and not arguments.quick)


def train(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run, in this process and nothing written; its result as result.json would hold it."""
    config = TrainConfig(
        data="cifar10",
        train_limit=arguments.train_limit,
        model="resnet8",
        width=arguments.width,
        epochs=arguments.epochs,
        batch_size=128,  # with this rate and warm-up the default when it was measured
        lr=0.2,
        schedule="linear[warmup=0.15]",
        precision="bf16",
        seed=seed,
        eval_every=arguments.epochs,  # the last epoch counts, and evaluations are not what is timed
    )
    progress(f"seed {seed}")
    images = load_images(config)
    return Run(resolve(config, images), images, display=Lines()).train()


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="how many seeds, from --seed on (default: 3)")
    options.add_argument("--train-limit", type=int, default=10_000, help="training images (default: 10000)")
    options.add_argument("--epochs", type=int, default=16, help="(default: 16)")
    options.add_argument("--width", type=int, help="width of the model's first stage (default: the model's own)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.train_limit, arguments.epochs, arguments.width = 2, 256, 1, 4
    return arguments


if __name__ == "__main__":
    main()

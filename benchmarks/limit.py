"""Do seconds follow cost at every size, and how near is the loop to the bare model's speed?

ResNet-8 on CIFAR-10 images, or another network on EuroSAT's, at full size and at the smaller ones of `lean`, in one
process, chunk by chunk in turns:

- bare: forward, backward and optimiser step on one batch that is there already; nothing is loaded or recorded
- loop: an epoch of `leantrain.run.loop.Run` at that size, with planning, loading, augmentation and the ledger

EuroSAT's JPEGs are decoded and cropped in the same process, so that a chunk holds all of the work. The table says at
what share of the bare model's speed the loop runs, and how long an example takes, as a share of one at full size,
beside what it costs by its pixels. Ratios are taken within a round, as median (min–max). The process keeps the memory
that it frees, as every command does.

    python benchmarks/limit.py --threads 1
    python benchmarks/limit.py --threads 1 --width 64 --steps 8       a wider one
    python benchmarks/limit.py --threads 1 --model resnet18 --image-size 224 --batch-size 32 --steps 2 --rounds 7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from _common import Spread, alternate, chunks, finish, lean_loop, markdown, parser, ratios
from torch.nn.functional import cross_entropy

from leantrain.data import ImageSet
from leantrain.methods.lean import ways
from leantrain.run.allocator import keep_freed_memory
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.optimizers import build_optimizer
from leantrain.run.setup import resolve

WIDTH = 16  # of lean's benchmark on CIFAR-10


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    config, images = chunks(arguments, **_network(arguments))
    full = images.image_size
    sides = sorted({round(value * full) for value in ways(full, 0.5)[0].values}, reverse=True)
    contenders: dict[str, Callable[[], int]] = {}
    for side in sides:
        contenders[f"bare {side}"] = bare(images, config, side, arguments.steps)
        method = "plain" if side == full else f"input-scaling[size={side}]"
        contenders[f"loop {side}"] = lean_loop(images, config, method=method)
    rates = alternate(contenders, arguments.rounds)
    near = {side: ratios(rates, f"loop {side}", f"bare {side}") for side in sides}
    taken = {side: {who: ratios(rates, f"{who} {full}", f"{who} {side}") for who in ("bare", "loop")} for side in sides}
    rows = [
        (
            f"{side} px",
            near[side].text(3),
            f"{(side / full) ** 2:.3f}",
            taken[side]["loop"].text(3),
            taken[side]["bare"].text(3),
        )
        for side in sides
    ]
    header = ("size", "loop / bare model", "cost of an example", "its time in the loop", "its time in the bare model")
    result = {
        "loop_over_bare": {str(side): near[side]._asdict() for side in sides},
        "cost": {str(side): (side / full) ** 2 for side in sides},
        "time": {str(side): {who: spread._asdict() for who, spread in taken[side].items()} for side in sides},
        "images_per_second": {name: Spread.of(values)._asdict() for name, values in rates.items()},
        "rounds": rates,
    }
    finish(_name(arguments), arguments, markdown(header, rows), result, n=arguments.rounds)


def _network(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.model == "resnet8":
        return {"width": arguments.width}
    return {"data": "eurosat10k", "model": arguments.model, "image_size": arguments.image_size, "workers": 0}


def _name(arguments: argparse.Namespace) -> str:
    if arguments.model != "resnet8":
        return f"limit-{arguments.model}-{arguments.image_size}"
    return "limit" if arguments.width == WIDTH else f"limit-{arguments.width}"


def bare(images: ImageSet, config: TrainConfig, side: int, steps: int) -> Callable[[], int]:
    """As many steps as an epoch has, on one batch."""
    run = Run(resolve(config, images), images)
    module, optimizer = run.module, build_optimizer(run.config, run.module, run.device)
    index = torch.arange(run.batch_size)
    pixels, targets = images.train.batch(index, 0)
    inputs = run.augment.evaluate(pixels)
    inputs = torch.nn.functional.interpolate(inputs, size=(side, side), mode="bilinear", antialias=True)
    inputs = inputs.contiguous(memory_format=torch.channels_last)

    def chunk() -> int:
        module.train()
        for _ in range(steps):
            with run.precision.autocast():
                loss = cross_entropy(module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return steps * len(targets)

    return chunk


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9, help="rounds that count, after one to warm up (default: 9)")
    options.add_argument("--steps", type=int, default=156, help="batches in a chunk, an epoch of 10,000 (default: 156)")
    options.add_argument("--batch-size", type=int, default=64, help="(default: 64)")
    options.add_argument("--model", default="resnet8", help="(default: resnet8); another one is shown EuroSAT's images")
    options.add_argument("--image-size", type=int, default=224, help="of another model's images (default: 224)")
    options.add_argument("--width", type=int, default=WIDTH, help=f"of resnet8's first stage (default: {WIDTH})")
    options.add_argument("--threads", type=int, help="torch's threads (default: torch's choice)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 4
    return arguments


if __name__ == "__main__":
    main()

"""Do seconds follow cost at every size, and how near is the loop to the bare model's speed?

ResNet-8 on CIFAR-10 images, at full size and at three quarters, half and three eighths of the side, in one process,
chunk by chunk in turns:

- bare: forward, backward and optimiser step on one batch that is there already; nothing is loaded or recorded
- loop: an epoch of `leantrain.run.loop.Run` at that size, with planning, loading, augmentation and the ledger

The table says at what share of the bare model's speed the loop runs, and how long an example takes, as a share of one
at full size, beside what it costs by its pixels. Ratios are taken within a round, as median (min–max).

    python benchmarks/limit.py --threads 1
    python benchmarks/limit.py --threads 1 --width 64 --steps 8       a network of ordinary width
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from _common import Spread, alternate, cifar_chunks, finish, lean_loop, markdown, parser, ratios
from torch.nn.functional import cross_entropy

from leantrain.data import ImageSet
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import build_optimizer, resolve

SIDES = (32, 24, 16, 12)  # those of `lean`
WIDTH = 16  # of lean's benchmark on CIFAR-10


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    config, images = cifar_chunks(arguments, width=arguments.width)
    contenders: dict[str, Callable[[], int]] = {}
    for side in SIDES:
        contenders[f"bare {side}"] = bare(images, config, side, arguments.steps)
        method = "plain" if side == SIDES[0] else f"input-scaling[size={side}]"
        contenders[f"loop {side}"] = lean_loop(images, config, method=method)
    rates = alternate(contenders, arguments.rounds)
    near = {side: ratios(rates, f"loop {side}", f"bare {side}") for side in SIDES}
    taken = {
        side: {who: ratios(rates, f"{who} {SIDES[0]}", f"{who} {side}") for who in ("bare", "loop")} for side in SIDES
    }
    rows = [
        (
            f"{side} px",
            near[side].text(3),
            f"{(side / SIDES[0]) ** 2:.3f}",
            taken[side]["loop"].text(3),
            taken[side]["bare"].text(3),
        )
        for side in SIDES
    ]
    header = ("size", "loop / bare model", "cost of an example", "its time in the loop", "its time in the bare model")
    result = {
        "loop_over_bare": {str(side): near[side]._asdict() for side in SIDES},
        "cost": {str(side): (side / SIDES[0]) ** 2 for side in SIDES},
        "time": {str(side): {who: spread._asdict() for who, spread in taken[side].items()} for side in SIDES},
        "images_per_second": {name: Spread.of(values)._asdict() for name, values in rates.items()},
        "rounds": rates,
    }
    name = "limit" if arguments.width == WIDTH else f"limit-{arguments.width}"
    finish(name, arguments, markdown(header, rows), result, n=arguments.rounds)


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
            with run.fabric.autocast():
                loss = cross_entropy(module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return steps * len(targets)

    return chunk


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15, help="rounds that count, after one to warm up (default: 15)")
    options.add_argument("--steps", type=int, default=40, help="batches in a chunk (default: 40)")
    options.add_argument("--batch-size", type=int, default=64, help="(default: 64)")
    options.add_argument("--width", type=int, default=WIDTH, help=f"of the model's first stage (default: {WIDTH})")
    options.add_argument("--threads", type=int, help="torch's threads (default: torch's choice)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 4
    return arguments


if __name__ == "__main__":
    main()

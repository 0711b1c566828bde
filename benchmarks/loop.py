"""How much faster is leantrain's training loop than the loop everybody writes first?

The same ResNet-8 on the same CIFAR-10 images in batches of 128, plain SGD, one process, chunk by chunk in turns:

- plain: PIL images, torchvision transforms, a shuffling DataLoader, fp32; with every number of workers asked for
- plain + bf16: the same with bf16 autocast and channels_last
- leantrain fp32: `leantrain.run.loop.Run`, images in memory, augmented a batch at a time, channels_last
- leantrain: the same with the precision it chooses by itself

A chunk is one epoch over 40 batches. Ratios are taken within a round and given as median (min–max); the headline is
against the fastest plain loop, not against the slowest.

    python benchmarks/loop.py

Result: 2.25× the images/s of the plain loop (2.01–2.64); n, hardware and versions in results/loop.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from _common import Spread, alternate, chunks, finish, lean_loop, markdown, parser, ratios
from _naive import PilImages, shuffled_loader, train_transform
from torch.nn.functional import cross_entropy

from leantrain.data import ImageSet, MemoryImages
from leantrain.models import build
from leantrain.run.config import TrainConfig

OURS = "leantrain"


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    config, images = chunks(arguments)
    contenders: dict[str, Callable[[], int]] = {}
    for workers in arguments.workers:
        contenders[f"plain, {workers} workers"] = plain_loop(images, config, workers, lean=False)
    for workers in arguments.workers:
        contenders[f"plain + bf16, {workers} workers"] = plain_loop(images, config, workers, lean=True)
    contenders["leantrain fp32"] = lean_loop(images, config, precision="fp32")
    contenders[OURS] = lean_loop(images, config, precision="auto")

    rates = alternate(contenders, arguments.rounds)
    speeds = {name: Spread.of(values) for name, values in rates.items()}
    base = max((name for name in rates if name.startswith("plain,")), key=lambda name: speeds[name].median)
    factors = {name: ratios(rates, name, base) for name in rates}
    table = markdown(
        ("loop", "images/s", f"times as fast as “{base}”"),
        [(name, speeds[name].text(0), factors[name].text()) for name in rates],
    )
    result = {
        "base": base,
        "headline": factors[OURS]._asdict(),
        "images_per_second": {name: speed._asdict() for name, speed in speeds.items()},
        "ratio": {name: factor._asdict() for name, factor in factors.items()},
        "rounds": rates,
    }
    finish("loop", arguments, table, result, n=arguments.rounds)


def plain_loop(images: ImageSet, config: TrainConfig, workers: int, lean: bool) -> Callable[[], int]:
    """One epoch of the plain loop; `lean` adds bf16 autocast and channels_last, which are a line each."""
    assert isinstance(images.train, MemoryImages)
    model = build("resnet8", classes=len(images.classes), image_size=images.image_size, seed=config.seed)
    model = model.to(memory_format=torch.channels_last) if lean else model  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    dataset = PilImages(images.train, train_transform(images))
    loader = shuffled_loader(dataset, config.batch_size, workers, config.seed)

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=lean)

    def chunk() -> int:
        model.train()
        for inputs, targets in loader:
            inputs = inputs.contiguous(memory_format=torch.channels_last) if lean else inputs
            optimizer.zero_grad()
            with autocast():
                loss = cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return len(dataset)

    return chunk


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=6, help="rounds that count, after one to warm up (default: 6)")
    options.add_argument("--steps", type=int, default=40, help="steps per chunk (default: 40)")
    options.add_argument("--batch-size", type=int, default=128, help="(default: 128)")
    options.add_argument(
        "--workers", type=int, nargs="+", default=[2, 0], help="DataLoader workers of the plain loop (default: 2 0)"
    )
    options.add_argument("--threads", type=int, help="torch's threads (default: torch's choice)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps, arguments.batch_size = 2, 2, 32
    return arguments


if __name__ == "__main__":
    main()

"""What MixTrain adds to a step and to an epoch, and what it takes off one: ratios within one process.

    python benchmarks/overhead.py

step       a training step on a composite batch (fetch, augment, mix, forward, split, backward, record) against a plain
           step on a batch of the same shape, ResNet-18 at 32 px, batch 128, alternating
selection  choosing and planning an epoch of 50,000 examples, as a share of that epoch's training time
epoch      seconds of an epoch with a share m mixed against a plain one, beside 1 - m/2, compute-bound

Result: see benchmarks/README.md and results/overhead.json.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from _common import Spread, finish, markdown, parser, progress

from leantrain.data import ImageSet, MemoryImages
from leantrain.forms import WHOLE, Form
from leantrain.ledger import Ledger
from leantrain.methods import Moment, chain, parse_method
from leantrain.plan import Groups, make_plan
from leantrain.rng import generator
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import resolve


def pictures(count: int) -> ImageSet:
    """Random 32-pixel pictures: what they show does not matter to the clock."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=rng)
    images = MemoryImages(pixels, torch.randint(10, (count,), generator=rng), torch.arange(count))
    names = tuple("abcdefghij")
    colour = (0.5, 0.5, 0.5)
    return ImageSet("random", images, images, names, 32, 3, colour, colour, 4, True)


def prepared(images: ImageSet, model: str, batch_size: int) -> Run:
    config = TrainConfig(
        data="random", model=model, epochs=1000, batch_size=batch_size, method="mixtrain-cutmix", eval_every=10**6
    )
    return Run(resolve(config, images), images)


def train(run: Run, groups: list[Groups]) -> float:
    """Seconds for one epoch over these groups."""
    lean = run.lean
    epoch = lean.epoch + 1
    plan = make_plan(epoch, groups, run.config.batch_size, generator(0, epoch))
    lean._plan, lean._done, lean._done_cost, lean._resumed = plan, 0, 0.0, True
    started = time.perf_counter()
    run._train_batches()
    return time.perf_counter() - started


def quartiles(values: list[float]) -> Spread:
    """Median and quartiles: single steps have outliers that say nothing."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Spread(middle, low, high)


def measure_step(model: str, batch_size: int, steps: int, rounds: int) -> dict[str, Any]:
    """Composite against plain steps of the same number of inputs, turn by turn."""
    inputs = batch_size * steps
    images = pictures(2 * inputs)
    run = prepared(images, model, batch_size)
    everything = torch.arange(2 * inputs)
    kinds = {
        "plain": [Groups(everything[:inputs])],
        "composite": [Groups(everything.view(2, inputs), Form.of(composite=2))],
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name in list(kinds)[:: 1 if number % 2 else -1]:
            took = train(run, kinds[name])
            progress(f"round {number}: {name} {took / steps * 1000:.1f} ms a step")
            if number:
                seconds[name].append(took)
    ratio = quartiles([c / p for c, p in zip(seconds["composite"], seconds["plain"], strict=True)])
    return {
        "model": model,
        "batch_size": batch_size,
        "rounds": rounds,
        "steps": steps,
        "ratio": ratio,
        "seconds": seconds,
    }


def measure_selection(count: int, text: str = "mixtrain-cutmix") -> float:
    """Seconds to choose and plan an epoch from a full ledger; the slowest of five."""
    method = chain(parse_method(text))
    ledger, rng = Ledger(count), torch.Generator().manual_seed(0)
    states = method.init_all(ledger)
    slowest = 0.0
    for epoch in range(6):
        started = time.perf_counter()
        draft, states = method.draft_all(states, ledger, Moment(epoch, epoch / 10, 10, 128, 32), generator(0, epoch))
        draft.cut(epoch, 128, generator(0, epoch, "cut"))
        slowest = max(slowest, time.perf_counter() - started) if epoch else slowest
        losses = torch.rand(count, generator=rng) * 3
        ledger.record(torch.arange(count), losses, losses < 1.5, WHOLE, epoch)
    return slowest


def measure_epoch(
    model: str, batch_size: int, batches: int, shares: tuple[float, ...], rounds: int
) -> list[dict[str, Any]]:
    """Seconds of an epoch with a share mixed over a plain one's, beside 1 - m/2."""
    count = batch_size * batches
    run = prepared(pictures(count), model, batch_size)
    everything = torch.arange(count)
    plain: list[float] = []
    mixed: dict[float, list[float]] = {share: [] for share in shares}
    for number in range(rounds + 1):
        base = train(run, [Groups(everything)])
        if number:
            plain.append(base)
        for share in shares:
            pairs = round(share * batches / 2) * batch_size
            groups = [
                Groups(everything[2 * pairs :]),
                Groups(everything[: 2 * pairs].view(2, pairs), Form.of(composite=2)),
            ]
            took = train(run, groups)
            progress(f"round {number}: m = {share}: {took / base:.3f} of a plain epoch")
            if number:
                mixed[share].append(took / base)
    return [
        {"m": share, "expected": 1 - round(share * batches / 2) / batches, "ratio": Spread.of(mixed[share])}
        for share in shares
    ]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    quick = arguments.quick
    # Many short turns rather than few long ones: the machine's own swings are slower than a turn.
    rounds = 2 if quick else 30
    step = measure_step("resnet8" if quick else "resnet18", 32 if quick else 128, 1, rounds)
    small = measure_step("resnet8", 32 if quick else 128, 4, rounds)
    selection = measure_selection(50_000)
    plain = min(step["seconds"]["plain"]) / step["steps"] / step["batch_size"] * 50_000
    epochs = measure_epoch(
        "resnet8", 32 if quick else 128, 4 if quick else 20, (0.5, 1.0) if quick else (0.3, 0.6, 0.9), 2 if quick else 7
    )
    rows = [
        [f"composite step, {s['model']}, batch {s['batch_size']}", s["ratio"].text(3), "plain step"]
        for s in (step, small)
    ]
    rows.append(
        ["selection for N = 50,000", f"{selection:.3f} s = {selection / plain:.2%}", f"plain epoch, {step['model']}"]
    )
    rows += [[f"epoch with m = {e['m']}", e["ratio"].text(3), f"1 - m/2 = {e['expected']:.3f}"] for e in epochs]
    table = markdown(["what", "ratio: median (steps: quartiles, epochs: min–max)", "against"], rows)
    result = {"step": [step, small], "selection_seconds": selection, "epochs": epochs}
    finish("overhead", arguments, table, result, step["rounds"])


if __name__ == "__main__":
    main()

"""Does a run with `--time-budget` take the share of plain training's time that was asked for?

Each network is trained from nothing over eight epochs, plainly and with `lean` under the budget that
`leantrain train --time-budget` finds for half and for a third of the time, in one process: their epochs take turns, the
one that is least far next. The table says what share of the cost was found, and what share of plain training's time the
run then took (loading, augmentation, planning and the ledger included; evaluation left out, as it is the same for all),
as median (min–max) over rounds, in each of which budgets are found anew.

    python benchmarks/time_budget.py --threads 1
    python benchmarks/time_budget.py --threads 1 --case resnet18      one of them

Result: see benchmarks/README.md and results/time-budget.json.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NamedTuple

import torch
from _common import Spread, finish, markdown, parser, progress

from leantrain.data import ImageSet
from leantrain.run.allocator import keep_freed_memory
from leantrain.run.config import TrainConfig
from leantrain.run.estimate import Pace, budget_for_time
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve

EPOCHS = 8
SHARES = (0.5, 0.33)
CASES: dict[str, dict[str, Any]] = {
    "resnet8, width 16": {"data": "cifar10", "model": "resnet8", "width": 16, "train_limit": 5_000},
    "resnet8, width 64": {"data": "cifar10", "model": "resnet8", "width": 64, "train_limit": 1_280},
    "resnet8, width 8, 64 px": {"data": "eurosat10k", "model": "resnet8", "width": 8, "train_limit": 2_000},
    "resnet18, 128 px": {"data": "eurosat10k", "model": "resnet18", "image_size": 128, "train_limit": 320},
    "test_vit": {"data": "cifar10", "model": "test_vit", "optimizer": "adamw", "train_limit": 2_000},
}


class Taken(NamedTuple):
    budget: float
    share: float


def main() -> None:
    arguments = _arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    rows, result = [], {}
    for name in [name for name in CASES if arguments.case in name]:
        config = TrainConfig(**CASES[name], epochs=EPOCHS, eval_every=EPOCHS, workers=0, seed=arguments.seed)
        if arguments.quick:
            config = dataclasses.replace(config, train_limit=128, epochs=2)
        images = load_images(config)
        rounds = []
        for number in range(arguments.rounds):
            rounds.append(one_round(config, images))
            for share, taken in rounds[-1].items():
                progress(f"{name}, round {number + 1}: {share:g} asked, {taken.share:.3f} taken at {taken.budget:.3f}")
        for share in SHARES:
            budget = Spread.of([one[share].budget for one in rounds])
            taken = Spread.of([one[share].share for one in rounds])
            rows.append((name, f"{share:g}", budget.text(3), taken.text(3), f"{taken.median / share:.2f}"))
        result[name] = [{str(share): taken._asdict() for share, taken in one.items()} for one in rounds]
    header = ("network", "time asked for", "budget that was found", "time taken", "taken / asked for")
    suffix = f"-{arguments.case}".replace(" ", "").replace(",", "-") if arguments.case else ""
    finish(f"time-budget{suffix}", arguments, markdown(header, rows), {"rounds": result}, n=arguments.rounds)


def one_round(config: TrainConfig, images: ImageSet) -> dict[float, Taken]:
    """Plain training, and a run for each share of its time, epoch by epoch in turns."""
    plain = Run(resolve(config, images), images)
    runs, budgets = [plain], []
    for share in SHARES:  # as the command does it
        asked = resolve(dataclasses.replace(config, budget=share), images)
        budgets.append(budget_for_time(share, Pace(Run(asked, images))))
        runs.append(Run(dataclasses.replace(asked, budget=budgets[-1]), images))
    while waiting := [run for run in runs if not run.finished]:
        min(waiting, key=lambda run: run.lean.progress).train_epoch()
    seconds = [sum(row["seconds"] for row in run.rows) for run in runs]
    return {
        share: Taken(budget, taken / seconds[0])
        for share, budget, taken in zip(SHARES, budgets, seconds[1:], strict=True)
    }


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    options.add_argument("--case", default="", help="those whose name has this in it (default: all)")
    options.add_argument("--threads", type=int, help="torch's threads (default: torch's choice)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


if __name__ == "__main__":
    main()

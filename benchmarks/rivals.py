"""What skipping, thinning, pruning and shrinking save on CIFAR-10, beside plain training of the same cost, over seeds.

    python benchmarks/rivals.py --study poster      Table 1 of the Diet Selective-Backprop poster, at CPU scale
    python benchmarks/rivals.py --study resizing    progressive resizing, at resnet8's own width of 32
    python benchmarks/rivals.py --study others      input scaling, AutoAssist, InfoBatch, oracle skipping and MixTrain
                                                    (the last two: 002 Table 5)

Each study is a `leantrain compare` of 10,000 images, 16 epochs, batch 128, SGD 0.2, linear schedule, seeds 0, 1, 2: its
runs take turns epoch by epoch in one process, so that times are ratios, and every row has its equal-budget control
(plain training with fewer epochs, schedule fully decayed, at the cost that the row really had with that seed). It goes
on where it stopped. The poster's percentages are what is pruned of the whole set; EL2N scores are made once, by other
seeds, and re-used, as in the poster, whose time per epoch leaves them out too: what they cost is printed beside.
Results: docs/rivals.md.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from _common import finish, markdown, parser, progress

from leantrain.cli import cli
from leantrain.compare.settings import BASELINE
from leantrain.compare.verdict import Difference
from leantrain.scoring import load


class Study(NamedTuple):
    width: int
    rows: dict[str, str]


STUDIES = {
    "poster": Study(
        16,
        {
            "Selective-Backprop 50 %": "selective-backprop[keep=0.5]",
            "Random-Backprop 50 %": "random-backprop[keep=0.5]",
            "Random-Backprop 75 %": "random-backprop[keep=0.25]",
            "EL2N 25 %": "el2n[scores={scores}]",
            "Diet-SB 50 %": "diet-sb[keep=0.6667,scores={scores}]",
            "Diet-SB 62.5 %": "diet-sb[keep=0.5,scores={scores}]",
            "Diet-Random 62.5 %": "diet-random[keep=0.5,scores={scores}]",
        },
    ),
    "resizing": Study(32, {"progressive-resizing": "progressive-resizing"}),
    "others": Study(
        16,
        {
            "input scaling, 22 of 32 px": "input-scaling[size=22]",
            "AutoAssist": "autoassist",
            "oracle skipping": "oracle-skip",
            "MixTrain-CutMix": "mixtrain-cutmix",
            "InfoBatch": "infobatch",
        },
    ),
}


def call(*words: object) -> None:
    """The command inside this process, as its user would call it."""
    cli.main(args=[str(word) for word in words], standalone_mode=False)


def compare(study: Study, out: Path, seeds: int, threads: int, quick: bool) -> tuple[dict[str, str], float]:
    """Train what is missing of a study; give its rows with the names that the comparison has for them."""
    size, epochs = (200, 2) if quick else (10_000, 16)
    common = ("--data", "digits" if quick else "cifar10", "--train-limit", size, "--model", "resnet8")
    common += ("--width", 4 if quick else study.width, "--threads", threads)
    # The defaults when the tables were measured.
    common += ("--batch-size", 128, "--lr", 0.2, "--schedule", "linear[warmup=0.15]")
    scores, cost = out.parent / f"el2n-{study.width}.npz", 0.0
    if any("{scores}" in method for method in study.rows.values()):
        if not scores.exists():
            call("score", *common, "--seed", 100, "--out", scores)
        cost = load(scores).cost / size
    methods = {label: method.format(scores=scores) for label, method in study.rows.items()}
    resume = ("--resume",) if (out / "compare.yaml").exists() else ()
    call("compare", *common, "--epochs", epochs, "--seeds", seeds, "--methods", ",".join(methods.values()),
         "--out", out, *resume)  # fmt: skip
    return methods, cost


def read(study: Study, out: Path) -> dict[str, Any]:
    """The table of a comparison, by the labels of the study."""
    from leantrain.methods import parse_method

    content = json.loads((out / "compare.json").read_text())
    plain = next(row for row in content["rows"] if row["role"] == "baseline")
    by_kind = {"plain": {**plain, "epoch_time": 1.0}}
    for label, pattern in study.rows.items():
        wanted = parse_method(pattern.replace(",scores={scores}", "").replace("[scores={scores}]", ""))
        for row in content["rows"]:
            if row["role"] == "method" and _without_file(row["method"]) == str(wanted):
                by_kind[label] = {**row, "epoch_time": time_of(row, out)}
                by_kind[f"{label}: plain at equal cost"] = next(
                    other for other in content["rows"]
                    if other["role"] == "equal-budget" and other["control_of"] == row["method"]
                )  # fmt: skip
    return by_kind


def _without_file(method: str) -> str:
    import dataclasses

    from leantrain.methods import parse_method

    parsed = parse_method(method)
    return str(dataclasses.replace(parsed, scores=None) if hasattr(parsed, "scores") else parsed)


def time_of(row: dict[str, Any], out: Path) -> float | None:
    """An epoch's time as a share of the plain one's in the same round: the median over seeds, the mean over epochs.

    The median, because other work on the machine slows single epochs down; the mean, because epochs may differ in size.
    """
    seconds: dict[tuple[str, str, int, int], float] = {}
    for line in (out / "turns.jsonl").read_text().splitlines():
        turn = json.loads(line)
        seconds[turn["row"], turn["session"], turn["seed"], turn["epoch"]] = turn["seconds"]
    ratios: dict[int, list[float]] = {}
    for (label, *when), own in seconds.items():
        if label == row["label"] and (BASELINE, *when) in seconds:
            ratios.setdefault(when[-1], []).append(own / seconds[(BASELINE, *when)])
    return statistics.mean(statistics.median(found) for found in ratios.values()) if ratios else None


def percent(row: dict[str, Any]) -> str:
    return f"{100 * row['accuracy']:.2f}" + (
        f" ± {100 * row['accuracy_spread']:.2f}" if row["accuracy_spread"] is not None else ""
    )


def gap(content: dict[str, Any] | None) -> str:
    return "" if content is None else Difference.from_json(content).text()


def lines(study: Study, rows: dict[str, Any]) -> list[list[str]]:
    made = []
    for label in ("plain", *study.rows):
        if label not in rows:
            continue
        row, control = rows[label], rows.get(f"{label}: plain at equal cost")
        time = "" if row["epoch_time"] is None else f"{row['epoch_time']:.2f}"
        made.append([
            label, f"{row['cost_ratio']:.2f}", time, percent(row), gap(row["difference_to_full"]),
            percent(control) if control else "", gap(row["difference_to_control"]),
        ])  # fmt: skip
    return made


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--study", choices=STUDIES, default="poster")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("runs/rivals"))
    options.add_argument("--table", action="store_true", help="train nothing: read the comparison that is in --out")
    arguments = options.parse_args()
    study = STUDIES[arguments.study]
    out = arguments.out / f"{arguments.study}{'-quick' if arguments.quick else ''}"
    cost = 0.0
    if not arguments.table:
        _, cost = compare(study, out, arguments.seeds, arguments.threads, arguments.quick)
    rows = read(study, out)
    header = ["", "cost", "time", "accuracy, %", "Δ to plain", "plain at equal cost, %", "Δ to equal cost"]
    if cost:
        progress(f"the EL2N scores cost {cost:.1f} epochs, which no row counts")
    finish(f"rivals-{arguments.study}", _plain(arguments), markdown(header, lines(study, rows)), rows, arguments.seeds)


def _plain(arguments: Any) -> Any:
    """Settings as JSON holds them, and without the place where somebody keeps their runs."""
    arguments.out = arguments.out.name
    return arguments


if __name__ == "__main__":
    main()

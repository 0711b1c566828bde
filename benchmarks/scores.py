"""Do EL2N scores say the same thing whatever model and seed they come from, and does Selective-Backprop agree?

    python benchmarks/scores.py [--use RUN]

Scores of 10,000 CIFAR-10 images, each the mean of 3 models of 2 epochs: resnet8 (width 16) and resnet20 with two seeds
each, and GraNd with resnet8. Prints Spearman's rank correlation of every pair and the overlap of the lowest 25 %
(chance: 25 %), as in the poster's figures c and d; `--use` adds how often Selective-Backprop used each example.
Pictures go to OUT. Results: docs/rivals.md.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from _common import finish, markdown, parser, progress
from rivals import call

from leantrain.scoring import compare_scores, load

MADE = {
    "EL2N, resnet8, seed 100": ("el2n", "resnet8", 100),
    "EL2N, resnet8, seed 101": ("el2n", "resnet8", 101),
    "EL2N, resnet20, seed 100": ("el2n", "resnet20", 100),
    "EL2N, resnet20, seed 101": ("el2n", "resnet20", 101),
    "GraNd, resnet8, seed 100": ("grand", "resnet8", 100),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--use", type=Path, help="a run of Selective-Backprop on the same images")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("runs/scores"))
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = {}
    for label, (kind, model, seed) in MADE.items():
        files[label] = arguments.out / f"{kind}-{model}-{seed}{'-quick' if arguments.quick else ''}.npz"
        if not files[label].exists():
            progress(label)
            data = ("digits", 200, 4) if arguments.quick else ("cifar10", 10_000, 16)
            call("score", "--data", data[0], "--train-limit", data[1], "--width", data[2], "--model", model,
                 "--method", kind, "--seed", seed, "--threads", arguments.threads, "--out", files[label])  # fmt: skip
    if arguments.use:
        label = "use by Selective-Backprop"
        files[label] = arguments.out / "use.npz"
        if not files[label].exists():
            call("score", "--from-run", arguments.use, "--out", files[label])
    scores = {label: load(file) for label, file in files.items()}
    result, rows = {}, []
    for one, other in itertools.combinations(scores, 2):
        pair = compare_scores(scores[one], scores[other])
        quarter = pair["overlap"][pair["fractions"].index(0.25)]
        result[f"{one} | {other}"] = {"spearman": pair["spearman"], "overlap_of_lowest_25": quarter}
        rows.append([f"{one} – {other}", f"{pair['spearman']:.2f}", f"{quarter:.0%}"])
    costs = {label: {"cost": s.cost, "seconds": s.seconds} for label, s in scores.items()}
    table = markdown(["pair", "Spearman", "overlap of the lowest 25 %"], rows)
    arguments.out, arguments.use = arguments.out.name, bool(arguments.use)
    finish("scores", arguments, table, {"pairs": result, "made": costs}, len(scores))


if __name__ == "__main__":
    main()

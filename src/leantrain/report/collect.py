"""What a page says: runs and comparisons read from their folders and put into the form that page.js draws."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from leantrain.config import FIELDS, OPERATIONAL, TrainConfig, read_yaml
from leantrain.data import ImageSet
from leantrain.display import comparison_cells
from leantrain.errors import LeanError
from leantrain.ledger import COMPOSITE
from leantrain.methods import parse_method
from leantrain.methods.mixtrain import MixTrainMethod
from leantrain.report import pictures
from leantrain.report.past import Array, Past, evenly, histograms, histories, read_past

Json = dict[str, Any]

EXAMPLES = 240  # examples that a page knows
STRIP = 20  # of them the most and the least used, or the hardest and the easiest
CELLS = 300_000  # losses of single examples that a page holds, about 2 MB
CURVE_POINTS = 200
HISTOGRAMS = 60
CLASSES = 40  # classes in a chart

PARTS = {"selection_seconds": "selection", "mixing_seconds": "mixing", "data_seconds": "waiting for data"}
THRESHOLDS = ("L_corr", "L_mid", "L_incorr")

COMPARISON_COLUMNS: dict[str, tuple[str, Callable[[Json], Any]]] = {
    # as in the table that `leantrain compare` prints: what a column means, and what it is sorted by
    "accuracy": ("mean ± standard deviation over seeds, in %", lambda row: row["accuracy"]),
    "n": ("seeds", lambda row: len(row["seeds"])),
    "Δ to full": (
        "percentage points to full training, paired by seed, with the 95 % interval",
        lambda row: (row["difference_to_full"] or {}).get("mean"),
    ),
    "Δ to equal budget": (
        "percentage points to plain training at the same cost, paired by seed, with the 95 % interval",
        lambda row: (row["difference_to_control"] or {}).get("mean"),
    ),
    "cost": ("work done, as a share of full training's", lambda row: row["cost_ratio"]),
    "time": ("seconds, as a share of full training's in the same session", lambda row: row["time_ratio"]),
    "to accuracy": (
        "time until full training's final accuracy was reached, as a share of full training's time",
        lambda row: (row["time_to_accuracy"] or {}).get("share"),
    ),
    "overhead": ("time beyond what the cost explains", lambda row: row["overhead"]),
    "verdict": ("what these seeds allow one to say", lambda row: row["verdict"]),
}

RUN_COLUMNS: dict[str, tuple[str, str, str]] = {
    # what a column means, the result's name for it, and how it is written
    "accuracy": ("in % at the end", "test_accuracy", "{:.2%}"),
    "best": ("highest accuracy of any epoch", "best_test_accuracy", "{:.2%}"),
    "macro F1": ("mean over classes", "macro_f1", "{:.4f}"),
    "worst class": ("accuracy of the worst class", "worst_class_accuracy", "{:.2%}"),
    "calibration error": ("expected calibration error", "calibration_error", "{:.4f}"),
    "cost": ("in epochs of plain training", "cost_epochs", "{:.2f}"),
    "time": ("seconds of training", "train_seconds", "{:.1f} s"),
    "memory": ("the most that was held", "peak_memory_mb", "{:,.0f} MB"),
}


@dataclass(frozen=True, eq=False)
class RunFolder:
    """What `leantrain train` wrote into a folder, finished or cut."""

    folder: Path
    config: TrainConfig
    made_with: Json
    rows: list[Json]
    result: Json | None

    @staticmethod
    def read(folder: Path) -> RunFolder:
        from leantrain.train import read_rows

        file = folder / "config.yaml"
        config = TrainConfig(**read_yaml(file))
        made_with = yaml.safe_load(file.read_text()).get("made_with") or {}
        done = folder / "result.json"
        result = json.loads(done.read_text()) if done.exists() else None
        return RunFolder(folder, config, made_with, read_rows(folder / "metrics.jsonl"), result)

    @cached_property
    def past(self) -> Past | None:
        return read_past(self.folder, [row["epoch"] for row in self.rows])

    @property
    def mixtrain(self) -> MixTrainMethod | None:
        method = parse_method(self.config.method)
        return method if isinstance(method, MixTrainMethod) else None


@dataclass(frozen=True, eq=False)
class Series:
    """A row of the page: one method or control, with its runs by seed.

    Attributes:
        role: as in a comparison; "method" for a plain run.
    """

    label: str
    role: str
    control_of: str | None
    runs: list[RunFolder]

    def described(self) -> Json:
        return {"label": self.label, "role": self.role, "control_of": self.control_of}


def collect(folders: Sequence[Path]) -> list[Json]:
    """What the page of these folders says: a study per comparison, and one per data set of plain runs."""
    if not folders:
        raise LeanError("there is nothing to report on; name the folder of a run or of a comparison.")
    comparisons, runs = [], []
    for folder in dict.fromkeys(folders):
        if (folder / "compare.yaml").is_file():
            comparisons.append(folder)
        elif (folder / "config.yaml").is_file():
            runs.append(RunFolder.read(folder))
        elif not folder.is_dir():
            raise LeanError(f"there is no folder '{folder}'; name the folder of a run or of a comparison.")
        else:
            raise LeanError(
                f"'{folder}' holds neither a run (config.yaml) nor a comparison (compare.yaml); "
                "name a folder that leantrain train or leantrain compare wrote."
            )
    alike: dict[str, list[RunFolder]] = {}
    for run in runs:
        alike.setdefault(str(run.made_with.get("data_fingerprint", run.config.data)), []).append(run)
    share = len(comparisons) + len(alike)
    return [
        *(_comparison(folder, share) for folder in comparisons),
        *(_plain_runs(group, share) for group in alike.values()),
    ]


# -- comparisons -------------------------------------------------------------------------------------------------------


def _comparison(folder: Path, share: int) -> Json:
    from leantrain.compare import Comparison, load_comparison

    comparison: Comparison = load_comparison(folder)
    file = folder / "compare.json"
    summary: Json = json.loads(file.read_text()) if file.exists() else comparison.summary()
    entries = {entry.label: entry for entry in comparison.settings.entries()}
    series = []
    for row in summary["rows"]:
        entry = entries.get(row["label"])
        places = [comparison.folder(entry, seed) for seed in summary["seeds"]] if entry else []
        runs = [RunFolder.read(place) for place in places if (place / "config.yaml").is_file()]
        series.append(Series(row["label"], row["role"], row["control_of"], runs))
    settings = comparison.settings
    flags = [("--methods", ",".join(settings.methods)), ("--seeds", str(settings.seeds))]
    flags += [] if settings.controls else [("--no-controls", "")]
    flags += [("--margin", f"{settings.margin:g}")] if settings.margin != 0.2 else []
    methods = [row for row in summary["rows"] if row["role"] == "method"]
    names = [row["label"] for row in methods] or ["plain training"]
    seeds, config = len(summary["seeds"]), settings.config
    return {
        "kind": "comparison",
        "title": f"{_listed(names)} against plain training",
        "facts": [*_facts(config), f"{seeds} seed{'s' * (seeds != 1)}"],
        "verdicts": [_verdict(row, summary["margin"]) for row in methods],
        "failures": [{"name": name, "reason": reason} for name, reason in summary.get("failures", {}).items()],
        "margin": summary["margin"],
        "table": _comparison_table(summary["rows"]),
        "timed": any(row["time_ratio"] is not None for row in methods),
        "points": [_point(row) for row in summary["rows"] if row["accuracy"] is not None],
        "overhead": _overhead(series, {row["label"]: row["overhead"] for row in summary["rows"]}),
        **_from_runs(series, share),
        "settings": _settings(config),
        **_made_with(series, summary["made_with"]),
        "command": command("compare", config, flags, leave_out=("method", "budget")),
    }


def _verdict(row: Json, margin: float) -> Json:
    cells = dict(zip(COMPARISON_COLUMNS, comparison_cells(row), strict=True))
    return {
        "label": row["label"],
        "text": row["verdict"],
        "standing": standing(row, margin),
        "numbers": [
            {"name": name, "text": cells[name]}
            for name in ("accuracy", "Δ to full", "Δ to equal budget", "cost", "time")
        ],
    }


def standing(row: Json, margin: float) -> str:
    """Whether a method holds what it promises, by the same intervals as the verdict in words: good, bad or open."""
    full, control = row["difference_to_full"], row["difference_to_control"]
    ratio = row["cost_ratio"] if row["time_ratio"] is None else row["time_ratio"]
    if not full or full["seeds"] < 2 or ratio is None:
        return "open"
    if ratio >= 1 or full["mean"] + full["half"] < -margin or (control and control["mean"] + control["half"] < 0):
        return "bad"
    if not control or control["seeds"] < 2:
        return "open"
    keeps, better = full["mean"] - full["half"] >= -margin, control["mean"] - control["half"] > 0
    return "good" if keeps and better else "open"


def _comparison_table(rows: Sequence[Json]) -> Json:
    columns = [
        {"name": name, "help": meaning, "numeric": name != "verdict"}
        for name, (meaning, _) in COMPARISON_COLUMNS.items()
    ]
    return {
        "columns": columns,
        "rows": [
            {
                "label": row["label"],
                "role": row["role"],
                "control_of": row["control_of"],
                "cells": comparison_cells(row),
                "values": [value(row) for _, value in COMPARISON_COLUMNS.values()],
            }
            for row in rows
        ],
    }


def _point(row: Json) -> Json:
    names = ("label", "role", "control_of", "accuracy", "accuracy_spread", "cost_ratio", "time_ratio")
    return {
        **{name: row[name] for name in names},
        "time_ratio_spread": row["time_ratio_spread"],
        "n": len(row["seeds"]),
    }


# -- plain runs --------------------------------------------------------------------------------------------------------


def _plain_runs(runs: list[RunFolder], share: int) -> Json:
    labels = _labels(runs)
    series = [Series(label, "method", None, [run]) for label, run in zip(labels, runs, strict=True)]
    first = runs[0]
    return {
        "kind": "runs",
        "title": f"{_listed(list(dict.fromkeys(run.config.method for run in runs)))} on {first.config.data}",
        "facts": [*_facts(first.config), f"{len(runs)} run{'s' * (len(runs) != 1)}"],
        "verdicts": [],
        "failures": [
            {"name": label, "reason": "not finished yet"}
            for label, run in zip(labels, runs, strict=True)
            if run.result is None
        ],
        "table": _run_table(series),
        "timed": True,
        "points": [],
        "overhead": _overhead(series, {}),
        **_from_runs(series, share),
        "settings": _settings(first.config),
        **_made_with(series, {}),
        "command": "\n".join(command("train", run.config) for run in runs),
    }


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """Short names that tell the runs apart."""
    choices = (
        [run.config.method for run in runs],
        [f"{run.config.method}, seed {run.config.seed}" for run in runs],
        [str(run.folder) for run in runs],
    )
    return next((names for names in choices if len(set(names)) == len(names)), choices[-1])


def _run_table(series: Sequence[Series]) -> Json:
    rows = []
    for one in series:
        result = one.runs[0].result
        values = [None if result is None else result.get(name) for _, name, _ in RUN_COLUMNS.values()]
        texts = [form for _, _, form in RUN_COLUMNS.values()]
        cells = ["—" if value is None else form.format(value) for value, form in zip(values, texts, strict=True)]
        rows.append({**one.described(), "cells": cells, "values": values})
    columns = [{"name": name, "help": meaning, "numeric": True} for name, (meaning, _, _) in RUN_COLUMNS.items()]
    return {"columns": columns, "rows": rows}


# -- what both have ----------------------------------------------------------------------------------------------------


def _from_runs(series: Sequence[Series], share: int) -> Json:
    """What needs the runs' own folders: curves, and the parts about single examples."""
    notes: list[str] = []
    shown = [one for one in series if one.role in ("baseline", "method") and any(run.rows for run in one.runs)]
    pasts: list[tuple[Series, RunFolder, Past]] = []
    for one in shown:
        for run in one.runs[:1]:
            try:
                past = run.past
            except LeanError as error:
                notes.append(str(error))
                continue
            if past is None:
                notes.append(f"{one.label} kept no history (--no-history), so nothing is known of its single examples.")
            else:
                pasts.append((one, run, past))
    images, reason = _images([run for one in shown for run in one.runs])
    if reason:
        notes.append(f"The pictures are not shown: {reason}")
    if len({len(past) for _, _, past in pasts}) > 1:
        notes.append("The runs were trained on sets of different size, so only the first one's examples are shown.")
        pasts = [part for part in pasts if len(part[2]) == len(pasts[0][2])]
    if images is not None and pasts and len(images.train) != len(pasts[0][2]):
        notes.append("The pictures are not shown: the data is not what the runs were trained on.")
        images = None
    chosen, sampled = _sample(pasts, images, max(60, EXAMPLES // share))
    examples = _examples(pasts, images, sampled, CELLS // share, notes)
    return {
        "series": [one.described() for one in series],
        "curves": [curve for one in series if (curve := _curve(one))],
        "mixtrain": [part for one in shown for part in _mixtrain(one, images, sampled, notes)],
        "use": [_use(one, past, images, chosen[one.label]) for one, _, past in pasts if one.label in chosen],
        "examples": examples,
        "notes": list(dict.fromkeys(notes)),
    }


def _curve(one: Series) -> Json | None:
    """Means over the seeds at equal progress, and the range; a run's last epoch has progress one, whatever it spent."""
    runs = []
    for run in one.runs:
        rows = [row for row in run.rows if row["test_accuracy"] is not None]
        if rows and run.config.epochs:
            rows = [rows[place] for place in evenly(range(len(rows)), CURVE_POINTS)]
            runs.append((run, rows))
    if not runs:
        return None
    at = np.array([row["progress"] for row in max((rows for _, rows in runs), key=lambda rows: rows[-1]["progress"])])

    def over_seeds(value: Callable[[RunFolder, Json], float]) -> Array:
        columns = []
        for run, rows in runs:
            progress = [row["progress"] for row in rows]
            columns.append(np.interp(at, progress, [_number(value(run, row)) for row in rows], right=np.nan))
        return np.stack(columns)

    def examples(run: RunFolder) -> float:
        first = run.rows[0]
        whole = run.result["train_examples"] if run.result else len(run.past) if run.past else first["examples"]
        return float(whole)

    def mean(values: Array) -> list[float]:
        return _rounded(np.nanmean(values, 0))

    curve: Json = {
        **one.described(),
        "seeds": len(runs),
        "progress": _rounded(at),
        "cost": mean(over_seeds(lambda run, row: row["total_cost"] / examples(run))),
        "seconds": mean(over_seeds(lambda run, row: row["total_seconds"])),
    }
    for name in ("test_accuracy", "test_loss", "train_loss"):
        values = over_seeds(lambda run, row, name=name: row[name])  # type: ignore[misc]
        low, high = np.nanmin(values, 0), np.nanmax(values, 0)
        curve[name] = {"mean": mean(values), "low": _rounded(low), "high": _rounded(high)}
    return curve


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _rounded(values: Array) -> list[float]:
    return [float(f"{x:.6g}") for x in values]


def _overhead(series: Sequence[Series], measured: Mapping[str, float | None]) -> list[Json]:
    """Per method, the overhead and the shares of the training time that went into each known part."""
    found = []
    for one in series:
        rows = [row for run in one.runs for row in run.rows]
        seconds = sum(row["seconds"] for row in rows)
        if one.role in ("baseline", "method") and seconds:
            parts = {name: sum(row.get(key, 0.0) for row in rows) / seconds for key, name in PARTS.items()}
            found.append({**one.described(), "overhead": measured.get(one.label), "parts": parts})
    return found


def _images(runs: Sequence[RunFolder]) -> tuple[ImageSet | None, str]:
    """The runs' data set, or why it cannot be shown."""
    from leantrain.train import load_images

    if not runs:
        return None, ""
    try:
        images = load_images(runs[0].config)
    except LeanError as error:
        return None, str(error)
    known = runs[0].made_with.get("data_fingerprint")
    if known is not None and known != images.fingerprint:
        return None, f"'{runs[0].config.data}' is no longer what the run was trained on."
    return images, ""


# -- single examples ---------------------------------------------------------------------------------------------------


def _sample(
    pasts: Sequence[tuple[Series, RunFolder, Past]], images: ImageSet | None, most: int
) -> tuple[dict[str, Json], Array]:
    """Which examples a page knows: the most and least used of every method, hard and easy ones, some of every class.

    Returns:
        By method what its use is counted in, and its most and least used; and the sampled examples, in order.
    """
    if not pasts:
        return {}, np.zeros(0, np.int64)
    chosen: dict[str, Json] = {}
    length = len(pasts[0][2])
    uneven = [part for part in pasts if np.ptp(part[2].used) or np.ptp(part[2].mixed)]
    strip = min(STRIP, length, max(4, most // (3 * max(1, len(uneven)))))
    for one, _, past in uneven:
        what, counts = ("trained", past.used) if np.ptp(past.used) else ("mixed", past.mixed)
        order = np.argsort(-counts, kind="stable")
        chosen[one.label] = {"what": what, "most": order[:strip].tolist(), "least": order[::-1][:strip].tolist()}
    wanted = [
        index for part in chosen.values() for pair in zip(part["most"], part["least"], strict=True) for index in pair
    ]
    by_loss = np.argsort(np.nan_to_num(pasts[0][2].loss), kind="stable")
    wanted += [*by_loss[: -STRIP - 1 : -1].tolist(), *by_loss[:STRIP].tolist()]
    wanted = list(dict.fromkeys(wanted))[:most]
    rest = _one_of_each_class(images, length)
    wanted += [index for index in rest if index not in set(wanted)][: max(0, most - len(wanted))]
    return chosen, np.sort(np.array(wanted, np.int64))


def _one_of_each_class(images: ImageSet | None, length: int) -> list[int]:
    """All examples, the first of every class first, then the second of every class, and so on."""
    if images is None:
        return evenly(range(length), EXAMPLES)
    targets = images.train.targets.numpy()
    order = np.argsort(targets, kind="stable")
    first = np.searchsorted(targets[order], targets[order])
    rank = np.empty(length, np.int64)
    rank[order] = np.arange(length) - first
    listed: list[int] = np.lexsort((targets, rank))[: 2 * EXAMPLES].tolist()
    return listed


def _examples(
    pasts: Sequence[tuple[Series, RunFolder, Past]],
    images: ImageSet | None,
    sampled: Array,
    cells: int,
    notes: list[str],
) -> Json | None:
    if not len(sampled):
        return None
    where = torch.from_numpy(sampled)
    shown: Json | None = None
    classes, targets, names = None, None, None
    if images is not None:
        classes, targets = list(images.classes), images.train.targets[where].tolist()
        ids = images.train.ids
        names = [str(ids[i]) for i in sampled.tolist()] if isinstance(ids, tuple) else None
        try:
            shown = vars(pictures.sheet(images.train.batch(where, -1)[0], pictures.TILE))
        except LeanError as error:
            notes.append(f"The pictures are not shown: {error}")
    most = max(12, cells // (len(sampled) * len(pasts)))
    told = []
    for one, run, past in pasts:
        epochs = evenly(past.epochs, most)
        told.append({**one.described(), "seed": run.config.seed, **histories(past, sampled, epochs)})
    return {
        "total": len(pasts[0][2]),
        "index": sampled.tolist(),
        "classes": classes,
        "targets": targets,
        "names": names,
        "mean_loss": [float(f"{x:.3g}") for x in np.nan_to_num(pasts[0][2].loss[sampled])],
        "sheet": shown,
        "histories": told,
    }


def _use(one: Series, past: Past, images: ImageSet | None, chosen: Json) -> Json:
    counts = past.used if chosen["what"] == "trained" else past.mixed
    epochs = len(past.epochs)
    by_class = None
    if images is not None:
        targets, number = images.train.targets.numpy(), len(images.classes)
        mean = np.bincount(targets, counts, number) / np.maximum(1, np.bincount(targets, minlength=number)) / epochs
        order = np.argsort(-mean, kind="stable") if number > CLASSES else np.arange(number)
        kept = order if number <= CLASSES else np.concatenate([order[: CLASSES // 2], order[-CLASSES // 2 :]])
        by_class = [{"name": images.classes[i], "share": float(f"{mean[i]:.4g}")} for i in kept]
    strips = {name: [{"index": i, "count": int(counts[i])} for i in chosen[name]] for name in ("most", "least")}
    spread = Counter(counts.tolist())
    return {
        **one.described(),
        "what": chosen["what"],
        "seed": one.runs[0].config.seed,
        "epochs": epochs,
        **strips,
        "classes": by_class,
        "all_classes": len(images.classes) if images is not None else None,
        "counts": sorted(spread.items()),
    }


# -- MixTrain ----------------------------------------------------------------------------------------------------------


def _mixtrain(one: Series, images: ImageSet | None, sampled: Array, notes: list[str]) -> list[Json]:
    """Per seed: what was mixed and why; composites for the first seed only, as they look alike."""
    found = []
    for run in one.runs:
        method = run.mixtrain
        if method is None or not run.rows:
            continue
        names = ("mixed_region1", "mixed_region3", "skipped", *THRESHOLDS)
        part: Json = {
            **one.described(),
            "seed": run.config.seed,
            "epochs": [row["epoch"] for row in run.rows],
            **{name: [row.get(name) for row in run.rows] for name in names},
            "histogram": None,
            "gallery": None,
        }
        try:
            past = run.past
            if past is not None:
                part["histogram"] = _histogram(run, past)
                if images is not None and not found and len(sampled):
                    part["gallery"] = _gallery(run, method, past, images, sampled)
        except LeanError as error:
            notes.append(str(error))
        found.append(part)
    return found


def _histogram(run: RunFolder, past: Past) -> Json:
    """The losses by epoch with the thresholds they were judged by, which are those of the next epoch's plan."""
    told = histograms(past, evenly(past.epochs, HISTOGRAMS))
    by_epoch = {row["epoch"]: row for row in run.rows}
    told["thresholds"] = [[by_epoch.get(epoch + 1, {}).get(name) for name in THRESHOLDS] for epoch in told["epochs"]]
    return told


def _gallery(run: RunFolder, method: MixTrainMethod, past: Past, images: ImageSet, sampled: Array) -> Json | None:
    from leantrain import history

    last = history.read_epoch(past.folder, past.epochs[-1])
    mixed = sampled[last["form"][sampled] == COMPOSITE]
    taken = mixed if len(mixed) >= 2 * method.constituents else sampled
    losses = torch.from_numpy(last["loss"][taken].astype(np.float32))
    assert method.mixer is not None
    return pictures.gallery(images, method.mixer, method.constituents, torch.from_numpy(taken), losses, run.config.seed)


# -- settings ----------------------------------------------------------------------------------------------------------


def command(
    name: str,
    config: TrainConfig,
    flags: Sequence[tuple[str, str]] = (),
    leave_out: Sequence[str] = (),
) -> str:
    """The command that makes this again, with every setting that is not the default."""
    words = ["leantrain", name]
    for flag, value in flags:
        words += [flag, value] if value else [flag]
    for field in FIELDS.values():
        value = getattr(config, field.name)
        kept = field.name not in OPERATIONAL or field.name in ("data_root", "out")
        if value is None or value == field.default or field.name in leave_out or not kept:
            continue
        spelled = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{spelled}" if value else f"--no-{spelled}")
        else:
            words += [f"--{spelled}", str(value)]
    return shlex.join(words)


def _settings(config: TrainConfig) -> list[Json]:
    return [
        {"name": name.replace("_", "-"), "value": _spelled(value)}
        for name, value in dataclasses.asdict(config).items()
        if value is not None
    ]


def _spelled(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _made_with(series: Sequence[Series], otherwise: Json) -> Json:
    """Versions and hardware as the runs themselves noted them."""
    noted = next((run.made_with for one in series for run in one.runs if run.made_with), otherwise)
    return {
        kind: [
            {"name": name, "value": str(value)} for name, value in (noted.get(kind) or {}).items() if value is not None
        ]
        for kind in ("versions", "hardware")
    }


def _facts(config: TrainConfig) -> list[str]:
    width = f" of width {config.width}" if config.width else ""
    limit = f", {config.train_limit:,} examples" if config.train_limit else ""
    return [f"{config.data}{limit}", f"{config.model}{width}", f"{config.epochs} epochs"]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

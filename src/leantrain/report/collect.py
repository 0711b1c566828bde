"""What a page says: runs and comparisons read from their folders and put into the form that page.js draws."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import FLAGS
from leantrain.compare.summary import summarise
from leantrain.compare.table import comparison_cells
from leantrain.errors import LeanError
from leantrain.report.examples import single_examples
from leantrain.report.past import Array, evenly
from leantrain.report.runs import RunRecord, Series
from leantrain.run.config import FIELDS, OPERATIONAL, TrainConfig
from leantrain.run.folder import Json, RunFolder

CURVE_POINTS = 200
PARTS = {
    "selection_seconds": "selection",
    "mixing_seconds": "mixing",
    "shrinking_seconds": "shrinking",
    "scoring_seconds": "scoring",
    "learning_seconds": "learning to choose",
    "measuring_seconds": "measuring the skipped",
    "ensemble_seconds": "making scores",
    "data_seconds": "waiting for data",
}
"""What the known parts of an epoch are called; a form or method that times another one is shown under its name."""

NOT_PARTS = ("total_seconds", "eval_seconds", "split_seconds")
"""Times that are the whole, are not training, or lie inside the model's own forward pass."""

USUAL_PARTS = ("selection", "mixing", "waiting for data")
"""The parts of an epoch that are shown even where no method spent time on them."""

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
    "verdict": ("what these seeds allow us to say", lambda row: row["verdict"]),
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
    "memory": ("the most that its process held; a dash where runs shared one", "peak_memory_mb", "{:,.0f} MB"),
}


def collect(folders: Sequence[Path]) -> list[Json]:
    """What the page of these folders says: a study per comparison, and one per data set of plain runs."""
    if not folders:
        raise LeanError("there is nothing to report on; name the folder of a run or of a comparison.")
    comparisons, runs = [], []
    for folder in dict.fromkeys(folders):
        if ComparisonFolder(folder).holds_comparison:
            comparisons.append(folder)
        elif (run_folder := RunFolder(folder)).holds_run:
            runs.append(RunRecord.read(run_folder))
        elif not folder.is_dir():
            raise LeanError(f"there is no folder '{folder}'; name the folder of a run or of a comparison.")
        else:
            raise LeanError(
                f"'{folder}' holds neither a run (config.yaml) nor a comparison (compare.yaml); "
                "name a folder that leantrain train or leantrain compare wrote."
            )
    alike: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike.setdefault(str(run.made_with.get("data_fingerprint", run.config.data)), []).append(run)
    share = len(comparisons) + len(alike)
    return [
        *(_comparison(folder, share) for folder in comparisons),
        *(_plain_runs(group, share) for group in alike.values()),
    ]


# -- comparisons -------------------------------------------------------------------------------------------------------


def _comparison(folder: Path, share: int) -> Json:
    comparison = ComparisonFolder(folder)
    settings = comparison.settings()
    summary = summarise(comparison, settings)  # as it is now: compare.json is written at the end only
    entries = {entry.label: entry for entry in settings.entries()}
    series = []
    for row in summary["rows"]:
        entry = entries.get(row["label"])
        places = [comparison.run(entry, seed) for seed in summary["seeds"]] if entry else []
        runs = [RunRecord.read(place) for place in places if place.holds_run]
        budgeted = row["method"] if row["budget"] is not None else None
        series.append(Series(row["label"], row["role"], row["control_of"], runs, budgeted))
    flags = [("--methods", ",".join(settings.methods)), ("--seeds", str(settings.seeds))]
    flags += (
        [(FLAGS[settings.unit], ",".join(f"{budget:g}" for budget in settings.budgets))] if settings.budgets else []
    )
    flags += [] if settings.controls else [("--no-controls", "")]
    flags += [("--margin", f"{settings.margin:g}")] if settings.margin != 0.2 else []
    methods = [row for row in summary["rows"] if row["role"] == "method"]
    names = list(dict.fromkeys(row["method"] for row in methods)) or ["plain training"]
    seeds, config = len(summary["seeds"]), settings.config
    return {
        "kind": "comparison",
        "title": f"{_listed(names)} against plain training",
        "facts": [*_facts(config), f"{seeds} seed{'s' * (seeds != 1)}"],
        "advice": summary["advice"],
        "pooled": summary["pooled"],
        "verdicts": [_verdict(row) for row in methods],
        "failures": [{"name": name, "reason": reason} for name, reason in summary.get("failures", {}).items()],
        "about": [{"name": name, "reason": note} for name, note in summary.get("notes", {}).items()],
        "margin": summary["margin"],
        "table": _comparison_table(summary["rows"]),
        "timed": any(row["time_ratio"] is not None for row in methods),
        "unit": settings.unit,
        "by_budget": [{"method": one["method"], "answer": one["answer"]} for one in summary["curves"]],
        "points": [_point(row) for row in summary["rows"] if row["accuracy"] is not None],
        "overhead": _overhead(series, {row["label"]: row["overhead"] for row in summary["rows"]}),
        **_from_runs(series, share),
        "settings": _settings(config),
        **_made_with(series, summary["made_with"]),
        "command": command("compare", config, flags, leave_out=("method", "budget")),
    }


def _verdict(row: Json) -> Json:
    cells = dict(zip(COMPARISON_COLUMNS, comparison_cells(row), strict=True))
    return {
        "label": row["label"],
        "text": row["verdict"],
        "standing": row["standing"],
        "numbers": [
            {"name": name, "text": cells[name]}
            for name in ("accuracy", "Δ to full", "Δ to equal budget", "cost", "time")
        ],
    }


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
    ratios = ("cost_ratio", "time_ratio", "time_ratio_spread")
    names = ("label", "method", "role", "control_of", "budget", "accuracy", "accuracy_spread", *ratios)
    return {**{name: row[name] for name in names}, "n": len(row["seeds"])}


# -- plain runs --------------------------------------------------------------------------------------------------------


def _plain_runs(runs: list[RunRecord], share: int) -> Json:
    labels = _labels(runs)
    series = [Series(label, "method", None, [run]) for label, run in zip(labels, runs, strict=True)]
    first = runs[0]
    return {
        "kind": "runs",
        "title": f"{_listed(list(dict.fromkeys(str(run.config.method) for run in runs)))} on {first.config.data}",
        "facts": [*_facts(first.config), f"{len(runs)} run{'s' * (len(runs) != 1)}"],
        "advice": "",
        "pooled": [],
        "verdicts": [],
        "failures": [
            {"name": label, "reason": "not finished yet"}
            for label, run in zip(labels, runs, strict=True)
            if run.result is None
        ],
        "about": [],
        "table": _run_table(series),
        "timed": True,
        "points": [],
        "overhead": _overhead(series, {}),
        **_from_runs(series, share),
        "settings": _settings(first.config),
        **_made_with(series, {}),
        "command": "\n".join(command("train", run.config) for run in runs),
    }


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """Short names that tell the runs apart."""
    choices = (
        [str(run.config.method) for run in runs],
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
    return {
        "series": [one.described() for one in series],
        "curves": [curve for one in series if (curve := _curve(one))],
        **single_examples([one for one in series if one.role in ("baseline", "method")], share),
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

    def over_seeds(value: Callable[[RunRecord, Json], float]) -> Array:
        columns = []
        for run, rows in runs:
            progress = [row["progress"] for row in rows]
            columns.append(np.interp(at, progress, [_number(value(run, row)) for row in rows], right=np.nan))
        return np.stack(columns)

    def examples(run: RunRecord) -> float:
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
            parts = dict.fromkeys(PARTS.values(), 0.0)
            for row in rows:
                for key in row:
                    if (name := _part(key)) is not None:
                        parts[name] = parts.get(name, 0.0) + row[key] / seconds
            found.append({**one.described(), "overhead": measured.get(one.label), "parts": parts})
    spent = {name for row in found for name, share in row["parts"].items() if share or name in USUAL_PARTS}
    for row in found:
        row["parts"] = {name: row["parts"].get(name, 0.0) for name in dict.fromkeys([*PARTS.values(), *sorted(spent)])}
        row["parts"] = {name: share for name, share in row["parts"].items() if name in spent}
    return found


def _part(key: str) -> str | None:
    """The part of an epoch that a metric is the time of, whichever method of a chain reported it."""
    own = key.rpartition("/")[2]
    if not own.endswith("_seconds") or own in NOT_PARTS:
        return None
    return PARTS.get(own, own.removesuffix("_seconds").replace("_", " "))


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

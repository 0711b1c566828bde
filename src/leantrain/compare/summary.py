"""The summary of a comparison: a row per method and control, from what their runs left in the folder."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from leantrain.compare.advice import advice
from leantrain.compare.blocks import Pool, pool
from leantrain.compare.curve import curves
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import BASELINE, Entry, Settings
from leantrain.compare.verdict import OPEN, Difference, Verdict, difference, spread, verdict

FORMAT = 1
BASELINE_ENTRY = Entry(BASELINE, "baseline")


def summarise(
    folder: ComparisonFolder, settings: Settings | None = None, failures: dict[str, str] | None = None
) -> dict[str, Any]:
    """The comparison as compare.json holds it; see docs/compare.md.

    Args:
        settings: what is compared; default: what the folder says.
        failures: by row and seed, why a run failed just now.
    """
    return Summary(folder, settings or folder.settings()).content(failures or {})


class Summary:
    """Sums up the runs that are there."""

    def __init__(self, folder: ComparisonFolder, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.results: dict[Entry, dict[int, dict[str, Any]]] = {
            entry: {seed: r for seed in settings.seed_numbers() if (r := folder.run(entry, seed).result())}
            for entry in settings.entries()
        }

    def content(self, failures: dict[str, str]) -> dict[str, Any]:
        """The comparison as compare.json holds it; see docs/compare.md."""
        ratios, alike = self.time_ratios(), self.alike()
        rows = [self._row(entry, ratios, alike) for entry in self.results]
        return {
            "format": FORMAT,
            "margin": self.settings.margin,
            "seeds": list(self.settings.seed_numbers()),
            "settings": dataclasses.asdict(self.settings.config),
            "made_with": self._made_with(),
            "rows": rows,
            "pooled": sorted(alike.rows) if alike else [],
            "advice": advice(rows, self.settings.seeds),
            "curves": curves(rows, self.settings.margin, self.settings.unit),
            "notes": self._notes(rows),
            "failures": {**self._stored_failures(), **failures},
        }

    def alike(self) -> Pool | None:
        """The rows that spread alike."""
        return pool(
            {
                entry.label: {seed: result["test_accuracy"] for seed, result in own.items()}
                for entry, own in self.results.items()
            }
        )

    def difference(self, ours: Entry, theirs: Entry, alike: Pool | None) -> Difference | None:
        """Of two rows' accuracies over the seeds that both have, with what those that spread alike tell of it."""
        own, other = self.results[ours], self.results[theirs]
        seeds = sorted(own.keys() & other.keys())
        if not seeds:
            return None
        first, second = ([results[seed]["test_accuracy"] for seed in seeds] for results in (own, other))
        both = alike is not None and {ours.label, theirs.label} <= alike.rows
        return difference(first, second, own[seeds[0]]["test_examples"], alike if both else None)

    def _notes(self, rows: list[dict[str, Any]]) -> dict[str, str]:
        """By row, what its numbers do not say: what scores cost, another batch size, what the model did not take."""
        notes = {row["label"]: _about_scores(row) for row in rows if row["scores"] and row["role"] == "method"}
        own, others = self.settings.control_batch_size, self.settings.config.batch_size
        if own not in (None, others):
            controls = [row["label"] for row in rows if row["role"] == "equal-budget"]
            notes |= dict.fromkeys(controls, f"trained with batch size {own}, the others with {others}.")
        for entry, results in self.results.items():
            said = next((result["note"] for result in results.values() if result.get("note")), None)
            if said is not None:
                notes[entry.label] = " ".join(filter(None, (notes.get(entry.label), said)))
        return notes

    def _made_with(self) -> dict[str, Any]:
        """Versions and hardware of the baseline's first run; a table that is printed elsewhere keeps them."""
        return self.folder.run(BASELINE_ENTRY, self.settings.config.seed).made_with()

    def _stored_failures(self) -> dict[str, str]:
        """Failures of earlier calls that have not been fixed since."""
        stored: dict[str, str] = (self.folder.summary() or {}).get("failures", {})
        finished = {f"{entry.label}, seed {seed}" for entry, own in self.results.items() for seed in own}
        return {name: reason for name, reason in stored.items() if name not in finished}

    def _row(self, entry: Entry, ratios: dict[str, dict[int, float]], alike: Pool | None) -> dict[str, Any]:
        results = self.results
        own = results[entry]
        full = results[BASELINE_ENTRY]
        control = self.settings.control(entry)
        to_full = self.difference(entry, BASELINE_ENTRY, alike) if entry.role != "baseline" else None
        to_control = self.difference(entry, control, alike) if control and entry.role == "method" else None
        cost = _mean([own[s]["cost"] / full[s]["cost"] for s in own if s in full])
        times = list(ratios.get(entry.label, {}).values())
        time_ratio = _mean(times)
        row: dict[str, Any] = {
            "label": entry.label,
            "method": entry.method,
            "role": entry.role,
            "control_of": entry.control_of,
            "budget": entry.budget,
            "unit": entry.unit,
            "seeds": {str(seed): _kept(result) for seed, result in own.items()},
            "accuracy": _mean([r["test_accuracy"] for r in own.values()]),
            "accuracy_spread": spread([r["test_accuracy"] for r in own.values()]),
            "difference_to_full": to_full.as_json() if to_full else None,
            "difference_to_control": to_control.as_json() if to_control else None,
            "cost_epochs": _mean([r["cost_epochs"] for r in own.values()]),
            "cost_ratio": cost,
            "time_ratio": time_ratio,
            "time_ratio_spread": spread(times),
            "scores": next((result["scores"] for result in own.values() if result.get("scores")), None),
            "overhead": time_ratio / cost - 1 if time_ratio and cost else None,
            "time_to_accuracy": self._time_to_accuracy(entry, own, full, ratios),
        }
        judged = self._verdict(entry, own, to_full, to_control, cost, time_ratio)
        standing = judged.standing if entry.role == "method" else None
        return {**row, "verdict": judged.text, "standing": standing}

    def _verdict(
        self,
        entry: Entry,
        own: dict[int, dict[str, Any]],
        to_full: Difference | None,
        to_control: Difference | None,
        cost: float | None,
        time_ratio: float | None,
    ) -> Verdict:
        if entry.role != "method" or cost is None:
            return Verdict(OPEN, "full training" if entry.role == "baseline" else "")
        saved, unit = (1 - cost, "cost") if time_ratio is None else (1 - time_ratio, "time")
        epochs = next(iter(own.values()))["planned_epochs"]
        fewer = epochs * (entry.budget if entry.budget is not None and entry.unit == "time" else cost)
        instead = f"{fewer:.{0 if epochs >= 10 else 1}f} epochs instead of {epochs}"
        return verdict(to_full, to_control, saved, unit, instead, self.settings.margin)

    def time_ratios(self) -> dict[str, dict[int, float]]:
        """Per row and seed, its seconds over the baseline's, from epochs that took turns in one session alone.

        A run trained in another session has no ratio: the machine may have been another one. Where only some epochs
        were trained in it, the ratio would be of those and not of the run, so there is none either.
        """
        seconds: dict[tuple[str, int], dict[int, tuple[str, float]]] = {}
        for turn in self.folder.turns():
            epochs = seconds.setdefault((turn["row"], turn["seed"]), {})
            epochs[turn["epoch"]] = (turn["session"], turn["seconds"])
        ratios: dict[str, dict[int, float]] = {}
        if self.settings.config.compile:  # compiling falls into the first epochs of each run, and differs between them
            return ratios
        for entry, results in self.results.items():
            for seed in self.settings.seed_numbers():
                own, base = seconds.get((entry.label, seed), {}), seconds.get((BASELINE, seed), {})
                sessions = {session for session, _ in [*own.values(), *base.values()]}
                complete = all(
                    seed in found and len(turns) == found[seed]["epochs"]
                    for found, turns in ((results, own), (self.results[BASELINE_ENTRY], base))
                )
                if complete and len(sessions) == 1 and not entry.waits:
                    ratio = sum(s for _, s in own.values()) / sum(s for _, s in base.values())
                    ratios.setdefault(entry.label, {})[seed] = ratio
        return ratios

    def _time_to_accuracy(
        self,
        entry: Entry,
        own: dict[int, dict[str, Any]],
        full: dict[int, dict[str, Any]],
        ratios: dict[str, dict[int, float]],
    ) -> dict[str, Any] | None:
        """When a row first reaches the accuracy that full training ends with, as a share of full training's time."""
        if entry.role not in ("baseline", "method"):
            return None
        shares, asked = [], 0
        for seed in own.keys() & full.keys() & ratios.get(entry.label, {}).keys():
            asked += 1
            goal = full[seed]["test_accuracy"] - self.settings.margin / 100
            for row in self.folder.run(entry, seed).rows():
                if row["test_accuracy"] is not None and row["test_accuracy"] >= goal:
                    shares.append(row["total_seconds"] / own[seed]["train_seconds"] * ratios[entry.label][seed])
                    break
        return {"share": _mean(shares), "reached": len(shares), "seeds": asked} if asked else None


def _about_scores(row: dict[str, Any]) -> str:
    """What a row's cost does not say about the scores that its method pruned by."""
    scores = row["scores"]
    origin = f"made by models whose training cost {scores['cost_epochs']:.1f} epochs"
    if scores["reused"]:
        origin += ", paid elsewhere and not counted here"
    else:
        part = scores["paid"] / scores["cost"] if scores["cost"] else 1.0
        origin += ", counted here" if part == 1 else f", of which {part * scores['cost_epochs']:.1f} are counted here"
    saved = scores["saved_classes"]
    return f"its scores were {origin}." + (f" {saved} of the classes keep a single example." if saved else "")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    """Of a run's result what the table needs; the rest is in the run's own folder."""
    scores = ("test_accuracy", "macro_f1", "worst_class_accuracy")
    return {name: result[name] for name in (*scores, "cost", "cost_epochs", "train_seconds")}

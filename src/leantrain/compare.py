"""Compare: several methods side by side on one data set, each beside plain training that costs the same."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from leantrain.config import OPERATIONAL, TrainConfig
from leantrain.data import ImageSet
from leantrain.display import Display, Quiet
from leantrain.errors import LeanError
from leantrain.files import append_line, write_text
from leantrain.methods import parse_method
from leantrain.rng import derive
from leantrain.signals import Interrupted, on_stop
from leantrain.train import Run, expected_cost, load_images, read_rows, resolve, warm_up
from leantrain.verdict import Difference, difference, spread, verdict

BASELINE = "sgd"
FORMAT = 1
PHASES = (("baseline", "method"), ("equal-budget", "rs2"))
"""Which roles are trained together: a control needs to know what its method cost."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the comparison: a method, or the control of one.

    Attributes:
        method: the method trained with, options in its name. A control's options may differ from seed to seed, as it
            costs what its method really cost; then the name alone.
        role: "baseline", "method", "equal-budget" (plain training at the method's cost) or "rs2" (random subsets at
            the method's cost).
        control_of: the method that a control belongs to.
    """

    method: str
    role: str
    control_of: str | None = None

    @property
    def label(self) -> str:
        what = {"equal-budget": "plain, equal budget", "rs2": "RS2, equal budget"}
        return self.method if self.control_of is None else f"{what[self.role]} ({self.control_of})"

    @property
    def folder(self) -> str:
        name = self.method if self.control_of is None else f"{self.control_of}--{self.role}"
        plain = "".join(c if c.isalnum() or c in "-_.=,[]" else "_" for c in name)
        # A method may name a file, whose path may be long, or differ from another one in a "/" only.
        return plain if plain == name and len(name) < 100 else f"{plain[:100]}-{derive(0, name):016x}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared: the settings of every run, the methods, the seeds, and whether controls are added."""

    config: TrainConfig
    methods: tuple[str, ...]
    seeds: int
    controls: bool = True
    margin: float = 0.2

    def entries(self) -> list[Entry]:
        """All rows: the baseline first, then each method with its controls."""
        rows = [Entry(BASELINE, "baseline")]
        for method in self.methods:
            if method == BASELINE:
                continue
            rows.append(Entry(method, "method"))
            if self.controls:
                rows.append(Entry(BASELINE, "equal-budget", method))
                if not method.startswith("rs2"):
                    rows.append(Entry("rs2", "rs2", method))
        return rows

    def seed_numbers(self) -> range:
        return range(self.config.seed, self.config.seed + self.seeds)


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a comma-separated list, in canonical spelling; commas inside brackets separate options."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    names = tuple(dict.fromkeys(str(parse_method(part)) for part in parts if part.strip()))
    if not names:
        raise LeanError(f"--methods is '{text}', but must name at least one method; see `leantrain methods`.")
    return names


class Comparison:
    """A comparison in a folder: trains what is missing, seed by seed, and sums up what is there.

    Args:
        settings: what is compared.
        out: the folder.
        display: what the user sees.
    """

    def __init__(self, settings: Settings, out: Path, display: Display | None = None) -> None:
        self.settings = settings
        self.out = out
        self.display: Display = display or Quiet()
        self.failures: dict[str, str] = {}
        self._session = uuid.uuid4().hex[:8]
        self._running: Run | None = None
        self._stop_signal = 0
        self._done = 0.0  # share of the whole table

    # -- training ----------------------------------------------------------------------------------------------------

    def train(self, jobs: int = 1) -> None:
        """Train every missing run. One failing is noted in its row and the others go on."""
        self.write_settings()
        self.display.start(1, 0.0)
        try:
            with on_stop(self._stop):
                if jobs > 1:
                    self._train_in_processes(jobs)
                else:
                    for seed in self.settings.seed_numbers():
                        self._train_seed(seed)
        finally:
            self.display.stop()

    def _train_seed(self, seed: int) -> None:
        """Methods take turns, an epoch each, so that a slow minute of the machine falls on all alike."""
        entries = self.settings.entries()
        config = dataclasses.replace(self.settings.config, seed=seed)
        images = load_images(config)
        for phase in PHASES:
            turns = [(e, run) for e in entries if e.role in phase and (run := self._open(e, config, images))]
            while turns:
                for entry, run in list(turns):
                    if not self._turn(entry, run):
                        turns.remove((entry, run))

    def _open(self, entry: Entry, config: TrainConfig, images: ImageSet) -> Run | None:
        """The run of one row and seed, where it stopped; None where it is finished or cannot be."""
        folder = self.folder(entry, config.seed)
        if (folder / "result.json").exists():
            self._advance(1.0)
            return None
        try:
            wanted = self._config_of(entry, config)
            if wanted is None:
                return None
            run = Run(resolve(dataclasses.replace(wanted, out=str(folder)), images), images, folder)
            if not run.load_checkpoint():
                run.write_config()
            warm_up(run)
            self._leave_if_asked()
            return run
        except Interrupted:
            raise
        except Exception as error:
            self._fail(entry, config.seed, error)
            return None

    def _config_of(self, entry: Entry, config: TrainConfig) -> TrainConfig | None:
        """A run's settings; a control's follow from what its method cost with that seed."""
        if entry.control_of is None:
            return dataclasses.replace(config, method=entry.method)
        method = next(e for e in self.settings.entries() if e.method == entry.control_of and e.role == "method")
        result = self.result(method, config.seed)
        if result is None:  # it failed, and so has nothing to be compared with
            return None
        share = result["cost_epochs"] / result["planned_epochs"]
        if entry.role == "equal-budget":
            return dataclasses.replace(config, method=BASELINE, budget=round(share, 6))
        if share >= 1.0:
            return None
        return dataclasses.replace(config, method=f"rs2[keep={share:.6f}]")

    def _turn(self, entry: Entry, run: Run) -> bool:
        """Train one epoch of one run; says whether there is more to train."""
        self._running = run
        whole = run.lean.position == 0 or run.lean.epoch_done
        before = run.lean.progress
        try:
            if not run.finished:
                row = run.train_epoch()
                if whole:  # an epoch cut by a stop was not trained in one go
                    self._note_turn(entry, run.config.seed, row)
            self._advance(run.lean.progress - before)
            if run.finished:
                result = run.write_result()
                self.display.note(
                    f"{entry.label}, seed {run.config.seed}: {result['test_accuracy']:.2%} "
                    f"at a cost of {result['cost_epochs']:.1f} epochs"
                )
        except Interrupted:
            raise
        except Exception as error:
            self._fail(entry, run.config.seed, error)
            return False
        finally:
            self._running = None
        self._leave_if_asked()
        return not run.finished

    def _note_turn(self, entry: Entry, seed: int, row: dict[str, Any]) -> None:
        turn = {"session": self._session, "row": entry.label, "seed": seed}
        turn |= {name: row[name] for name in ("epoch", "seconds")}
        append_line(self.out / "turns.jsonl", json.dumps(turn))

    def _fail(self, entry: Entry, seed: int, error: Exception) -> None:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        self.failures[f"{entry.label}, seed {seed}"] = reason
        self.display.note(f"{entry.label}, seed {seed} failed: {reason}")

    def _stop(self, number: int) -> None:
        """A signal lets the run at hand save itself, then ends the comparison."""
        self._stop_signal = number
        if self._running is not None:
            self._running.stop(number)

    def _leave_if_asked(self) -> None:
        if self._stop_signal:
            raise Interrupted(self._stop_signal)

    def _advance(self, share: float) -> None:
        """One run's share of the whole table."""
        total = len(self.settings.entries()) * self.settings.seeds
        self._done += share / total
        self.display.step(0, min(1.0, self._done))

    def _train_in_processes(self, jobs: int) -> None:
        """Several runs at once, each in a process of its own; for accuracies only, as they slow each other down."""
        # Through the environment: the number of threads is not among a run's settings, and may differ on resume.
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ}
        for phase in PHASES:
            waiting = [
                (entry, seed)
                for seed in self.settings.seed_numbers()
                for entry in self.settings.entries()
                if entry.role in phase
            ]
            running: dict[subprocess.Popen[bytes], tuple[Entry, int]] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < jobs:
                        entry, seed = waiting.pop(0)
                        process = self._spawn(entry, seed, environment)
                        if process is not None:
                            running[process] = (entry, seed)
                    for process in [p for p in running if p.poll() is not None]:
                        self._collect(process, *running.pop(process))
                    self._leave_if_asked()
                    time.sleep(0.1)
            finally:
                for process in running:
                    process.terminate()  # it saves a checkpoint and leaves
                for process in running:
                    process.wait()

    def _spawn(self, entry: Entry, seed: int, environment: dict[str, str]) -> subprocess.Popen[bytes] | None:
        folder = self.folder(entry, seed)
        if (folder / "result.json").exists():
            self._advance(1.0)
            return None
        config = self._config_of(entry, dataclasses.replace(self.settings.config, seed=seed))
        if config is None:
            return None
        settings = dataclasses.asdict(dataclasses.replace(config, out=str(folder)))
        file = self.out / "settings" / f"{entry.folder}-seed{seed}.yaml"
        write_text(file, yaml.safe_dump({name: value for name, value in settings.items() if value is not None}))
        resume = ["--resume"] if (folder / "config.yaml").exists() else []
        command = [sys.executable, "-m", "leantrain", "train", "--config", str(file), *resume]
        with open(self._log(entry, seed), "wb") as log:  # a pipe would fill up and stop it
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)

    def _log(self, entry: Entry, seed: int) -> Path:
        return self.out / "settings" / f"{entry.folder}-seed{seed}.log"

    def _collect(self, process: subprocess.Popen[bytes], entry: Entry, seed: int) -> None:
        self._advance(1.0)
        if process.returncode in (130, 143):
            raise Interrupted(process.returncode - 128)
        if process.returncode:
            said = self._log(entry, seed).read_text(errors="replace").strip()
            self._fail(entry, seed, RuntimeError(said or f"it ended with code {process.returncode}"))
        else:
            result = self.result(entry, seed)
            assert result is not None
            self.display.note(f"{entry.label}, seed {seed}: {result['test_accuracy']:.2%}")

    # -- what is there -----------------------------------------------------------------------------------------------

    def folder(self, entry: Entry, seed: int) -> Path:
        return self.out / "runs" / entry.folder / f"seed-{seed}"

    def result(self, entry: Entry, seed: int) -> dict[str, Any] | None:
        file = self.folder(entry, seed) / "result.json"
        if not file.exists():
            return None
        result: dict[str, Any] = json.loads(file.read_text())
        return result

    def write_settings(self) -> None:
        settings = self.settings
        content = {
            "methods": list(settings.methods),
            "seeds": settings.seeds,
            "controls": settings.controls,
            "margin": settings.margin,
            "train": dataclasses.asdict(settings.config),
        }
        write_text(self.out / "compare.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def summary(self) -> dict[str, Any]:
        """The comparison as compare.json holds it; see docs/compare.md."""
        entries = self.settings.entries()
        results = {e: {s: r for s in self.settings.seed_numbers() if (r := self.result(e, s))} for e in entries}
        ratios = self._time_ratios(entries)
        rows = [self._row(entry, results, ratios) for entry in entries]
        return {
            "format": FORMAT,
            "margin": self.settings.margin,
            "seeds": list(self.settings.seed_numbers()),
            "settings": dataclasses.asdict(self.settings.config),
            "made_with": self._made_with(),
            "rows": rows,
            "notes": {row["label"]: _about_scores(row) for row in rows if row["scores"] and row["role"] == "method"},
            "failures": {**self._stored_failures(), **self.failures},
        }

    def _made_with(self) -> dict[str, Any]:
        """Versions and hardware of the baseline's first run; a table that is printed elsewhere keeps them."""
        first = self.folder(Entry(BASELINE, "baseline"), self.settings.config.seed) / "config.yaml"
        content = yaml.safe_load(first.read_text()) if first.exists() else {}
        made_with: dict[str, Any] = content.get("made_with", {})
        return made_with

    def write_summary(self) -> dict[str, Any]:
        summary = self.summary()
        write_text(self.out / "compare.json", json.dumps(summary, indent=2) + "\n")
        return summary

    def _stored_failures(self) -> dict[str, str]:
        """Failures of earlier calls that have not been mended since."""
        file = self.out / "compare.json"
        if not file.exists():
            return {}
        stored: dict[str, str] = json.loads(file.read_text()).get("failures", {})
        pairs = [(e, s) for e in self.settings.entries() for s in self.settings.seed_numbers()]
        finished = {f"{e.label}, seed {s}" for e, s in pairs if self.result(e, s)}
        return {name: reason for name, reason in stored.items() if name not in finished}

    def _row(
        self, entry: Entry, results: dict[Entry, dict[int, dict[str, Any]]], ratios: dict[str, dict[int, float]]
    ) -> dict[str, Any]:
        own = results[entry]
        full = results[next(e for e in results if e.role == "baseline")]
        control = next((e for e in results if e.role == "equal-budget" and e.control_of == entry.method), None)
        to_full = _difference(own, full) if entry.role != "baseline" else None
        to_control = _difference(own, results[control]) if control and entry.role == "method" else None
        cost = _mean([own[s]["cost"] / full[s]["cost"] for s in own if s in full])
        times = list(ratios.get(entry.label, {}).values())
        time_ratio = _mean(times)
        row: dict[str, Any] = {
            "label": entry.label,
            "method": entry.method,
            "role": entry.role,
            "control_of": entry.control_of,
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
        if entry.role == "method" and cost is not None:
            saved, unit = (1 - cost, "cost") if time_ratio is None else (1 - time_ratio, "time")
            epochs = next(iter(own.values()))["planned_epochs"]
            instead = f"{cost * epochs:.{0 if epochs >= 10 else 1}f} epochs instead of {epochs}"
            row["verdict"] = verdict(to_full, to_control, saved, unit, instead, self.settings.margin)
        else:
            row["verdict"] = {"baseline": "full training"}.get(entry.role, "")
        return row

    def _time_ratios(self, entries: Sequence[Entry]) -> dict[str, dict[int, float]]:
        """Per row and seed, its seconds over the baseline's, from epochs that took turns in one session alone.

        A run trained in another session has no ratio: the machine may have been another one. Where only some epochs
        took turns with the baseline's, the ratio would be of those and not of the run, so there is none either.
        """
        seconds: dict[tuple[str, int], dict[int, tuple[str, float]]] = {}
        for turn in read_rows(self.out / "turns.jsonl"):
            epochs = seconds.setdefault((turn["row"], turn["seed"]), {})
            epochs[turn["epoch"]] = (turn["session"], turn["seconds"])
        ratios: dict[str, dict[int, float]] = {}
        if self.settings.config.compile:  # compiling falls into the first epochs of each run, and differs between them
            return ratios
        for entry in entries:
            for seed in self.settings.seed_numbers():
                own, base = seconds.get((entry.label, seed), {}), seconds.get((BASELINE, seed), {})
                sessions = {session for session, _ in [*own.values(), *base.values()]}
                result = self.result(entry, seed)
                complete = result is not None and len(own) == result["epochs"] == len(base)
                if complete and len(sessions) == 1 and entry.role in ("baseline", "method"):
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
            for row in read_rows(self.folder(entry, seed) / "metrics.jsonl"):
                if row["test_accuracy"] is not None and row["test_accuracy"] >= goal:
                    shares.append(row["total_seconds"] / own[seed]["train_seconds"] * ratios[entry.label][seed])
                    break
        return {"share": _mean(shares), "reached": len(shares), "seeds": asked} if asked else None


def load_comparison(out: Path) -> Comparison:
    """The comparison that a folder holds."""
    file = out / "compare.yaml"
    if not file.exists():
        raise LeanError(f"there is no comparison in '{out}'; make one with `leantrain compare --out {out}`.")
    try:
        content = yaml.safe_load(file.read_text())
        settings = Settings(
            TrainConfig(**content["train"]),
            tuple(content["methods"]),
            content["seeds"],
            content["controls"],
            content["margin"],
        )
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise LeanError(f"'{file}' cannot be read ({error}); remove it to start anew.") from None
    return Comparison(settings, out)


def check_same(stored: TrainConfig, now: TrainConfig, given: Sequence[str]) -> None:
    """Refuse to mix runs of different settings in one table."""
    for name in given:
        if name not in OPERATIONAL and getattr(stored, name) != getattr(now, name):
            flag = "--" + name.replace("_", "-")
            raise LeanError(
                f"{flag} is {getattr(now, name)}, but the comparison was started with {getattr(stored, name)}; "
                f"drop {flag}, or choose another --out."
            )


def expected_total(settings: Settings, examples: int, side: int) -> float:
    """About what the whole table costs, in epochs of plain training."""
    total = 0.0
    for entry in settings.entries():
        method = entry.control_of or entry.method
        total += expected_cost(dataclasses.replace(settings.config, method=method), examples, side)
    return total * settings.seeds


def _difference(own: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> Difference | None:
    seeds = sorted(own.keys() & other.keys())
    if not seeds:
        return None
    ours, theirs = ([results[s]["test_accuracy"] for s in seeds] for results in (own, other))
    return difference(ours, theirs, own[seeds[0]]["test_examples"])


def _about_scores(row: dict[str, Any]) -> str:
    """What a row's cost does not tell of the scores that its method pruned by."""
    scores = row["scores"]
    told = f"made by models whose training cost {scores['cost_epochs']:.1f} epochs"
    told += ", paid elsewhere and not counted here" if scores["reused"] else ", counted here"
    saved = scores["saved_classes"]
    return f"its scores were {told}." + (f" {saved} of the classes keep a single example." if saved else "")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    """Of a run's result what the table needs; the rest is in the run's own folder."""
    scores = ("test_accuracy", "macro_f1", "worst_class_accuracy")
    return {name: result[name] for name in (*scores, "cost", "cost_epochs", "train_seconds")}

"""Training the tables of the papers: each part is a comparison, so that every row has its equal-budget control."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leantrain.bench.markdown import UNKNOWN, table
from leantrain.bench.papers import SCALES, TABLES, Part, Row, Table
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import Settings, expected_total
from leantrain.compare.summary import summarise
from leantrain.compare.training import Training
from leantrain.compare.verdict import Difference
from leantrain.errors import LeanError, nearest
from leantrain.files import write_text
from leantrain.inspect import figures
from leantrain.inspect.record import Record, runtime
from leantrain.inspect.score_figures import gallery, overlap, write
from leantrain.methods import parse_method
from leantrain.run.config import TrainConfig
from leantrain.run.display import Display
from leantrain.run.scores import from_run, score_images
from leantrain.run.setup import load_images, resolve
from leantrain.scoring import combined, compare_scores

SEEDS = {"tiny": 1, "cpu": 3, "full": 3}
SCORING_SEED = 100  # of the models that make EL2N scores, none of which is trained in a row
ENSEMBLE = {"tiny": (1, 1), "cpu": (3, 2), "full": (10, 20)}  # models and their epochs; the last are Paul et al.'s
OTHER_MODEL = {"tiny": ("resnet20", 2), "cpu": ("resnet20", 8), "full": ("torchvision/googlenet", None)}
ACCELERATORS = "003-table1"
CPU_RATES = {"resnet8-8": 1180, "resnet8-16": 530, "resnet20-8": 560, "mobilenetv2_035": 125, "test_vit": 330}
"""Examples a second, forward and backward, on one thread of an AMD EPYC (AVX2, fp32, 32 px, batch 32)."""


def find(name: str) -> Table:
    """The table of that name."""
    if name == ACCELERATORS:
        raise LeanError(f"{name} is made by `leantrain bench accelerators --model … --data …`.")
    if name not in TABLES:
        raise LeanError(f"there is no table '{name}'.{nearest(name, TABLES)} `bench tables --list` names all.")
    return TABLES[name]


def listing(scale: str) -> str:
    """Every table, with the data and about the time that it needs at a scale."""
    rows = []
    for one in TABLES.values():
        parts = [part for part in one.parts if scale in part.settings]
        data = ", ".join(dict.fromkeys(str(part.settings[scale]["data"]) for part in parts))
        rows.append([one.name, one.title, str(len(parts)), data, _time(parts, scale)])
    command = "Accelerators: `leantrain bench accelerators --model … --data …`"
    rows.append([ACCELERATORS, command, "3", "cifar10, cifar100", ""])
    return table(("table", "what it shows", "networks", "data", f"about, at --scale {scale}"), rows, words=2)


def _time(parts: Sequence[Part], scale: str) -> str:
    """A guess at the time on one CPU thread; of the papers' scale only what it costs."""
    seconds, epochs = 0.0, 0.0
    for part in parts:
        config = TrainConfig(**part.settings[scale])
        methods, _ = registered(part.rows)
        settings = Settings(config, tuple(row.method.format(scores="x.npz") for row in methods), SEEDS[scale])
        part_epochs = expected_total(settings, config.train_limit or 50_000, 32)
        epochs += part_epochs
        rate = CPU_RATES.get(f"{config.model}-{config.width}", CPU_RATES.get(str(config.model), 0))
        seconds += part_epochs * (config.train_limit or 0) / rate if rate else 0.0
    if scale == "full":
        return f"{epochs:,.0f} epochs"
    return f"{math.ceil(seconds / 60)} min" if seconds else "seconds"


def registered(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows whose method is there, and a sentence for each that is not."""
    there, missing = [], []
    for row in rows:
        try:
            parse_method(row.method)
            there.append(row)
        except LeanError as error:
            missing.append(f"{row.label} (`{row.method}`) is left out: {str(error).split(';')[0]}")
    return there, missing


class TableRun:
    """One table at one scale, in a folder of its own; what is finished there is not trained again.

    Args:
        changes: settings of the user's that go before the scale's.
    """

    def __init__(
        self, what: Table, scale: str, out: Path, display: Display, seeds: int | None = None, **changes: Any
    ) -> None:
        if scale not in SCALES:
            raise LeanError(f"--scale is '{scale}', but must be one of {', '.join(SCALES)}.")
        self.table, self.scale, self.out, self.display = what, scale, out / scale / what.name, display
        self.seeds, self.changes = seeds or SEEDS[scale], changes

    def train(self) -> None:
        """Train what is missing of every part that this scale has."""
        for part in self.table.parts:
            if self.scale in part.settings:
                self._train_part(part)
        write_text(self.out / "table.md", self.markdown() + "\n")

    def _train_part(self, part: Part) -> None:
        config = TrainConfig(**{**part.settings[self.scale], **self.changes, "out": None})
        images = load_images(config)
        config = resolve(config, images)
        scores = self._scores(part, config, images)
        rows, _ = registered(part.rows)
        methods = tuple(str(parse_method(row.method.format(scores=scores))) for row in rows)
        settings = Settings(config, methods, self.seeds)
        folder = ComparisonFolder(self.out / part.name)
        if folder.holds_comparison:
            _check_same(folder, settings)
        self.display.note(f"{self.table.name}, {part.heading}: at most {self._epochs(settings, images):,.0f} epochs")
        training = Training(settings, folder, self.display)
        try:
            training.train()
        finally:
            folder.write_summary(summarise(folder, settings, training.failures))
        if self.table.figures == "scores":
            self._draw_scores(part, config, images)
        if self.table.figures == "runtime":
            self._draw_runtime(folder)

    def _epochs(self, settings: Settings, images: Any) -> float:
        return expected_total(settings, len(images.train), images.image_size)

    def _scores(self, part: Part, config: TrainConfig, images: Any) -> Path:
        """EL2N scores for the rows that prune by them, made once."""
        file = self.out / f"{part.name}-el2n.npz"
        if not file.exists() and (self.table.figures == "scores" or any("{scores}" in row.method for row in part.rows)):
            self.display.note("making EL2N scores")
            own = dataclasses.replace(config, seed=SCORING_SEED)
            models, epochs = ENSEMBLE[self.scale]
            made = score_images(own, images, "el2n", models=models, epochs=epochs)
            file.parent.mkdir(parents=True, exist_ok=True)
            made.save(file)
        return file

    def _draw_runtime(self, folder: ComparisonFolder) -> None:
        """002's Fig. 14: what the epochs of the methods cost, side by side, with the first seed."""
        settings, found = folder.settings(), {}
        for entry in settings.entries():
            run = folder.run(entry, settings.config.seed)
            if entry.role == "method" and run.finished:
                found[entry.label] = runtime(Record.read(run))
        if found:
            write(figures.runtime(found), self.out / "fig14.png")

    def _draw_scores(self, part: Part, config: TrainConfig, images: Any) -> None:
        """004's figures c to f."""
        from leantrain.scoring import load

        own, file = load(self._scores(part, config, images)), self.out / "other-el2n.npz"
        if not file.exists():
            model, width = OTHER_MODEL[self.scale]
            second = dataclasses.replace(config, model=model, width=width, seed=SCORING_SEED)
            models, epochs = ENSEMBLE[self.scale]
            score_images(second, images, "el2n", models=models, epochs=epochs).save(file)
        folder = ComparisonFolder(self.out / part.name)
        entry = next(one for one in folder.settings().entries() if one.role == "method")
        use = from_run(folder.run(entry, config.seed).path, images)
        write(overlap(compare_scores(own, load(file))), self.out / "c.png")
        write(overlap(compare_scores(own, use)), self.out / "d.png")
        write(gallery(own, images), self.out / "e.png")
        write(gallery(combined(own, use), images), self.out / "f.png")

    # -- what came of it ---------------------------------------------------------------------------------------------

    def markdown(self) -> str:
        """The table with the paper's numbers beside ours, as far as it is trained."""
        lines = [f"## {self.table.name}: {self.table.title} — scale {self.scale}"]
        lines += [self.table.note, ""] if self.table.note else [""]
        for part in self.table.parts:
            if self.scale not in part.settings:
                lines += [f"**{part.heading}** is left out at this scale: {part.note}.", ""]
                continue
            lines += [*self._part(part), ""]
        lines += [f"![{name}]({name}.png)" for name in ("fig14", *"cdef") if (self.out / f"{name}.png").exists()]
        return "\n".join(lines).rstrip()

    def _part(self, part: Part) -> list[str]:
        folder = ComparisonFolder(self.out / part.name)
        summary = folder.summary()
        if summary is None:
            return [f"**{part.heading}**: not trained yet."]
        own, missing = registered(part.rows)
        scores = self.out / f"{part.name}-el2n.npz"
        found = {row["label"]: row for row in summary["rows"]}
        controls = {row["control_of"]: row for row in summary["rows"] if row["role"] == "equal-budget"}
        rows = []
        for row in part.rows:
            method = str(parse_method(row.method.format(scores=scores))) if row in own else None
            paper = [*row.paper, *[""] * (len(self.table.columns) - len(row.paper))]
            rows.append([row.label, *paper, *_ours(found.get(method or ""), controls.get(method or ""))])
        header = ["", *(f"paper: {name}" for name in self.table.columns), *OURS]
        heading = f"**{part.heading}**; ours: {_described(summary)}"
        notes = [part.note] if part.note else []
        failed = [f"{name} failed: {reason}" for name, reason in summary["failures"].items()]
        return [heading, "", table(header, rows), "", *(f"- {text}" for text in [*notes, *missing, *failed])]


OURS = ("ours: error, %", "cost", "speed-up", "plain at that cost: error, %", "Δ accuracy to it, points")


def _ours(row: dict[str, Any] | None, control: dict[str, Any] | None) -> list[str]:
    """Our numbers of a row, and its control's; dashes where it is not trained."""
    if row is None or row["accuracy"] is None:
        return [UNKNOWN] * len(OURS)
    time, delta = row["time_ratio"], row["difference_to_control"]
    is_baseline = row["role"] == "baseline"
    return [
        _error(row),
        f"{row['cost_ratio']:.2f}×",
        "1x" if is_baseline else UNKNOWN if time is None else f"{1 / time:.2f}x",
        "" if is_baseline else UNKNOWN if control is None or control["accuracy"] is None else _error(control),
        "" if is_baseline else UNKNOWN if delta is None else Difference.from_json(delta).text(),
    ]


def _error(row: dict[str, Any]) -> str:
    spread = row["accuracy_spread"]
    return f"{100 * (1 - row['accuracy']):.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def _described(summary: dict[str, Any]) -> str:
    """What was trained: data, model, epochs, seeds and hardware."""
    config, seeds = summary["settings"], len(summary["seeds"])
    width = f" of width {config['width']}" if config["width"] else ""
    images = "all" if config["train_limit"] is None else f"{config['train_limit']:,}"
    cpu = summary["made_with"].get("hardware", {}).get("cpu", "unknown hardware")
    return (
        f"{config['model']}{width} on {config['data']}, {images} images, {config['epochs']} epochs, batch "
        f"{config['batch_size']}, {seeds} seed{'s' * (seeds > 1)}, {config['precision']}, {cpu}"
    )


def _check_same(folder: ComparisonFolder, settings: Settings) -> None:
    """Refuse to mix runs of different settings in one table; more methods and seeds may be added."""
    stored = dataclasses.asdict(folder.settings().config)
    for name, value in dataclasses.asdict(settings.config).items():
        if name not in ("out", "workers") and stored[name] != value:
            raise LeanError(
                f"'{folder}' was started with {name} {stored[name]}, and this is {value}; choose another --out."
            )

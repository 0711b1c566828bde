"""Training the tables of the papers: their rows are those of comparisons, so that each has its equal-budget control."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leantrain.bench.markdown import UNKNOWN, table
from leantrain.bench.papers import SCALES, TABLES, Part, Row, Table
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import Settings, expected_total
from leantrain.compare.summary import summarise
from leantrain.compare.training import Training
from leantrain.compare.verdict import Difference
from leantrain.data import ImageSet
from leantrain.errors import LeanError, nearest
from leantrain.files import write_text
from leantrain.inspect import figures
from leantrain.inspect.record import Record, runtime
from leantrain.inspect.score_figures import gallery, overlap, write
from leantrain.methods import parse_method
from leantrain.run.config import OPERATIONAL, TrainConfig
from leantrain.run.display import Display
from leantrain.run.folder import RunFolder
from leantrain.run.lock import locked
from leantrain.run.scores import from_run, score_images
from leantrain.run.setup import default_epochs, load_images, resolve
from leantrain.scoring import combined, compare_scores, load

SEEDS = {"tiny": 1, "cpu": 3, "full": 3}
SCORING_SEED = 100  # of the models that make EL2N scores, none of which is trained in a row
ENSEMBLE = {"tiny": (1, 1), "cpu": (3, 2), "full": (10, 20)}  # models and their epochs; the last are Paul et al.'s
OTHER_MODEL = {"tiny": ("resnet20", 2), "cpu": ("resnet20", 8), "full": ("torchvision/googlenet", None)}
ACCELERATORS = "003-table1"
ALL = "all"
NOT_TRAINED = "not trained yet."
CPU_RATES = {"resnet8-8": 1180, "resnet20-8": 560, "mobilenetv2_035": 125, "test_vit": 330}
"""Examples a second, forward and backward, on one thread of an AMD EPYC (AVX2, fp32, 32 px, batch 32)."""


def choose(names: Sequence[str], network: str | None = None) -> list[Table]:
    """The tables of those names, each once; of one network only, where its name or a part of it is given."""
    found = {one.name: one for name in names for one in (TABLES.values() if name == ALL else [_find(name)])}
    if network is None:
        return list(found.values())
    chosen = {
        name: tuple(part for part in one.parts if network.lower() in part.heading.lower())
        for name, one in found.items()
    }
    if not any(chosen.values()):
        known = dict.fromkeys(part.heading for one in found.values() for part in one.parts)
        raise LeanError(f"no network of these tables is called '{network}'; they have: {'; '.join(known)}.")
    return [dataclasses.replace(found[name], parts=parts) for name, parts in chosen.items() if parts]


def _find(name: str) -> Table:
    if name == ACCELERATORS:
        raise LeanError(f"{name} is made by `leantrain bench accelerators --model … --data …`.")
    if name not in TABLES:
        raise LeanError(f"there is no table '{name}'.{nearest(name, TABLES)} `bench tables --list` names all.")
    return TABLES[name]


def listing(scale: str) -> str:
    """Every table, with the data and about the time that it needs at a scale."""
    rows = []
    for one in TABLES.values():
        groups = grouped([one], scale)
        data = ", ".join(dict.fromkeys(str(group.settings["data"]) for group in groups))
        rows.append([one.name, one.title, str(len(groups)), data, _time([one], scale)])
    shared = grouped(TABLES.values(), scale)
    together = "every table but 003's; rows that several have are trained once"
    rows.append([ALL, together, str(len(shared)), "all of these", _time(TABLES.values(), scale)])
    command = "Accelerators: `leantrain bench accelerators --model … --data …`"
    rows.append([ACCELERATORS, command, "3", "cifar10, cifar100", ""])
    return table(("table", "what it shows", "networks", "data", f"about, at --scale {scale}"), rows, words=2)


def _time(tables: Iterable[Table], scale: str) -> str:
    """A guess at the time on one CPU thread; of the papers' scale only what it costs."""
    seconds, epochs = 0.0, 0.0
    for group in grouped(tables, scale):
        config = TrainConfig(**{"epochs": default_epochs(50_000), "batch_size": 128, **group.settings})
        settings = Settings(config, group.methods(Path("x.npz")), SEEDS[scale], rs2=False)
        group_epochs = expected_total(
            settings, min(2_000, config.train_limit or 2_000), 32
        )  # a share, whatever there is
        epochs += group_epochs
        rate = CPU_RATES.get(f"{config.model}-{config.width}", CPU_RATES.get(str(config.model), 0))
        seconds += group_epochs * (config.train_limit or 0) / rate if rate else 0.0
    if scale == "full":
        return f"{epochs:,.0f} epochs"
    return f"{math.ceil(seconds / 60)} min" if seconds else "seconds"


@dataclasses.dataclass(frozen=True)
class Group:
    """Parts of the chosen tables that have the same settings at the scale: one comparison."""

    name: str
    parts: tuple[Part, ...]
    settings: Mapping[str, Any]

    def methods(self, scores: Path) -> tuple[str, ...]:
        """The methods of all its rows, each once."""
        rows = [row for part in self.parts for row in registered(part.rows)[0]]
        return tuple(dict.fromkeys(_method(row, scores) for row in rows))


def grouped(tables: Iterable[Table], scale: str) -> list[Group]:
    """The comparisons that tables need at a scale."""
    parts: dict[str, list[Part]] = {}
    for one in tables:
        for part in one.parts:
            if scale in part.settings:
                parts.setdefault(part.comparison(scale), []).append(part)
    return [Group(name, tuple(own), own[0].settings[scale]) for name, own in parts.items()]


def _method(row: Row, scores: Path) -> str:
    return str(parse_method(row.method.format(scores=scores)))


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


class Tables:
    """Tables at one scale. What is finished in the folder is not trained again, whichever table it was trained for.

    Args:
        chosen: the tables to train.
        out: holds a folder per scale, and this one a folder per comparison and per table.
        changes: settings of the user's that go before the scale's.
    """

    def __init__(
        self, chosen: Sequence[Table], scale: str, out: Path, display: Display, seeds: int | None = None, **changes: Any
    ) -> None:
        if scale not in SCALES:
            raise LeanError(f"--scale is '{scale}', but must be one of {', '.join(SCALES)}.")
        self.chosen, self.scale, self.out, self.display = chosen, scale, out / scale, display
        self.seeds, self.changes = seeds or SEEDS[scale], changes

    def train(self) -> None:
        """Train what is missing, all rows of a comparison in turns; then draw and write the tables."""
        try:
            for group in grouped(self.chosen, self.scale):
                self._train_group(group)
            for one in self.chosen:
                for part in one.parts:
                    if self.scale in part.settings:
                        self._draw(one, part)
        finally:
            for one in filter(self.is_begun, self.chosen):
                write_text(self.out / one.name / "table.md", self.markdown(TABLES[one.name]) + "\n")

    def is_begun(self, one: Table) -> bool:
        """Whether there is anything to show of a table."""
        there = (part for part in one.parts if self.scale in part.settings)
        return any(self._folder(part).summary_file.exists() for part in there)

    def _folder(self, part: Part) -> ComparisonFolder:
        return ComparisonFolder(self.out / part.comparison(self.scale))

    def _train_group(self, group: Group) -> None:
        folder = ComparisonFolder(self.out / group.name)
        with locked(folder.path):
            config, images = self._config(group.settings)
            methods = group.methods(self._scores(folder, config, images, group.parts))
            settings = Settings(config, methods, self.seeds, rs2=False)
            whole = _joined(folder, settings) if folder.holds_comparison else settings
            epochs = expected_total(settings, len(images.train), images.image_size)
            self.display.note(f"{group.name}, {len(settings.methods)} methods: at most {epochs:,.0f} epochs")
            training = Training(settings, folder, self.display, whole)
            try:
                training.train()
            finally:
                folder.write_summary(summarise(folder, whole, training.failures))

    def _config(self, settings: Mapping[str, Any]) -> tuple[TrainConfig, ImageSet]:
        config = TrainConfig(**{**settings, **self.changes, "out": None})
        images = load_images(config)
        return resolve(config, images), images

    def _scores(
        self, folder: ComparisonFolder, config: TrainConfig, images: ImageSet, parts: Sequence[Part] = ()
    ) -> Path:
        """EL2N scores for the rows that prune by them, made once; without parts, in any case."""
        file = folder.path / "el2n.npz"
        wanted = not parts or any("{scores}" in row.method for part in parts for row in part.rows)
        if wanted and not file.exists():
            self.display.note("making EL2N scores")
            self._make_scores(file, config, images)
        return file

    def _make_scores(self, file: Path, config: TrainConfig, images: ImageSet) -> None:
        models, epochs = ENSEMBLE[self.scale]
        own = dataclasses.replace(config, seed=SCORING_SEED)
        file.parent.mkdir(parents=True, exist_ok=True)
        score_images(own, images, "el2n", models=models, epochs=epochs).save(file)

    # -- pictures ----------------------------------------------------------------------------------------------------

    def _draw(self, one: Table, part: Part) -> None:
        if one.figures == "runtime":
            self._draw_runtime(one, part)
        if one.figures == "scores":
            self._draw_scores(one, part)

    def _runs(self, part: Part) -> Iterator[tuple[Row, RunFolder]]:
        """A part's rows beside its baseline, each with the run of the first seed."""
        folder = self._folder(part)
        settings = folder.settings()
        entries = {entry.label: entry for entry in settings.entries() if entry.role == "method"}
        for row in registered(part.rows)[0][1:]:
            yield row, folder.run(entries[_method(row, folder.path / "el2n.npz")], settings.config.seed)

    def _draw_runtime(self, one: Table, part: Part) -> None:
        """002's Fig. 14: what the epochs of the methods cost, side by side."""
        found = {row.label: runtime(Record.read(run)) for row, run in self._runs(part) if run.finished}
        if found:
            write(figures.runtime(found), self.out / one.name / "fig14.png")

    def _draw_scores(self, one: Table, part: Part) -> None:
        """004's figures c to f: EL2N of two architectures, and what the part's method did not use."""
        folder, out = self._folder(part), self.out / one.name
        config, images = self._config(part.settings[self.scale])
        own, other = load(self._scores(folder, config, images)), folder.path / "other-el2n.npz"
        if not other.exists():
            model, width = OTHER_MODEL[self.scale]
            self._make_scores(other, dataclasses.replace(config, model=model, width=width), images)
        use = from_run(next(run for _, run in self._runs(part)).path, images)
        write(overlap(compare_scores(own, load(other))), out / "c.png")
        write(overlap(compare_scores(own, use)), out / "d.png")
        write(gallery(own, images), out / "e.png")
        write(gallery(combined(own, use), images), out / "f.png")

    # -- what came of it ---------------------------------------------------------------------------------------------

    def markdown(self, one: Table) -> str:
        """A table with the paper's numbers beside ours, as far as it is trained."""
        lines = [f"## {one.name}: {one.title} — scale {self.scale}"]
        lines += [one.note, ""] if one.note else [""]
        for part in one.parts:
            if self.scale not in part.settings:
                lines += [f"**{part.heading}** is left out at this scale: {part.note}.", ""]
                continue
            lines += [*self._part(one, part), ""]
        pictures = ("fig14", *"cdef")
        lines += [f"![{name}]({name}.png)" for name in pictures if (self.out / one.name / f"{name}.png").exists()]
        return "\n".join(lines).rstrip()

    def _part(self, one: Table, part: Part) -> list[str]:
        folder = self._folder(part)
        summary = folder.summary()
        if summary is None:
            return [f"**{part.heading}**: {NOT_TRAINED}"]
        there, missing = registered(part.rows)
        found = {row["label"]: row for row in summary["rows"]}
        controls = {row["control_of"]: row for row in summary["rows"] if row["role"] == "equal-budget"}
        lines, labels = [], set()
        for row in part.rows:
            method = _method(row, folder.path / "el2n.npz") if row in there else ""
            labels.add(method)
            paper = [*row.paper, *[""] * (len(one.columns) - len(row.paper))]
            lines.append([row.label, *paper, *_ours(found.get(method), controls.get(method))])
        header = ["", *(f"paper: {name}" for name in one.columns), *OURS]
        heading = f"**{part.heading}**; ours: {described(summary)}"
        notes = [part.note] if part.note else []
        if any(found[label]["accuracy"] and not found[label]["time_ratio"] for label in labels & found.keys()):
            notes.append(APART)
        labels |= {row["label"] for row in summary["rows"] if row["control_of"] in labels}
        failed = [
            f"{name} failed: {reason}"
            for name, reason in summary["failures"].items()
            if any(name.startswith(f"{label}, seed") for label in labels)
        ]
        return [heading, "", table(header, lines), "", *(f"- {text}" for text in [*notes, *missing, *failed])]


APART = (
    "A row without a speed-up was not trained in turns with the baseline from beginning to end. To get one, train the "
    f"tables by one command (several `--table`, or `--table {ALL}`) in another --out."
)
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


def described(summary: dict[str, Any]) -> str:
    """What was trained: data, model, epochs, seeds and hardware."""
    config, seeds = summary["settings"], len(summary["seeds"])
    width = f" of width {config['width']}" if config["width"] else ""
    images = "all" if config["train_limit"] is None else f"{config['train_limit']:,}"
    cpu = summary["made_with"].get("hardware", {}).get("cpu", "unknown hardware")
    return (
        f"{config['model']}{width} on {config['data']}, {images} images, {config['epochs']} epochs, batch "
        f"{config['batch_size']}, learning rate {config['lr']:g}, {seeds} seed{'s' * (seeds > 1)}, "
        f"{config['precision']}, {cpu}"
    )


def _joined(folder: ComparisonFolder, settings: Settings) -> Settings:
    """The settings with what the folder holds besides; runs of different settings are not mixed in one comparison."""
    stored = folder.settings()
    was = dataclasses.asdict(stored.config)
    for name, value in dataclasses.asdict(settings.config).items():
        if name not in OPERATIONAL and was[name] != value:
            raise LeanError(
                f"'{folder}' was started with {name} {was[name]}, and this is {value}; choose another --out."
            )
    methods = tuple(dict.fromkeys((*stored.methods, *settings.methods)))
    return dataclasses.replace(settings, methods=methods, seeds=max(stored.seeds, settings.seeds))

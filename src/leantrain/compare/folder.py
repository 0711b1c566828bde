"""A comparison's folder: the one place that knows what `leantrain compare` writes, and how to read it back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import yaml

from leantrain.compare.settings import FLAGS, Entry, Settings
from leantrain.errors import LeanError
from leantrain.files import append_line, write_text
from leantrain.run.config import TrainConfig, from_mapping, load_yaml
from leantrain.run.folder import AGAIN, Json, Kinds, RunFolder, check_fields, read_json, read_rows

SETTINGS: dict[str, Kinds] = {"methods": (list,), "seeds": (int,), "margin": (int, float), "train": (dict,)}
TURN: dict[str, Kinds] = {"session": (str,), "row": (str,), "seed": (int,), "epoch": (int,), "seconds": (int, float)}
"""What the settings and the turns hold, and of what type."""


class ComparisonFolder:
    """What `leantrain compare` writes into a folder.

    Attributes:
        path: the folder.
        settings_file: what is compared.
        summary_file: what came of it.
        turns_file: a line of JSON per epoch that was trained in turns, with its time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "compare.yaml"
        self.summary_file = path / "compare.json"
        self.turns_file = path / "turns.jsonl"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def holds_comparison(self) -> bool:
        return self.settings_file.is_file()

    def run(self, entry: Entry, seed: int) -> RunFolder:
        """The run of one row and seed."""
        return RunFolder(self.path / "runs" / entry.folder / f"seed-{seed}")

    # -- settings ----------------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        """What is compared.

        Raises:
            LeanError: the folder holds no comparison.
        """
        if not self.holds_comparison:
            raise LeanError(f"there is no comparison in '{self}'; make one with `leantrain compare --out {self}`.")
        content = load_yaml(self.settings_file)
        check_fields(content, SETTINGS, self.settings_file, "put it back or start over in another --out")
        names, budgets = content["methods"], content.get("budgets") or []
        if not all(isinstance(name, str) for name in names) or not all(type(b) in (int, float) for b in budgets):
            raise LeanError(f"methods or budgets in '{self.settings_file}' are none; put them back.")
        if content["seeds"] < 1 or content["margin"] < 0 or not all(0 < budget <= 1 for budget in budgets):
            raise LeanError(f"seeds, margin or budgets in '{self.settings_file}' are out of range; put them back.")
        if type(content.get("control_batch_size", 1)) not in (int, type(None)):
            raise LeanError(f"control_batch_size in '{self.settings_file}' is no number; put it back.")
        if content.get("unit", "cost") not in FLAGS:
            raise LeanError(f"unit in '{self.settings_file}' is none of {', '.join(FLAGS)}; put it back.")
        config = TrainConfig(**from_mapping(content["train"], str(self.settings_file)))
        return Settings(
            config,
            tuple(names),
            content["seeds"],
            content.get("controls", True) is True,
            content["margin"],
            tuple(budgets),
            content.get("rs2", True) is True,
            content.get("control_batch_size"),
            content.get("unit", "cost"),
        )

    def write_settings(self, settings: Settings) -> None:
        content = {
            "methods": list(settings.methods),
            "seeds": settings.seeds,
            "controls": settings.controls,
            "margin": settings.margin,
            "budgets": list(settings.budgets),
            "unit": settings.unit,
            "rs2": settings.rs2,
            "control_batch_size": settings.control_batch_size,
            "train": dataclasses.asdict(settings.config),
        }
        write_text(self.settings_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def write_run_settings(self, entry: Entry, config: TrainConfig) -> Path:
        """The settings of one run, for its own process."""
        file = self.path / "settings" / f"{entry.folder}-seed{config.seed}.yaml"
        settings = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
        write_text(file, yaml.safe_dump(settings))
        return file

    def log_file(self, entry: Entry, seed: int) -> Path:
        """What such a process says."""
        return self.path / "settings" / f"{entry.folder}-seed{seed}.log"

    # -- what came of it ---------------------------------------------------------------------------------------------

    def add_turn(self, turn: Json) -> None:
        append_line(self.turns_file, json.dumps(turn))

    def turns(self) -> list[Json]:
        return read_rows(self.turns_file, TURN, "remove the file, and with it the times")

    def write_summary(self, summary: Json) -> None:
        write_text(self.summary_file, json.dumps(summary, indent=2) + "\n")

    def summary(self) -> Json | None:
        """The summary as it was written last; None where there is none."""
        if not self.summary_file.exists():
            return None
        summary = read_json(self.summary_file)
        check_fields(summary, {"failures": (dict,)}, self.summary_file, AGAIN)
        return summary

"""What `leantrain train` and `leantrain compare` left in their folders, read for the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from leantrain.config import TrainConfig, read_yaml
from leantrain.errors import LeanError
from leantrain.methods import Method, parse_method
from leantrain.report.past import Past, read_past

Json = dict[str, Any]


def read_json(file: Path) -> Json:
    """A file that the program wrote, or a sentence that says what is wrong with it."""
    try:
        content: Json = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise LeanError(f"'{file}' cannot be read: {error}.") from None
    return content


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
        result = read_json(done) if done.exists() else None
        return RunFolder(folder, config, made_with, read_rows(folder / "metrics.jsonl"), result)

    @cached_property
    def past(self) -> Past | None:
        return read_past(self.folder, [row["epoch"] for row in self.rows])

    @property
    def method(self) -> Method:
        return parse_method(self.config.method)


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

    @property
    def first(self) -> RunFolder | None:
        """Its first run that has trained an epoch; what is shown of single examples is this one's."""
        return next((run for run in self.runs if run.rows), None)

    def described(self) -> Json:
        return {"label": self.label, "role": self.role, "control_of": self.control_of}

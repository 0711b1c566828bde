"""What `leantrain train` and `leantrain compare` left in their folders, read for the page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from leantrain.methods import Method, choose_method
from leantrain.report.past import Past, read_past
from leantrain.run.config import TrainConfig
from leantrain.run.folder import Json, RunFolder


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run wrote into its folder, finished or cut, read once."""

    folder: RunFolder
    config: TrainConfig
    made_with: Json
    rows: list[Json]
    result: Json | None

    @staticmethod
    def read(folder: RunFolder) -> RunRecord:
        return RunRecord(folder, folder.config(), folder.made_with(), folder.rows(), folder.result())

    @cached_property
    def past(self) -> Past | None:
        return read_past(self.folder)

    @property
    def method(self) -> Method:
        return choose_method(self.config.method, self.config.budget)[0]


@dataclass(frozen=True, eq=False)
class Series:
    """A row of the page: one method or control, with its runs by seed.

    Attributes:
        role: as in a comparison; "method" for a plain run.
        method: shared by rows that are one method at several budgets; else None.
    """

    label: str
    role: str
    control_of: str | None
    runs: list[RunRecord]
    method: str | None = None

    @property
    def first(self) -> RunRecord | None:
        """Its first run that has trained an epoch; what is shown of single examples is this one's."""
        return next((run for run in self.runs if run.rows), None)

    def described(self) -> Json:
        return {"label": self.label, "method": self.method, "role": self.role, "control_of": self.control_of}

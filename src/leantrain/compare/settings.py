"""What is compared: the methods, their controls, the seeds, and the settings that all runs share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from leantrain.errors import LeanError
from leantrain.methods import parse_method
from leantrain.options import split_outside
from leantrain.rng import derive
from leantrain.run.config import OPERATIONAL, PLAIN, TrainConfig
from leantrain.run.estimate import expected_cost
from leantrain.run.names import legal_name
from leantrain.run.setup import with_batch_size

BASELINE = PLAIN
"""What every method is compared with."""

FLAGS = {"cost": "--budgets", "time": "--time-budgets"}
"""What budgets may be shares of, and the flag that gives such."""

RS2_ALONE = re.compile(r"rs2(\[[^\]]*\])?")  # needs no control of its own kind, but a chain with it does


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the comparison: a method, or the control of one.

    Attributes:
        method: the method trained with, options in its name. A control's options may differ from seed to seed, as it
            costs what its method really cost; then the name alone.
        role: "baseline", "method", "equal-budget" (plain training at the method's cost) or "rs2" (random subsets at
            the method's cost).
        control_of: the label of the method that a control belongs to; of the first, where several share it.
        budget: the share of full training's cost, or time, that it spends; None where that shows afterwards.
        unit: what the budget is a share of.
    """

    method: str
    role: str
    control_of: str | None = None
    budget: float | None = None
    unit: str = "cost"

    @property
    def label(self) -> str:
        what = {"equal-budget": "plain, equal budget", "rs2": "RS2, equal budget"}
        share = "" if self.budget is None else f"{self.budget:g}{' of the time' * (self.unit == 'time')}"
        if self.control_of is not None:
            return f"{what[self.role]} ({share or self.control_of})"
        return f"{self.method} @ {share}" if share else self.method

    @property
    def waits(self) -> bool:
        """Whether it can be trained only when its method has been, whose cost it takes."""
        return self.control_of is not None and self.budget is None

    @property
    def folder(self) -> str:
        name = self.method if self.control_of is None else f"{self.control_of}--{self.role}"
        if self.budget is not None:
            name = f"{self.method}@{self.budget:g}{'-time' * (self.unit == 'time')}"
        legal = legal_name(name, also=",[]@")
        # A method may name a file, whose path may be long, or differ from another one in a "/" or a space only.
        return legal if legal == name and len(name) < 100 else f"{legal[:100]}-{derive(0, name):016x}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared: the settings of every run, the methods, the seeds, and whether controls are added.

    With `budgets`, every method is trained at each of them, and one plain run at each is the control of all; `unit`
    says whether they are shares of full training's cost or of its time. Without `rs2`, plain training of the same cost
    is the only control. With `control_batch_size`, that is what it is trained with: fewer epochs may do better with
    smaller batches.
    """

    config: TrainConfig
    methods: tuple[str, ...]
    seeds: int
    controls: bool = True
    margin: float = 0.2
    budgets: tuple[float, ...] = ()
    rs2: bool = True
    control_batch_size: int | None = None
    unit: str = "cost"

    def entries(self) -> list[Entry]:
        """All rows: the baseline first, then each method with its controls."""
        rows = [Entry(BASELINE, "baseline")]
        methods = [method for method in self.methods if method != BASELINE]
        for budget in self.budgets:
            rows += (own := [Entry(method, "method", None, budget, self.unit) for method in methods])
            if self.controls:
                rows.append(Entry(BASELINE, "equal-budget", own[0].label if own else BASELINE, budget, self.unit))
        for method in () if self.budgets else methods:
            rows.append(Entry(method, "method"))
            if self.controls:
                rows.append(Entry(BASELINE, "equal-budget", method))
                if self.rs2 and not RS2_ALONE.fullmatch(method):
                    rows.append(Entry("rs2", "rs2", method))
        return rows

    def control(self, entry: Entry) -> Entry | None:
        """Plain training at the cost of a method's row."""
        for other in self.entries():
            shared = entry.budget is not None and other.budget == entry.budget
            if other.role == "equal-budget" and (shared or other.control_of == entry.label):
                return other
        return None

    def of_control(self, config: TrainConfig) -> TrainConfig:
        """A run's settings as plain training of the same cost has them."""
        return config if self.control_batch_size is None else with_batch_size(config, self.control_batch_size)

    def seed_numbers(self) -> range:
        return range(self.config.seed, self.config.seed + self.seeds)


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a comma-separated list, in canonical spelling; commas inside brackets separate options."""
    parts = split_outside(text, ",")
    names = tuple(dict.fromkeys(str(parse_method(part)) for part in parts if part.strip()))
    if not names:
        raise LeanError(f"--methods is '{text}', but must name at least one method; see `leantrain methods`.")
    return names


def split_budgets(text: str, unit: str = "cost") -> tuple[float, ...]:
    """The budgets of a comma-separated list, from small to large."""
    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or not all(0 < budget <= 1 for budget in found):
        raise LeanError(
            f"{FLAGS[unit]} is '{text}', but must be shares of full training's {unit}, such as 0.2,0.33,0.5."
        )
    return tuple(found)


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
        method = entry.control_of if entry.waits else entry.method
        config = dataclasses.replace(settings.config, method=method, budget=entry.budget)
        total += expected_cost(config, examples, side)
    return total * settings.seeds

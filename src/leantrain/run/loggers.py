"""Loggers: the metrics of every epoch where other tools look for them, in the run's folder and without a network."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from leantrain.errors import LeanError, nearest
from leantrain.files import write_text

Rows = list[dict[str, Any]]


class Logger(NamedTuple):
    """Where metrics may go.

    Attributes:
        package: what must be installed for it; None where nothing must.
        log: given the run's folder, its rows and its settings, writes the last row. One that was logged before a cut
            and comes again is replaced; MLflow keeps both, with the same step.
    """

    package: str | None
    log: Callable[[Path, Rows, dict[str, Any]], None]


def parse(text: str) -> list[str]:
    """The loggers of `--log tensorboard,mlflow`; refused where one is not known, or not installed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LOGGERS:
            raise LeanError(f"--log is '{name}', but must be of {', '.join(LOGGERS)}.{nearest(name, LOGGERS)}")
        package = LOGGERS[name].package
        if package is not None and importlib.util.find_spec(package) is None:
            raise LeanError(f"--log {name} needs the {package} package: pip install 'leantrain[{name}]'.")
    return names


def log_epoch(names: list[str], folder: Path, rows: Rows, settings: dict[str, Any]) -> None:
    """Log the last of these rows."""
    for name in names:
        LOGGERS[name].log(folder, rows, settings)


def _tensorboard(folder: Path, rows: Rows, settings: dict[str, Any]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    epoch = rows[-1]["epoch"]
    with SummaryWriter(str(folder / "tensorboard"), purge_step=epoch) as writer:  # type: ignore[no-untyped-call]
        for name, value in _numbers(rows[-1]).items():
            writer.add_scalar(name, value, epoch)  # type: ignore[no-untyped-call]


def _csv(folder: Path, rows: Rows, settings: dict[str, Any]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "metrics.csv", text.getvalue())


def _mlflow(folder: Path, rows: Rows, settings: dict[str, Any]) -> None:
    """Into a store of the run's own, unless MLFLOW_TRACKING_URI names another."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow 3 asks for
    from mlflow import MlflowClient

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").resolve().as_uri())
    known = folder / "mlflow_run"
    if known.exists():
        run = known.read_text()
    else:
        found = client.get_experiment_by_name("leantrain")
        experiment = found.experiment_id if found is not None else client.create_experiment("leantrain")
        run = client.create_run(experiment, run_name=folder.name).info.run_id
        for name, value in settings.items():
            client.log_param(run, name, value)
        known.write_text(run)
    for name, value in _numbers(rows[-1]).items():
        client.log_metric(run, name, value, step=rows[-1]["epoch"])


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "epoch"}


LOGGERS = {
    "tensorboard": Logger("tensorboard", _tensorboard),
    "csv": Logger(None, _csv),
    "mlflow": Logger("mlflow", _mlflow),
}

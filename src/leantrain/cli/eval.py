"""`leantrain eval`: the model that a run saved, on its own test set or on another one."""

from __future__ import annotations

import json
from pathlib import Path

import click

from leantrain.cli.common import Command, console
from leantrain.errors import LeanError
from leantrain.run.config import TrainConfig, read_yaml
from leantrain.run.folder import RunFolder


@click.command("eval", cls=Command)
@click.argument("folder", type=Path, metavar="DIR")
@click.option("--data", help="another set than the run's, with the same classes", metavar="TEXT")
@click.option("--data-root", help="where sets known by name are kept", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def eval_command(folder: Path, data: str | None, data_root: str | None, as_json: bool) -> None:
    """Evaluate the model that a run saved, on its own test set or on another one."""
    run = RunFolder(folder)
    if not run.holds_run or not run.has_weights:
        raise LeanError(f"'{folder}' holds no finished run (config.yaml and model.safetensors); train one first.")
    settings = read_yaml(run.settings_file)
    if data is not None:
        settings.update(data=data, validation=0.0, train_limit=None)
    if data_root is not None:
        settings["data_root"] = data_root
    from leantrain.run.evaluate import evaluate_folder

    outcome = evaluate_folder(run, TrainConfig(**settings))
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{folder} on {outcome['data']}"), show_header=False, title_justify="left")
    for name in ("test_accuracy", "macro_f1", "worst_class_accuracy", "calibration_error", "test_loss"):
        table.add_row(name.replace("_", " "), f"{outcome[name]:.4f}")
    console().print(table)

"""What the commands share: flags that derive from the settings, plugins, and names for new folders."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Container
from pathlib import Path
from typing import Any

import click

from leantrain.cli.plugins import load_plugins
from leantrain.options import scalar_type
from leantrain.run.config import FIELDS, TrainConfig, from_mapping
from leantrain.run.names import legal_name

BESIDE = {"time_budget": "budget"}
"""Flags that are no settings, and those under whose heading help lists them."""

MOST = 150  # characters of a folder's name; file systems take 255 bytes


class Command(click.Command):
    """A command that knows the user's plugins, loaded once its flags are read: help and wrong flags need not wait."""

    def invoke(self, ctx: click.Context) -> Any:
        load_plugins(ctx.find_root().params.get("plugins") or ())
        return super().invoke(ctx)


class SettingsCommand(Command):
    """A command with a flag per training setting; its help lists them under the headings of their fields."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = BESIDE.get(str(parameter.name), str(parameter.name))
                group = FIELDS[name].metadata["group"] if name in FIELDS else "Output"
                sections.setdefault(group, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def add_settings(command: click.Command, leave_out: Container[str] = ()) -> None:
    """Put a flag for every training setting in front of a command's own."""
    command.params[:0] = [_option(field) for field in FIELDS.values() if field.name not in leave_out]


def _option(field: dataclasses.Field[Any]) -> click.Option:
    """The flag of one setting. None stands for "not given", so that a config file can tell it from a default."""
    kind = scalar_type(typing.get_type_hints(TrainConfig)[field.name])
    flag = "--" + field.name.replace("_", "-")
    text = field.metadata["help"]
    if field.default is not None and field.default != "" and kind is not bool:
        text += f" (default: {field.default})"
    if field.metadata["choices"]:
        text = f"{', '.join(field.metadata['choices'])}: {text}"
    if kind is bool:
        if field.default is not None:
            text += f" (default: {'on' if field.default else 'off'})"
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=None, help=text)
    metavar = {int: "N", float: "X"}.get(kind, "DIR" if field.name in ("out", "data_root") else "TEXT")
    return click.Option([flag], type=kind, default=None, help=text, metavar=metavar)


def given_settings(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings among the flags that were given."""
    return from_mapping({name: value for name, value in flags.items() if value is not None}, "the command line")


def free_folder(config: TrainConfig) -> Path:
    """runs/DATA-MODEL-METHOD-SEED, with a number behind it where that is taken."""
    words = (Path(config.data).name or "data", config.model, config.method, f"seed{config.seed}")
    name = legal_name("-".join(str(word) for word in words))[:MOST]
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def console() -> Any:
    """Where tables are printed."""
    from rich.console import Console

    return Console()

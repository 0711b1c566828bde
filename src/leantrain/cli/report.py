"""`leantrain report`: one page that shows runs and comparisons."""

from __future__ import annotations

from pathlib import Path

import click

from leantrain.cli.common import Command


@click.command("report", cls=Command)
@click.argument("folders", type=Path, nargs=-1, required=True, metavar="DIR…")
@click.option("--out", type=Path, help="file or folder to write to (default: DIR/report.html)", metavar="FILE")
def report_command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write one page that shows runs and comparisons; it opens from disk and needs no network.

    \b
    leantrain report runs/compare                      runs/compare/report.html
    leantrain report runs/one runs/two --out two.html
    """
    from leantrain.report import write_report

    click.echo(write_report(list(folders), out))

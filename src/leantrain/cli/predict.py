"""`leantrain predict`: what the model that a run saved sees in pictures."""

from __future__ import annotations

import json
from pathlib import Path

import click

from leantrain.cli.common import Command, console
from leantrain.errors import LeanError


@click.command("predict", cls=Command)
@click.argument("folder", type=Path, metavar="DIR")
@click.argument("places", type=Path, nargs=-1, required=True, metavar="IMAGE…")
@click.option("--top", type=int, default=3, help="how many classes to name per image (default: 3)", metavar="N")
@click.option("--skip-bad-images", is_flag=True, help="leave out files that cannot be read")
@click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)", metavar="TEXT")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def predict_command(
    folder: Path, places: tuple[Path, ...], top: int, skip_bad_images: bool, device: str, as_json: bool
) -> None:
    """Name the classes that the model of a run sees in image files, or in all of a folder.

    \b
    leantrain predict runs/half photo.jpg
    leantrain predict runs/half new-photos/ --top 1 --json

    It needs the run's folder and not the data that it was trained on.
    """
    if top < 1:
        raise LeanError(f"--top is {top}, but must be at least 1.")
    from leantrain.run.predict import Predictor, pictures

    predictor = Predictor(folder, device)
    files = pictures(places)
    if skip_bad_images:
        files = _readable(files, predictor.readable(files).tolist())
    values, numbers = predictor(files).topk(min(top, len(predictor.classes)), dim=1)
    found = [
        [(predictor.classes[number], value) for number, value in zip(*row, strict=True)]
        for row in zip(numbers.tolist(), values.tolist(), strict=True)
    ]
    if as_json:
        listed = [
            {"image": str(file), "classes": [{"name": name, "probability": value} for name, value in seen]}
            for file, seen in zip(files, found, strict=True)
        ]
        click.echo(json.dumps(listed, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("image", "class", "probability"):
        table.add_column(heading, overflow="fold")  # a path or a name that is cut is another one
    for file, seen in zip(files, found, strict=True):
        for rank, (name, value) in enumerate(seen):
            table.add_row(Text("" if rank else str(file)), Text(name), f"{value:.3f}")
    console().print(table)


def _readable(files: list[Path], readable: list[bool]) -> list[Path]:
    """The files that can be read; what is left out is said."""
    for file in (file for file, good in zip(files, readable, strict=True) if not good):
        click.echo(f"left out: {file} cannot be read", err=True)
    kept = [file for file, good in zip(files, readable, strict=True) if good]
    if not kept:
        raise LeanError(f"none of the {len(files)} files can be read as an image; give others.")
    return kept

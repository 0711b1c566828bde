"""`leantrain inspect`: the diagnostics of a run, as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from leantrain.cli.common import Command
from leantrain.options import LARGEST


@click.command("inspect", cls=Command)
@click.argument("folder", type=Path, metavar="RUN")
@click.option("--out", type=Path, help="folder for the pictures and inspect.json (default: RUN/inspect)", metavar="DIR")
@click.option(
    "--pairings", type=click.IntRange(1, 1000), default=5, help="random pairings to average (default: 5)", metavar="N"
)
@click.option(
    "--examples", type=click.IntRange(2), help="training examples to look at (default: up to 2000)", metavar="N"
)
@click.option("--epoch", type=click.IntRange(1), help="whose losses to draw, from 1 (default: the last)", metavar="N")
@click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)", metavar="TEXT")
@click.option(
    "--seed", type=click.IntRange(0, LARGEST), default=0, help="decides examples, pairings and cuts", metavar="N"
)
def inspect_command(
    folder: Path, out: Path | None, pairings: int, examples: int | None, epoch: int | None, device: str, seed: int
) -> None:
    """Draw the MixTrain papers' diagnostics of a run, finished or cut.

    Pictures, and inspect.json with every number that is drawn.
    """
    from leantrain.inspect import inspect_run

    written = inspect_run(
        folder,
        out,
        pairings=pairings,
        examples=examples,
        epoch=None if epoch is None else epoch - 1,
        device=device,
        seed=seed,
        log=lambda line: click.echo(line, err=True),
    )
    click.echo(written)

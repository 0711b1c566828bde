"""`leantrain bench`: the papers' tables, trained here, beside the papers' numbers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from leantrain.cli.common import Command, SettingsCommand, add_settings, given_settings
from leantrain.errors import LeanError
from leantrain.run.lock import locked

NOT_IN_BENCH = ("method", "budget", "out", "log", "seed", "devices", "nodes", "sync_batchnorm")
OUT = Path("runs/bench")


class BenchGroup(click.Group):
    """Commands that make tables of the papers."""


@click.group("bench", cls=BenchGroup)
def bench() -> None:
    """Train the papers' tables, with the papers' numbers beside ours.

    \b
    leantrain bench tables --list                               what there is, and what it needs
    leantrain bench tables --table 002-table5                   at a scale for a CPU
    leantrain bench accelerators --model resnet50 --data cifar10
    leantrain bench results                                     all that was trained, as docs/results.md
    """


@bench.command("tables", cls=Command)
@click.option("--table", "names", multiple=True, help="the table to train, or all; may be repeated", metavar="NAME")
@click.option("--network", help="of these tables, this network alone, such as MobileNetV2", metavar="NAME")
@click.option("--list", "listed", is_flag=True, help="name the tables, with the data and time that each needs")
@click.option(
    "--scale",
    default="cpu",
    help="cpu: small models and subsets, minutes to an hour; full: the papers' models, epochs, rates and batch sizes; "
    "tiny: seconds, for trying the command (default: cpu)",
)
@click.option("--seeds", type=int, help="runs per row (default: 3; tiny: 1)", metavar="N")
@click.option("--data-root", help="where sets known by name are kept", metavar="DIR")
@click.option("--threads", type=int, help="CPU threads (default: torch's)", metavar="N")
@click.option("--weights", help="start every network from this file", metavar="FILE")
@click.option("--out", type=Path, default=OUT, help=f"folder; goes on where it stopped (default: {OUT})")
def tables(
    names: tuple[str, ...],
    network: str | None,
    listed: bool,
    scale: str,
    seeds: int | None,
    out: Path,
    **changes: Any,
) -> int:
    """Train tables and figures of the papers at a scale that is named; every row beside plain training of its cost."""
    from leantrain.bench.papers import SCALES

    if scale not in SCALES:
        raise LeanError(f"--scale is '{scale}', but must be one of {', '.join(SCALES)}.")
    if seeds is not None and seeds < 1:
        raise LeanError(f"--seeds is {seeds}, but must be at least 1.")
    if not listed and not names:
        raise LeanError("--table NAME is missing; `leantrain bench tables --list` names all.")

    import torch

    from leantrain.bench.tables import Tables, choose, listing
    from leantrain.run.display import make_table_display
    from leantrain.run.signals import Interrupted

    if listed:
        click.echo(listing(scale))
        return 0
    chosen = choose(names, network)  # a wrong name is reported before anything is trained
    given = {name: value for name, value in changes.items() if value is not None}
    if "threads" in given:
        torch.set_num_threads(given["threads"])
    run = Tables(chosen, scale, out, make_table_display(), seeds, **given)
    code = 0
    try:
        run.train()
    except (Interrupted, KeyboardInterrupt) as stop:
        code = stop.exit_code if isinstance(stop, Interrupted) else 130
    click.echo("\n\n".join(run.markdown(one) for one in chosen))
    if code:
        words = [word for name in names for word in ("--table", name)]
        for name, value in {"network": network, "scale": scale, "seeds": seeds, **given, "out": out}.items():
            words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        click.echo(f"stopped; go on with: leantrain bench tables {shlex.join(words)}", err=True)
    else:
        click.echo(f"written to {run.out}", err=True)
    return code


@bench.command("accelerators", cls=SettingsCommand)
@click.option("--full", is_flag=True, help="the paper's epochs, batch size, optimiser and rates, not minutes on a CPU")
@click.option("--seeds", type=int, default=3, help="runs per row (default: 3)", metavar="N")
@click.option("--out", type=Path, help=f"folder; goes on where it stopped (default: {OUT}/accelerators/MODEL-DATA)")
def accelerators(full: bool, seeds: int, out: Path | None, **flags: Any) -> int:
    """Mixed precision, accumulation and pinned memory, each alone and together: 003 Table I and its Eq. 1 to 4.

    \b
    leantrain bench accelerators --model resnet50 --data cifar10
    leantrain bench accelerators --model efficientnet_b0 --data cifar100 --full
    """
    if seeds < 1:
        raise LeanError(f"--seeds is {seeds}, but must be at least 1.")
    given = given_settings(flags)

    import torch

    from leantrain.bench.accelerators import DATA, MODELS, Accelerators, as_markdown
    from leantrain.files import write_text
    from leantrain.run.display import make_table_display
    from leantrain.run.names import legal_name
    from leantrain.run.signals import Interrupted

    if given.get("threads"):
        torch.set_num_threads(given["threads"])
    name = legal_name(f"{given.get('model', MODELS[0])}-{Path(given.get('data', DATA[0])).name}{'-full' * full}")
    folder = out or OUT / "accelerators" / name
    study = Accelerators(given, full, seeds, folder, make_table_display())
    with locked(folder):
        try:
            study.train()
        except Interrupted as stop:
            click.echo("stopped; the same command goes on from here", err=True)
            return stop.exit_code
        text = as_markdown(study.summary(), study.paper)
        write_text(folder / "table.md", text + "\n")
    click.echo(text)
    click.echo(f"written to {folder}", err=True)
    return 0


add_settings(accelerators, leave_out=NOT_IN_BENCH)


@bench.command("results", cls=Command)
@click.option("--from", "folder", type=Path, default=OUT, help=f"what was trained (default: {OUT})", metavar="DIR")
@click.option("--out", type=Path, default=Path("docs/results.md"), help="the page (default: docs/results.md)")
def results(folder: Path, out: Path) -> None:
    """Put all tables that were trained on one page, with a picture of accuracy against speed-up.

    What is on the page already, and was not trained again, stays.
    """
    from leantrain.bench.results import write_results

    click.echo(f"written to {write_results(folder, out)}", err=True)

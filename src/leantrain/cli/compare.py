"""`leantrain compare`: methods side by side, each beside plain training that costs the same."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leantrain.cli.common import SettingsCommand, add_settings, console, free_folder, given_settings
from leantrain.errors import LeanError, shortened
from leantrain.run.config import PLAIN, TrainConfig, read_yaml
from leantrain.run.lock import locked

if TYPE_CHECKING:
    from leantrain.compare.engines import Engine
    from leantrain.compare.folder import ComparisonFolder
    from leantrain.compare.settings import Settings

NOT_IN_COMPARE = ("method", "budget", "log", "devices", "nodes", "sync_batchnorm")


@click.command("compare", cls=SettingsCommand)
@click.option(
    "--methods",
    help=f'comma-separated, e.g. "rs2[keep=0.5],infobatch + progressive-resizing"; {PLAIN} is added',
)
@click.option(
    "--budgets",
    help="shares of full training's cost to train every method at, e.g. 0.2,0.33,0.5: accuracy against cost as a curve",
)
@click.option(
    "--time-budgets",
    help="the same in shares of its time: the cost that takes as long is found by timing a few steps at every size",
)
@click.option("--seeds", type=int, help="runs per method, with seeds --seed, --seed + 1, … (default: 3)", metavar="N")
@click.option(
    "--controls/--no-controls",
    default=None,
    help="plain training, and RS2 where there are no --budgets, at every method's cost (default: on)",
)
@click.option(
    "--control-batch-size",
    type=int,
    help="of plain training at a method's cost, if fewer epochs do better with another one (default: --batch-size)",
    metavar="N",
)
@click.option("--margin", type=float, help="points that count as the same accuracy (default: 0.2)", metavar="X")
@click.option("--jobs", type=int, default=1, help="runs at once; above 1 no times are given (default: 1)", metavar="N")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="ray trains every run as a task of a Ray cluster; no times are given then (default: local)",
)
@click.option("--address", help="of the Ray cluster, or auto (default: one is started on this machine)")
@click.option("--gpus-per-run", type=float, help="with --engine ray (default: 1 on GPUs, else 0)", metavar="X")
@click.option("--cpus-per-run", type=float, help="with --engine ray, also a run's threads (default: 1)", metavar="X")
@click.option("--resume", is_flag=True, help="go on with the comparison in --out, or add methods and seeds to it")
@click.option("--from", "from_folder", type=Path, help="print the table of a comparison again", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
@click.option("--config", "config_file", type=Path, help="YAML file of settings; flags win over it", metavar="FILE")
def compare(
    methods: str | None,
    budgets: str | None,
    time_budgets: str | None,
    seeds: int | None,
    controls: bool | None,
    control_batch_size: int | None,
    margin: float | None,
    jobs: int,
    engine: str,
    address: str | None,
    gpus_per_run: float | None,
    cpus_per_run: float | None,
    resume: bool,
    from_folder: Path | None,
    as_json: bool,
    config_file: Path | None,
    **flags: Any,
) -> int:
    """Compare methods on your data, each beside plain training that costs the same.

    \b
    leantrain compare --data path/to/images                     lean at half the cost, with its controls
    leantrain compare --data path/to/images --budgets 0.2,0.33,0.5,0.7      what budget keeps the accuracy?
    leantrain compare --data path/to/images --time-budgets 0.33,0.5         and in what time on this machine?
    leantrain compare --methods mixtrain-cutmix --seeds 3 --out runs/compare
    leantrain compare --out runs/compare --methods "random-backprop[keep=0.5]" --resume    adds a method
    leantrain compare --from runs/compare                                                  prints it again
    """
    for name, value, low, high in (
        ("--seeds", seeds, 1, 1000),
        ("--control-batch-size", control_batch_size, 1, 1_000_000),
        ("--jobs", jobs, 1, 1024),
        ("--margin", margin, 0, 100),
        ("--gpus-per-run", gpus_per_run, 0, 1024),
        ("--cpus-per-run", cpus_per_run, 0, 1024),
    ):
        if value is not None and not low <= value <= high:
            raise LeanError(
                f"{name} is {shortened(str(value))}, but must be a finite number of at least {low}, at most {high}."
            )
    cluster = {"--address": address, "--gpus-per-run": gpus_per_run, "--cpus-per-run": cpus_per_run}
    for flag in (flag for flag, value in cluster.items() if value is not None and engine != "ray"):
        raise LeanError(f"{flag} is {cluster[flag]}, but only --engine ray has a cluster; add it, or drop {flag}.")
    if control_batch_size is not None and controls is False:
        raise LeanError(f"--control-batch-size is {control_batch_size}, but --no-controls trains none; drop one.")
    if budgets is not None and time_budgets is not None:
        raise LeanError(f"--budgets is '{budgets}' and --time-budgets '{time_budgets}'; give one of them.")
    if engine == "ray" and jobs > 1:
        raise LeanError(f"--jobs is {jobs}, but with --engine ray the cluster's size decides; use --cpus-per-run.")
    if from_folder is not None:
        from leantrain.compare.folder import ComparisonFolder
        from leantrain.compare.summary import summarise

        _show(summarise(ComparisonFolder(from_folder)), as_json)
        return 0
    given = {} if config_file is None else _shared_settings(config_file)
    given.update(given_settings(flags))
    chosen = {"methods": methods, "budgets": budgets, "seeds": seeds, "controls": controls, "margin": margin}
    chosen["control_batch_size"] = control_batch_size
    if budgets is not None or time_budgets is not None:
        chosen |= {"budgets": time_budgets, "unit": "time"} if budgets is None else {"unit": "cost"}
    make_engine = None
    if jobs > 1 or engine == "ray":
        make_engine = functools.partial(_make_engine, engine, jobs, address, cpus_per_run, gpus_per_run)
    return _compare(given, {k: v for k, v in chosen.items() if v is not None}, make_engine, resume, as_json)


add_settings(compare, leave_out=NOT_IN_COMPARE)


def _shared_settings(file: Path) -> dict[str, Any]:
    """What of a config file all rows of a comparison share; a run's own config.yaml will do."""
    settings = read_yaml(file)
    return {name: value for name, value in settings.items() if name not in (*NOT_IN_COMPARE, "out")}


def _make_engine(
    name: str, jobs: int, address: str | None, cpus: float | None, gpus: float | None, device: str
) -> Engine:
    """Where runs are trained side by side."""
    from leantrain.compare.engines import Processes, RayTasks

    if name == "ray":
        on_gpu = float(device.startswith("cuda"))
        return RayTasks(address, 1.0 if cpus is None else cpus, on_gpu if gpus is None else gpus)
    return Processes(jobs)


def _compare(
    given: dict[str, Any],
    chosen: dict[str, Any],
    make_engine: Callable[[str], Engine] | None,
    resume: bool,
    as_json: bool,
) -> int:
    config = TrainConfig(**given)

    import torch

    from leantrain.compare.folder import ComparisonFolder
    from leantrain.compare.settings import BASELINE, Settings, check_same, expected_total, split_budgets, split_methods
    from leantrain.compare.summary import summarise
    from leantrain.compare.training import Training
    from leantrain.methods import chain, for_a_budget
    from leantrain.run.display import make_table_display
    from leantrain.run.loop import Run
    from leantrain.run.machine import precision_warning
    from leantrain.run.setup import check_files, load_images, resolve
    from leantrain.run.signals import Interrupted

    if "methods" in chosen:
        chosen["methods"] = split_methods(chosen["methods"])
    if "budgets" in chosen:
        chosen["budgets"] = split_budgets(chosen["budgets"], chosen["unit"])
    if config.out is None:
        named = dataclasses.replace(config, model="compare", method="")
        config = dataclasses.replace(config, out=str(free_folder(named)))
    out = Path(config.out or "")
    folder = ComparisonFolder(out)
    if resume and not folder.holds_comparison:
        raise LeanError(f"there is no comparison to resume in '{out}'; drop --resume to start one there.")
    _check_unused(folder, resume)
    if resume:
        stored = folder.settings()
        config = dataclasses.replace(stored.config, **given)
        check_same(stored.config, config, list(given))
        chosen["methods"] = tuple(dict.fromkeys((*stored.methods, *chosen.get("methods", ()))))
        chosen["seeds"] = max(stored.seeds, chosen.get("seeds", 0))
        chosen["budgets"] = _all_budgets(stored, chosen.get("budgets", ()), chosen.get("unit", stored.unit))
        kept = ("controls", "rs2", "margin", "control_batch_size", "unit")
        _check_control_batch_size(stored.control_batch_size, chosen)
        chosen = {**{name: getattr(stored, name) for name in kept}, **chosen}
    else:
        chosen = {"methods": (for_a_budget(config.from_weights),), "seeds": 3, **chosen}
    if chosen.get("unit") == "time":
        _check_times_are_measured(config, make_engine is not None, chosen.get("control_batch_size"))
    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    check_files(images)
    config = resolve(config, images)
    Run(
        dataclasses.replace(config, method=BASELINE), images
    )  # what cannot be trained at all is reported before all else
    settings = Settings(config, **chosen)
    display = make_table_display()
    training = Training(settings, folder, display)
    total = expected_total(settings, len(images.train), images.image_size)
    display.note(
        f"comparing {', '.join(settings.methods)} with {BASELINE} on {config.data}"
        f"{' at ' * bool(settings.budgets)}{', '.join(f'{b:g}' for b in settings.budgets)}"
        f"{' of the time' * (settings.unit == 'time')}: {config.model}, "
        f"{config.epochs} epochs, {settings.seeds} seed{'s' * (settings.seeds > 1)}"
        f"{', with controls' * settings.controls}; {'about' if settings.unit == 'time' else 'at most'} {total:,.0f} "
        "epochs in all"
    )
    if (text := precision_warning(config.precision, torch.device(config.device))) is not None:
        display.note(f"warning: {text}")
    for name in settings.methods:
        budget = min(settings.budgets, default=chain(name).default_budget)
        for text in chain(name).warnings(config.epochs or 1, budget):
            display.note(f"warning: {text}")
    code = 0
    with locked(out):
        _check_unused(folder, resume)
        try:
            training.train(None if make_engine is None else make_engine(config.device))
        except (Interrupted, KeyboardInterrupt) as stop:
            code = stop.exit_code if isinstance(stop, Interrupted) else 130
            display.note(f"stopped; go on with: leantrain compare --out {shlex.quote(str(out))} --resume")
        summary = summarise(folder, settings, training.failures)
        folder.write_summary(summary)
        _show(summary, as_json)
        from leantrain.report import write_report

        click.echo(f"written to {out}; the page is {write_report([out])}", err=True)
    return code or int(_nothing_compared(summary))


def _nothing_compared(summary: dict[str, Any]) -> bool:
    """Whether runs failed and none of what was asked for was trained; some failing leaves a table of the others."""
    asked = [row for row in summary["rows"] if row["role"] == "method"] or summary["rows"]
    return bool(summary["failures"]) and not any(row["seeds"] for row in asked)


def _check_unused(folder: ComparisonFolder, resume: bool) -> None:
    if folder.holds_comparison and not resume:
        raise LeanError(f"'{folder}' holds a comparison already; go on with it or add to it by --resume.")


def _all_budgets(stored: Settings, added: tuple[float, ...], unit: str) -> tuple[float, ...]:
    """The budgets of a comparison that is resumed; one without any has other rows and cannot take some."""
    from leantrain.compare.settings import FLAGS

    if added and not stored.budgets:
        raise LeanError(f"{FLAGS[unit]} cannot be added to a comparison without budgets; choose another --out.")
    if added and unit != stored.unit:
        raise LeanError(f"{FLAGS[unit]} cannot be added to a comparison by {FLAGS[stored.unit]}; choose another --out.")
    return tuple(sorted({*stored.budgets, *added}))


def _check_times_are_measured(config: TrainConfig, side_by_side: bool, control_batch_size: int | None) -> None:
    """Refuse to compare at equal time what does not show its time, or takes it in another way than plain training."""
    for flag, given, why in (
        ("--jobs and --engine ray", side_by_side, "times of runs that are trained at once say nothing"),
        ("--compile", config.compile, "the time it takes itself is not measured"),
        ("--control-batch-size", control_batch_size is not None, "plain training's examples would take other times"),
    ):
        if given:
            raise LeanError(f"--time-budgets does not go with {flag}, as {why}; drop one of them.")


def _check_control_batch_size(stored: int | None, chosen: Mapping[str, Any]) -> None:
    """Controls of two batch sizes would share a row."""
    if chosen.get("control_batch_size", stored) != stored:
        raise LeanError(
            f"--control-batch-size is {chosen['control_batch_size']}, but the comparison was started with "
            f"{stored or 'that of its runs'}; drop it, or choose another --out."
        )


def _show(summary: dict[str, Any], as_json: bool) -> None:
    from leantrain.compare.table import comparison_table, verdict_lines

    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    screen = console()
    if not screen.is_terminal:
        screen.width = 200
    screen.print(comparison_table(summary, screen.width))
    for line in verdict_lines(summary, screen.width):
        click.echo(line)
    for curve in summary.get("curves", ()):
        click.echo(f"{curve['method']}: {curve['answer']}")
    for name, note in summary["notes"].items():
        click.echo(f"{name}: {note}")
    if summary.get("advice"):
        click.echo(summary["advice"])
    for name, reason in summary["failures"].items():
        click.echo(f"failed: {name}: {reason}", err=True)

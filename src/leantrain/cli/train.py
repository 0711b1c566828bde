"""`leantrain train`: one training run, written to a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leantrain.cli.common import SettingsCommand, add_settings, console, free_folder, given_settings
from leantrain.errors import LeanError
from leantrain.run import processes
from leantrain.run.config import OPERATIONAL, TrainConfig, read_yaml
from leantrain.run.folder import RunFolder
from leantrain.run.lock import locked
from leantrain.run.signals import stop_with_parent

if TYPE_CHECKING:
    from leantrain.run.estimate import ExpectedTime, Pace
    from leantrain.run.loop import Run


@click.command("train", cls=SettingsCommand)
@click.option(
    "--config", "config_file", type=Path, help="YAML file of these settings; flags win over it", metavar="FILE"
)
@click.option(
    "--time-budget",
    type=float,
    metavar="X",
    help="spend this share of the time that plain training takes here: a --budget that is found by timing a few steps "
    "at every size, as on small networks small images take longer than they cost",
)
@click.option("--resume", is_flag=True, help="go on with the run in --out where it was cut")
@click.option(
    "--show-augmentation",
    "sheet",
    type=Path,
    metavar="FILE.png",
    help="draw training images as the network would see them, at every size that the method shows, and stop",
)
def train(config_file: Path | None, time_budget: float | None, resume: bool, sheet: Path | None, **flags: Any) -> int:
    """Train a model and write what came of it to a folder.

    \b
    leantrain train                                   scikit-learn's digits, in seconds
    leantrain train --data cifar10 --train-limit 10000 --model resnet8 --epochs 16
    leantrain train --data path/to/images --budget 0.5          half the cost, the accuracy kept (lean)
    leantrain train --data path/to/images --time-budget 0.5     the same for half of the time
    leantrain train --data path/to/images --method "random-backprop[keep=0.5]"
    leantrain train --data path/to/images --devices 4 --out runs/four          four processes, a GPU each
    """
    stop_with_parent()
    given, named = {} if config_file is None else read_yaml(config_file), given_settings(flags)
    given.update(named)
    if time_budget is not None:
        _check_share(time_budget, named.get("budget"))
    return _train(given, time_budget, resume, sheet)


add_settings(train)


def _train(given: dict[str, Any], time_budget: float | None, resume: bool, sheet: Path | None) -> int:
    # What torchrun starts anew after a process has died goes on, where there is something to go on with.
    resume = resume or (processes.is_restart() and "out" in given and RunFolder(Path(given["out"])).holds_run)
    stored = _stored_settings(given, resume)
    if "data" in given and stored and given["data"] != stored["data"]:
        raise _changed("data", given["data"], stored["data"])
    if time_budget is not None:
        given["budget"] = stored["budget"] if stored else time_budget  # until it is found
        if given["budget"] is None:
            raise _changed("time_budget", time_budget, "no budget")
    config = TrainConfig(**{**stored, **given})
    if not processes.started() and (config.devices or 1) * config.nodes > 1:
        return processes.launch(config.devices or 1, config.nodes, click.get_current_context().find_root().obj)

    # Only now the heavy half: a wrong flag is reported at once.
    import torch

    from leantrain.methods import chain
    from leantrain.ranks import gathered
    from leantrain.run import loggers
    from leantrain.run.display import Quiet, make_display, result_table
    from leantrain.run.estimate import Pace, budget_for_time
    from leantrain.run.loop import Run
    from leantrain.run.machine import precision_warning
    from leantrain.run.setup import check_files, load_images, resolve
    from leantrain.run.signals import Interrupted

    if sheet is not None:
        _check_sheet(sheet)
    loggers.parse(config.log)
    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    check_files(images)
    config = resolve(config, images)
    processes.connect(torch.device(config.device))
    for name in stored.keys() & given.keys() - OPERATIONAL:
        if getattr(config, name) != stored[name]:
            raise _changed(name, given[name], stored[name])
    pace = None
    if time_budget is not None and not stored:
        pace = Pace(Run(config, images))
        found = gathered(budget_for_time(time_budget, pace))[0]  # each process finds its own
        config = dataclasses.replace(config, budget=found)
    if sheet is not None:
        from leantrain.run.sheet import draw_sheet

        click.echo(f"{sheet}: {draw_sheet(Run(config, images), sheet)}", err=True)
        return 0
    out = Path(gathered(config.out or str(free_folder(config)))[0])
    config = dataclasses.replace(config, out=str(out))
    is_first = processes.rank() == 0  # of several processes, the one that speaks and writes
    display, folder = make_display() if is_first else Quiet(), RunFolder(out)
    if time_budget is not None and stored:
        display.note(f"--time-budget is asked when a run starts; this one keeps its budget of {config.budget:g}")
    run = Run(config, images, out, display)
    if not (resume and folder.has_checkpoint):
        run.check()  # before anything is written
    with locked(out) if is_first else contextlib.nullcontext():
        if is_first:
            _check_unused(folder, resume)
        if resume and (done := folder.result()) is not None:
            result = done
            with contextlib.suppress(LeanError):  # a finished run needs no checkpoint
                if is_first and (saved := folder.checkpoint()) is not None:
                    folder.write_rows(saved["rows"])  # lines may be damaged or missing by now
            display.note(f"this run is finished; its result is in {out}")
        else:
            if not resume or not run.load_checkpoint():
                run.write_config()
            elif is_first and config != folder.config():
                folder.write_config(config, folder.made_with())  # with what it goes on with
            if is_first:  # it tries how fast a step is
                display.note(_headline(run, pace))
            if pace is not None:
                pace = None
                gc.collect()  # two networks, held by cycles where torch has imported modules meanwhile
            if (text := precision_warning(config.precision, run.device)) is not None:
                display.note(f"warning: {text}")
            for text in chain(run.lean.method).warnings(run.lean.epochs, run.lean.budget):
                display.note(f"warning: {text}")
            if run.lean.note is not None:
                display.note(f"note: {run.lean.note}")
            try:
                result = run.train()
            except Interrupted as stop:
                command = f"leantrain train --out {shlex.quote(str(out))} --resume"
                display.note(f"stopped and saved at step {run.steps}; go on with: {command}")
                return stop.exit_code
    if is_first:
        console().print(result_table(result))
        click.echo(f"written to {out}", err=True)
    return 0


def _check_share(time_budget: float, budget: float | None) -> None:
    if budget is not None:
        raise LeanError(f"--budget is {budget} and --time-budget {time_budget}; give one of them.")
    if not 0 < time_budget < math.inf:
        raise LeanError(f"--time-budget is {time_budget}, but must be greater than 0; half of the time is 0.5.")


def _stored_settings(given: dict[str, Any], resume: bool) -> dict[str, Any]:
    """The settings of the run to resume; nothing for a new one, whose folder must not hold a run already."""
    out = None if given.get("out") is None else Path(given["out"])
    if resume and out is None:
        raise LeanError("--resume needs --out DIR, the folder of the run to go on with.")
    if out is not None and out.exists() and not out.is_dir():
        raise LeanError(f"--out is '{out}', which is a file; choose a folder.")
    folder = None if out is None else RunFolder(out)
    if folder is not None and resume:
        if not folder.holds_run:
            raise LeanError(f"there is no run to resume in '{out}'; drop --resume to start one there.")
        return read_yaml(folder.settings_file)
    if folder is not None and processes.rank() == 0:  # the others may see what it has begun
        _check_unused(folder, resume)
    return {}


def _check_unused(folder: RunFolder, resume: bool) -> None:
    if folder.holds_run and not resume:
        raise LeanError(f"'{folder}' holds a run already; go on with it by --resume, or choose another --out.")


def _changed(name: str, now: Any, before: Any) -> LeanError:
    flag = "--" + name.replace("_", "-")
    return LeanError(
        f"{flag} is {now}, but the run to resume was started with {before}; "
        f"drop {flag}, or start a new run in another --out."
    )


def _headline(run: Run, pace: Pace | None) -> str:
    """What will be trained, at what cost, for about how long."""
    from leantrain.data.policies import described
    from leantrain.run.estimate import expected_cost, expected_time

    config, images = run.config, run.images
    parameters = sum(p.numel() for p in run.module.parameters())
    cost = expected_cost(config, len(images.train), images.image_size)
    bad = f" ({images.bad_images} bad images left out)" if images.bad_images else ""
    start = f"resuming at step {run.steps}" if run.steps else "training"
    return (
        f"{start}: {config.model} ({parameters / 1e6:.2f} M parameters) on {config.data}, {len(images.train):,} images"
        f"{bad} of {images.image_size}×{images.image_size}, {len(images.classes)} classes, {described(images)}; "
        f"{config.method}, {config.epochs} epochs, batch {_batch(run)}, {config.precision} on {config.device}; "
        f"cost {_cost(run, cost)}, about {_time(run, expected_time(run, pace))}"
    )


def _batch(run: Run) -> str:
    """The batch size, and whose it is."""
    each = f" ({run.batch_size / run.ranks:g} in each of {run.ranks} processes)"
    return f"{run.batch_size}{each if run.ranks > 1 else ''}"


def _cost(run: Run, epochs: float) -> str:
    """What a run will cost, in epochs of plain training, and how sure that is."""
    if run.lean.budget is not None:
        share = f"{epochs:.1f} epochs, {run.lean.budget:.0%} of plain training's"
        return f"{share}, give or take two batches" if run.lean.decides_inside else share
    return f"{'about' if run.lean.decides_inside else 'at most'} {epochs:.1f} epochs"


def _time(run: Run, expected: ExpectedTime) -> str:
    """How long a run will take, and what that is of plain training's time: where images are small, more than cost."""
    time = _duration(expected.seconds)
    if run.config.method == "plain" and run.lean.budget is None:
        return time
    return f"{time}, {expected.share:.0%} of plain training's time"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _check_sheet(file: Path) -> None:
    if file.suffix.lower() != ".png":
        raise LeanError(f"--show-augmentation is '{file}', but the sheet is a PNG; give a name that ends in .png.")
    if not file.absolute().parent.is_dir():
        raise LeanError(f"--show-augmentation is '{file}', but there is no such folder; make it first.")

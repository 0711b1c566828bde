"""The command: train, compare, eval, inspect, score, report, methods. Flags derive from the settings' dataclasses."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leantrain.config import FIELDS, OPERATIONAL, TrainConfig, from_mapping, read_yaml
from leantrain.errors import LeanError, nearest
from leantrain.options import scalar_type

if TYPE_CHECKING:
    from leantrain.data import ImageSet
    from leantrain.scoring.scores import Scores
    from leantrain.train import Run


def main(argv: list[str] | None = None) -> None:
    """Run the command; a mistake of the user's is one sentence on standard error and exit code 2."""
    try:
        code = cli.main(args=argv, prog_name="leantrain", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except (click.ClickException, LeanError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"leantrain: {_sentence(text)}", err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("leantrain: interrupted", err=True)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(text: str) -> str:
    """The sentence alone: a DataLoader wraps a worker's exception into the text of its traceback."""
    marker = "LeanError: "
    return text.rsplit(marker, 1)[1].strip() if marker in text else text


class GroupedCommand(click.Command):
    """A command whose help lists its options under the headings of their fields."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = FIELDS[str(parameter.name)].metadata["group"] if parameter.name in FIELDS else "Output"
                sections.setdefault(group, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="leantrain")
def cli() -> None:
    """Train image classifiers on fewer and cheaper examples, with the accuracy kept."""


@click.command("train", cls=GroupedCommand)
@click.option(
    "--config", "config_file", type=Path, help="YAML file of these settings; flags win over it", metavar="FILE"
)
@click.option("--resume", is_flag=True, help="go on with the run in --out where it was cut")
def train(config_file: Path | None, resume: bool, **flags: Any) -> int:
    """Train a model and write what came of it to a folder.

    \b
    leantrain train                                   scikit-learn's digits, in seconds
    leantrain train --data cifar10 --train-limit 10000 --model resnet8 --epochs 16
    leantrain train --data path/to/images --method "random-backprop[keep=0.5]"
    """
    given = {} if config_file is None else read_yaml(config_file)
    given.update(from_mapping({name: value for name, value in flags.items() if value is not None}, "the command line"))
    return _train(given, resume)


train.params[:0] = [_option(field) for field in FIELDS.values()]
cli.add_command(train)


def _train(given: dict[str, Any], resume: bool) -> int:
    stored = _stored_settings(given, resume)
    if "data" in given and stored and given["data"] != stored["data"]:
        raise _changed("data", given["data"], stored["data"])
    config = TrainConfig(**{**stored, **given})

    # Only now the heavy half: a wrong flag is told at once.
    import torch

    from leantrain.display import make_display, result_table
    from leantrain.signals import Interrupted
    from leantrain.train import Run, load_images, resolve

    if config.tensorboard:
        _need_tensorboard()
    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    config = resolve(config, images)
    for name in stored.keys() & given.keys() - OPERATIONAL:
        if getattr(config, name) != stored[name]:
            raise _changed(name, given[name], stored[name])
    out = Path(config.out) if config.out else _free_folder(config)
    config = dataclasses.replace(config, out=str(out))
    display = make_display()
    run = Run(config, images, out, display)
    if resume and (out / "result.json").exists():
        result = json.loads((out / "result.json").read_text())
        display.note(f"this run is finished; its result is in {out}")
    else:
        if not resume or not run.load_checkpoint():
            run.check()
            run.write_config()
        display.note(_headline(run))
        if (wasteful := run.lean.method.warning(run.lean.epochs)) is not None:
            display.note(f"warning: {wasteful}")
        try:
            result = run.train()
        except Interrupted as stop:
            command = f"leantrain train --out {shlex.quote(str(out))} --resume"
            display.note(f"stopped and saved at step {run.steps}; go on with: {command}")
            return stop.exit_code
    _console().print(result_table(result))
    click.echo(f"written to {out}", err=True)
    return 0


def _stored_settings(given: dict[str, Any], resume: bool) -> dict[str, Any]:
    """The settings of the run to resume; nothing for a new one, whose folder must not hold a run already."""
    out = None if given.get("out") is None else Path(given["out"])
    if resume and out is None:
        raise LeanError("--resume needs --out DIR, the folder of the run to go on with.")
    if out is not None and out.exists() and not out.is_dir():
        raise LeanError(f"--out is '{out}', which is a file; choose a folder.")
    config = None if out is None else out / "config.yaml"
    if config is not None and resume:
        if not config.exists():
            raise LeanError(f"there is no run to resume in '{out}'; drop --resume to start one there.")
        return read_yaml(config)
    if config is not None and config.exists():
        raise LeanError(f"'{out}' holds a run already; go on with it by --resume, or choose another --out.")
    return {}


def _changed(name: str, now: Any, before: Any) -> LeanError:
    flag = "--" + name.replace("_", "-")
    return LeanError(
        f"{flag} is {now}, but the run to resume was started with {before}; "
        f"drop {flag}, or start a new run in another --out."
    )


def _free_folder(config: TrainConfig) -> Path:
    """runs/DATA-MODEL-METHOD-SEED, with a number behind it where that is taken."""
    words = (Path(config.data).name or "data", config.model, config.method, f"seed{config.seed}")
    name = "-".join(str(word) for word in words)
    name = "".join(c if c.isalnum() or c in "-_.=" else "_" for c in name)
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _headline(run: Run) -> str:
    """What will be trained, at what cost, for about how long."""
    from leantrain.train import expected_cost, expected_seconds

    config, images = run.config, run.images
    parameters = sum(p.numel() for p in run.module.parameters())
    cost = expected_cost(config, len(images.train), images.image_size)
    bad = f" ({images.bad_images} bad images left out)" if images.bad_images else ""
    start = f"resuming at step {run.steps}" if run.steps else "training"
    return (
        f"{start}: {config.model} ({parameters / 1e6:.2f} M parameters) on {config.data}, {len(images.train):,} images"
        f"{bad} of {images.image_size}×{images.image_size}, {len(images.classes)} classes; {config.method}, "
        f"{config.epochs} epochs, batch {config.batch_size}, {config.precision} on {config.device}; "
        f"cost {'about' if run.lean.method.thins else 'at most'} {cost:.1f} epochs, "
        f"about {_duration(expected_seconds(run))}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _need_tensorboard() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise LeanError("--tensorboard needs the tensorboard package: pip install 'leantrain[tensorboard]'.") from None


def _console() -> Any:
    from rich.console import Console

    return Console()


@cli.command("eval")
@click.argument("folder", type=Path, metavar="DIR")
@click.option("--data", help="another set than the run's, with the same classes", metavar="TEXT")
@click.option("--data-root", help="where sets known by name are kept", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def eval_command(folder: Path, data: str | None, data_root: str | None, as_json: bool) -> None:
    """Evaluate the model that a run saved, on its own test set or on another one."""
    settings_file = folder / "config.yaml"
    if not settings_file.exists() or not (folder / "model.safetensors").exists():
        raise LeanError(f"'{folder}' holds no finished run (config.yaml and model.safetensors); train one first.")
    settings = read_yaml(settings_file)
    if data is not None:
        settings.update(data=data, validation=0.0, train_limit=None)
    if data_root is not None:
        settings["data_root"] = data_root
    from leantrain.train import evaluate_folder

    outcome = evaluate_folder(folder, TrainConfig(**settings))
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{folder} on {outcome['data']}"), show_header=False, title_justify="left")
    for name in ("test_accuracy", "macro_f1", "worst_class_accuracy", "calibration_error", "test_loss"):
        table.add_row(name.replace("_", " "), f"{outcome[name]:.4f}")
    _console().print(table)


@cli.command("inspect")
@click.argument("folder", type=Path, metavar="RUN")
@click.option("--out", type=Path, help="folder for the pictures and inspect.json (default: RUN/inspect)", metavar="DIR")
@click.option(
    "--pairings", type=click.IntRange(1), default=5, help="random pairings to average (default: 5)", metavar="N"
)
@click.option(
    "--examples", type=click.IntRange(2), help="training examples to look at (default: up to 2000)", metavar="N"
)
@click.option("--epoch", type=click.IntRange(1), help="whose losses to draw, from 1 (default: the last)", metavar="N")
@click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)", metavar="TEXT")
@click.option("--seed", type=click.IntRange(0), default=0, help="decides examples, pairings and cuts", metavar="N")
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
        tell=lambda line: click.echo(line, err=True),
    )
    click.echo(written)


NOT_IN_SCORE = ("method", "budget", "epochs", "eval_every", "checkpoint_every", "history", "tensorboard", "out")
FEW_STEPS = 100  # BatchNorm's running statistics alone take some fifty to forget where they started


@click.command("score", cls=GroupedCommand)
@click.option("--method", "kind", help="el2n, grand, forgetting, loss: what to score by (default: el2n)")
@click.option("--models", type=int, help="fresh models that the score is the mean over (default: 3)", metavar="N")
@click.option(
    "--score-epochs", type=int, help="epochs that each is trained for (default: 2; for forgetting 5)", metavar="N"
)
@click.option("--gradients", help="all, last: whose gradients grand measures; last is quick (default: all)")
@click.option("--from-run", type=Path, help="score by how often a run used each example", metavar="RUN")
@click.option("--compare", "compared", type=Path, nargs=2, help="compare two scores files", metavar="FILE FILE")
@click.option(
    "--out",
    type=Path,
    help="file to write, .npz or .parquet; pictures go to a folder of its name (default: scores-DATA-METHOD-SEED.npz); "
    "with --compare: a folder",
    metavar="FILE",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def score_command(
    from_run: Path | None, compared: tuple[Path, Path] | None, out: Path | None, as_json: bool, **flags: Any
) -> None:
    """Score every training example by how hard it is, before a training that leaves the easiest out.

    \b
    leantrain score --data cifar10 --train-limit 10000 --method el2n --out scores.npz
    leantrain score --from-run runs/one --out use.npz
    leantrain score --compare scores.npz use.npz --out agreement
    """
    given = {name: value for name, value in flags.items() if value is not None}
    alone = "--compare" if compared else "--from-run" if from_run else None
    if alone and (given or (compared and from_run)):
        other = "--" + next(iter(given), "from_run").replace("kind", "method").replace("_", "-")
        raise LeanError(f"{alone} takes no {other}, as what it needs is written already; drop one of them.")
    if compared:
        _compare_scores(*compared, out, as_json)
    elif from_run:
        from leantrain.scoring.compare import from_run as count_use
        from leantrain.scoring.compare import images_of

        out = out and _free_scores_file(out)
        images = images_of(from_run)
        _write_scores(count_use(from_run, images), images, out, as_json)
    else:
        own = {name: given.pop(name, None) for name in ("kind", "models", "score_epochs", "gradients")}
        _score(from_mapping(given, "the command line"), own, out, as_json)


score_command.params[:0] = [_option(field) for field in FIELDS.values() if field.name not in NOT_IN_SCORE]
cli.add_command(score_command)


def _score(given: dict[str, Any], own: dict[str, Any], out: Path | None, as_json: bool) -> None:
    config = TrainConfig(**given)
    out = out and _free_scores_file(out)

    import torch

    from leantrain.scoring.ensemble import EPOCHS, Ensemble, score_images
    from leantrain.scoring.summary import make_score_display
    from leantrain.train import load_images, resolve

    kind = own["kind"] or "el2n"
    epochs = EPOCHS.get(kind, 1) if own["score_epochs"] is None else own["score_epochs"]
    ensemble = Ensemble(kind, 3 if own["models"] is None else own["models"], epochs, own["gradients"] or "all")
    out = out or _free_scores_file(_scores_file(config, kind))
    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    config = resolve(config, images)
    display = make_score_display()
    examples = len(images.train)
    display.note(
        f"scoring: {kind} of {examples:,} images of {config.data}, the mean of {ensemble.models} × {config.model} of "
        f"{epochs} epochs each; cost {ensemble.cost(examples) / examples:.2f} epochs"
    )
    steps = epochs * math.ceil(examples / config.batch_size)
    if steps < FEW_STEPS:
        display.note(f"note: {steps} steps per model are few to tell examples apart by; give more --score-epochs.")
    scores = score_images(config, images, display=display, **dataclasses.asdict(ensemble))
    _write_scores(scores, images, out, as_json)


def _scores_file(config: TrainConfig, kind: str) -> Path:
    name = f"scores-{Path(config.data).name or 'data'}-{kind}-seed{config.seed}.npz"
    return Path("".join(c if c.isalnum() or c in "-_." else "_" for c in name))


def _free_scores_file(out: Path) -> Path:
    """Refuse a place that cannot be written or is taken, before anything is trained."""
    from leantrain.scoring.scores import check_suffix

    check_suffix(out)
    if any(mark in str(out) for mark in ",[]"):
        raise LeanError(f"--out is '{out}', but a method's name cannot hold ',', '[' or ']'; choose another one.")
    folder = out.with_suffix("")
    for taken in (out, folder / "summary.json", *([folder] if folder.is_file() else [])):
        if taken.exists():
            raise LeanError(f"'{taken}' is there already; choose another --out, or remove it.")
    return out


def _write_scores(scores: Scores, images: ImageSet, out: Path | None, as_json: bool) -> None:
    from leantrain.files import write_text
    from leantrain.scoring.figures import draw
    from leantrain.scoring.summary import advice, score_table, summarise

    if out is None:
        named = TrainConfig(data=scores.made_with["data"], seed=scores.made_with["seed"])
        out = _free_scores_file(_scores_file(named, scores.kind))
    folder, summary = out.with_suffix(""), summarise(scores)
    text = json.dumps(summary, indent=2, allow_nan=False)
    scores.save(out)
    draw(scores, folder, images)
    write_text(folder / "summary.json", text + "\n")
    if as_json:
        click.echo(text)
    else:
        _console().print(score_table(summary))
        click.echo(f"cost: {scores.cost:,.0f} examples = {summary['cost_epochs']:.2f} epochs; {scores.seconds:.1f} s")
    click.echo(f"written to {out}, pictures to {folder}; {advice(scores, out)}", err=True)


def _compare_scores(one: Path, other: Path, out: Path | None, as_json: bool) -> None:
    from leantrain.scoring import compare_scores, load

    scores = load(one), load(other)
    compared = compare_scores(*scores)
    if out is not None and (out.is_file() or (out / "compare.json").exists()):
        raise LeanError(f"--out is '{out}', which is there already; choose another folder, or remove it.")
    if out is not None:
        from leantrain.files import write_text
        from leantrain.scoring.compare import combined, images_with
        from leantrain.scoring.figures import gallery, overlap, write

        write(overlap(compared), out / "overlap.png")
        both = combined(*scores)
        both.save(out / "combined.npz")
        if (images := images_with(both)) is not None:
            write(gallery(both, images), out / "combined.png")
        else:
            click.echo(f"no picture of the images, as they are not all in {both.made_with.get('data')} now", err=True)
        write_text(out / "compare.json", json.dumps(compared, indent=2) + "\n")
        click.echo(f"written to {out}", err=True)
    if as_json:
        click.echo(json.dumps(compared, indent=2))
        return
    rank = compared["spearman"]
    click.echo(f"in both: {compared['common']:,} examples; in one only: {compared['only_a']:,}, {compared['only_b']:,}")
    click.echo(f"Spearman rank correlation: {'none, as one is constant' if rank is None else f'{rank:.4f}'}")
    for share in (0.1, 0.25, 0.5, 0.75):
        place = compared["fractions"].index(share)
        agreed, chance = compared["overlap"][place], compared["chance"][place]
        click.echo(f"of the lowest {share:.0%} both name {agreed:.1%} (by chance {chance:.1%})")


NOT_IN_COMPARE = ("method", "budget", "tensorboard")


@click.command("compare", cls=GroupedCommand)
@click.option("--methods", help='comma-separated, e.g. "mixtrain-cutmix,random-backprop[keep=0.5]"; sgd is added')
@click.option("--seeds", type=int, help="runs per method, with seeds --seed, --seed + 1, … (default: 3)", metavar="N")
@click.option("--controls/--no-controls", default=None, help="equal-budget sgd and RS2 for every method (default: on)")
@click.option("--margin", type=float, help="points that count as the same accuracy (default: 0.2)", metavar="X")
@click.option("--jobs", type=int, default=1, help="runs at once; above 1 no times are given (default: 1)", metavar="N")
@click.option("--resume", is_flag=True, help="go on with the comparison in --out, or add methods and seeds to it")
@click.option("--from", "from_folder", type=Path, help="print the table of a comparison again", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
@click.option("--config", "config_file", type=Path, help="YAML file of settings; flags win over it", metavar="FILE")
def compare(
    methods: str | None,
    seeds: int | None,
    controls: bool | None,
    margin: float | None,
    jobs: int,
    resume: bool,
    from_folder: Path | None,
    as_json: bool,
    config_file: Path | None,
    **flags: Any,
) -> int:
    """Compare methods on your data, each beside plain training that costs the same.

    \b
    leantrain compare --methods mixtrain-cutmix --seeds 3 --out runs/compare
    leantrain compare --out runs/compare --methods "random-backprop[keep=0.5]" --resume    adds a method
    leantrain compare --from runs/compare                                                  prints it again
    """
    for name, value, low in (("--seeds", seeds, 1), ("--jobs", jobs, 1), ("--margin", margin, 0)):
        if value is not None and not low <= value < math.inf:
            raise LeanError(f"{name} is {value}, but must be a finite number of at least {low}.")
    if from_folder is not None:
        from leantrain.compare import load_comparison

        _show(load_comparison(from_folder).summary(), as_json)
        return 0
    given = {} if config_file is None else _shared_settings(config_file)
    given.update(from_mapping({name: value for name, value in flags.items() if value is not None}, "the command line"))
    chosen = {"methods": methods, "seeds": seeds, "controls": controls, "margin": margin}
    return _compare(given, {k: v for k, v in chosen.items() if v is not None}, jobs, resume, as_json)


compare.params[:0] = [_option(field) for field in FIELDS.values() if field.name not in NOT_IN_COMPARE]
cli.add_command(compare)


def _shared_settings(file: Path) -> dict[str, Any]:
    """What of a config file all rows of a comparison share; a run's own config.yaml will do."""
    settings = read_yaml(file)
    if settings.get("budget") is not None:
        raise LeanError(f"'{file}' sets budget, but a comparison sets it for its controls; take the line out.")
    return {name: value for name, value in settings.items() if name not in (*NOT_IN_COMPARE, "out")}


def _compare(given: dict[str, Any], chosen: dict[str, Any], jobs: int, resume: bool, as_json: bool) -> int:
    config = TrainConfig(**given)

    import torch

    from leantrain.compare import Comparison, Settings, check_same, expected_total, load_comparison, split_methods
    from leantrain.display import make_table_display
    from leantrain.methods import parse_method
    from leantrain.signals import Interrupted
    from leantrain.train import Run, load_images, resolve

    if "methods" in chosen:
        chosen["methods"] = split_methods(chosen["methods"])
    if config.out is None:
        named = dataclasses.replace(config, model="compare", method="")
        config = dataclasses.replace(config, out=str(_free_folder(named)))
    out = Path(config.out or "")
    there = (out / "compare.yaml").exists()
    if resume and not there:
        raise LeanError(f"there is no comparison to resume in '{out}'; drop --resume to start one there.")
    if there and not resume:
        raise LeanError(f"'{out}' holds a comparison already; go on with it or add to it by --resume.")
    if resume:
        stored = load_comparison(out).settings
        config = dataclasses.replace(stored.config, **given)
        check_same(stored.config, config, list(given))
        chosen["methods"] = tuple(dict.fromkeys((*stored.methods, *chosen.get("methods", ()))))
        chosen["seeds"] = max(stored.seeds, chosen.get("seeds", 0))
        chosen = {"controls": stored.controls, "margin": stored.margin, **chosen}
    else:
        chosen = {"methods": ("sgd", "mixtrain-cutmix"), "seeds": 3, **chosen}
    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    config = resolve(config, images)
    Run(dataclasses.replace(config, method="sgd"), images)  # what cannot be trained at all is told before all else
    settings = Settings(config, **chosen)
    display = make_table_display()
    comparison = Comparison(settings, out, display)
    total = expected_total(settings, len(images.train), images.image_size)
    display.note(
        f"comparing {', '.join(settings.methods)} with sgd on {config.data}: {config.model}, {config.epochs} epochs, "
        f"{settings.seeds} seed{'s' * (settings.seeds > 1)}{', with controls' * settings.controls}; "
        f"at most {total:,.0f} epochs in all"
    )
    for name in settings.methods:
        if (wasteful := parse_method(name).warning(config.epochs or 1)) is not None:
            display.note(f"warning: {wasteful}")
    code = 0
    try:
        comparison.train(jobs)
    except (Interrupted, KeyboardInterrupt) as stop:
        code = stop.exit_code if isinstance(stop, Interrupted) else 130
        display.note(f"stopped; go on with: leantrain compare --out {shlex.quote(str(out))} --resume")
    _show(comparison.write_summary(), as_json)
    from leantrain.report import write_report

    click.echo(f"written to {out}; the page is {write_report([out])}", err=True)
    return code


def _show(summary: dict[str, Any], as_json: bool) -> None:
    from leantrain.display import comparison_table

    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    console = _console()
    if not console.is_terminal:
        console.width = 200
    console.print(comparison_table(summary))
    for name, note in summary["notes"].items():
        click.echo(f"{name}: {note}")
    for name, reason in summary["failures"].items():
        click.echo(f"failed: {name}: {reason}", err=True)


@cli.command("report")
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


@cli.command("methods")
@click.argument("name", required=False)
def methods_command(name: str | None) -> None:
    """List the methods, or one method's options with their meaning and default."""
    from leantrain.methods import ALIASES, METHODS

    if name is None:
        width = max(map(len, METHODS))
        for known, kind in METHODS.items():
            also = f" Also called {kind.alias}." if kind.alias else ""
            click.echo(f"{known:<{width}}  {_first_line(kind)}{also}")
        click.echo("\nleantrain methods NAME tells a method's options; write them as NAME[option=value,…].")
        return
    methods = {**METHODS, **ALIASES}
    if name not in methods:
        raise LeanError(f"method '{name}' is not known; there are {', '.join(METHODS)}.{nearest(name, methods)}")
    kind = methods[name]
    click.echo(f"{name}: {_first_line(kind)}")
    options = [f for f in dataclasses.fields(kind) if "help" in f.metadata]
    if not options:
        click.echo("It has no options.")
    for option in options:
        choices = f" [{', '.join(option.metadata['choices'])}]" if option.metadata["choices"] else ""
        default = str(option.default).lower() if isinstance(option.default, bool) else option.default
        default = "(not set)" if default is None else default
        click.echo(f"  {option.name} = {default}{choices}\n      {option.metadata['help']}")


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]

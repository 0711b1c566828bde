"""`leantrain score`: how hard every training example is, before a training that leaves the easiest out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leantrain.cli.common import SettingsCommand, add_settings, console
from leantrain.cli.plugins import load_plugins
from leantrain.errors import LeanError
from leantrain.run.config import TrainConfig, from_mapping
from leantrain.run.lock import locked
from leantrain.run.names import legal_name

if TYPE_CHECKING:
    from leantrain.data import ImageSet
    from leantrain.scoring.scores import Scores

NOT_IN_SCORE = ("method", "budget", "epochs", "eval_every", "checkpoint_every", "history", "log", "out")
FEW_STEPS = 100  # BatchNorm's running statistics alone take some fifty to forget where they started


class ScoreOption(click.Option):
    """An option whose help says what the registered scores say; asked only when shown, as it takes importing torch."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from leantrain.scoring.kinds import SCORES, Score

        load_plugins(ctx.find_root().params.get("plugins") or ())  # help is shown before the command would
        others = [f"{name} {kind.epochs}" for name, kind in SCORES.items() if kind.epochs != Score.epochs]
        epochs = "; ".join([str(Score.epochs), *(f"for {other}" for other in others)])
        flags, text = super().get_help_record(ctx) or ("", "")
        return flags, text.format(kinds=", ".join(SCORES), epochs=epochs)


@click.command("score", cls=SettingsCommand)
@click.option("--method", "kind", cls=ScoreOption, help="{kinds}: what to score by (default: el2n)")
@click.option("--models", type=int, help="fresh models that the score is the mean over (default: 3)", metavar="N")
@click.option(
    "--score-epochs",
    type=int,
    cls=ScoreOption,
    help="epochs that each is trained for (default: {epochs})",
    metavar="N",
)
@click.option("--gradients", help="all, last: short for grand[gradients=…]; last is quick (default: all)")
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
        from leantrain.run.scores import from_run as count_use
        from leantrain.run.scores import images_of

        out = out and _free_scores_file(out)
        images = images_of(from_run)
        scores = count_use(from_run, images)
        out = out or _scores_file(scores.made_with["data"], scores.kind, scores.made_with["seed"])
        with locked(out):
            _is_left(_free_scores_file(out), scores.made_with)
            _write_scores(scores, images, out, as_json)
    else:
        own = {name: given.pop(name, None) for name in ("kind", "models", "score_epochs", "gradients")}
        _score(from_mapping(given, "the command line"), own, out, as_json)


add_settings(score_command, leave_out=NOT_IN_SCORE)


def _score(given: dict[str, Any], own: dict[str, Any], out: Path | None, as_json: bool) -> None:
    config = TrainConfig(**given)
    out = out and _free_scores_file(out)

    from leantrain.scoring.ensemble import MODELS, Ensemble
    from leantrain.scoring.kinds import make_score

    score = make_score(own["kind"] or "el2n", gradients=own["gradients"])
    epochs = score.epochs if own["score_epochs"] is None else own["score_epochs"]
    ensemble = Ensemble(score, MODELS if own["models"] is None else own["models"], epochs)
    out = out or _scores_file(config.data, score.name, config.seed)

    # Only now the heavy half: a wrong flag is reported at once.
    import torch

    from leantrain.inspect.score_summary import make_score_display
    from leantrain.run.scores import made_with, score_images
    from leantrain.run.setup import check_files, load_images, resolve
    from leantrain.scoring.scores import load

    if config.threads:
        torch.set_num_threads(config.threads)
    images = load_images(config)
    check_files(images)
    config = resolve(config, images)
    display = make_score_display()
    examples = len(images.train)
    display.note(
        f"scoring: {score} of {examples:,} images of {config.data}, the mean of {ensemble.models} × {config.model} of "
        f"{epochs} epochs each; cost {ensemble.cost(examples) / examples:.2f} epochs"
    )
    steps = epochs * math.ceil(examples / config.step_size)
    if steps < FEW_STEPS:
        display.note(f"note: {steps} steps per model are few to tell examples apart by; give more --score-epochs.")
    with locked(out):
        if _is_left(_free_scores_file(out), made_with(config, images, ensemble)):
            scores = load(out)
            display.note(f"the scores in {out} are of such a call that was stopped; what it did not draw is drawn now")
        else:
            scores = score_images(config, images, score, models=ensemble.models, epochs=epochs, display=display)
        _write_scores(scores, images, out, as_json)


def _scores_file(data: str, kind: str, seed: int) -> Path:
    return _free_scores_file(Path(legal_name(f"scores-{Path(data).name or 'data'}-{kind}-seed{seed}.npz")))


def _free_scores_file(out: Path) -> Path:
    """Refuse a place that cannot be written or is taken, before anything is trained.

    What a call that was stopped left there is not in the way: the scores are written first, and summary.json last.
    """
    from leantrain.scoring.scores import check_suffix

    check_suffix(out)
    if any(mark in str(out) for mark in ",[]"):
        raise LeanError(f"--out is '{out}', but a method's name cannot hold ',', '[' or ']'; choose another one.")
    folder = out.with_suffix("")
    if folder.is_file():
        raise _taken(folder)
    if (folder / "summary.json").exists():
        raise _taken(out if out.exists() else folder / "summary.json")
    return out


def _is_left(out: Path, made_with: dict[str, Any]) -> bool:
    """Whether a call with the same settings was stopped after it had written its scores; others are refused."""
    from leantrain.scoring.scores import load

    if not out.exists():
        return False
    if load(out).made_with != made_with:
        raise _taken(out)
    return True


def _taken(place: Path) -> LeanError:
    return LeanError(f"'{place}' is there already; choose another --out, or remove it.")


def _write_scores(scores: Scores, images: ImageSet, out: Path, as_json: bool) -> None:
    from leantrain.files import write_text
    from leantrain.inspect.score_figures import draw
    from leantrain.inspect.score_summary import advice, score_table
    from leantrain.scoring import summarise

    folder, summary = out.with_suffix(""), summarise(scores)
    text = json.dumps(summary, indent=2, allow_nan=False)
    scores.save(out)
    draw(scores, folder, images)
    write_text(folder / "summary.json", text + "\n")
    if as_json:
        click.echo(text)
    else:
        console().print(score_table(summary))
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
        from leantrain.inspect.score_figures import gallery, overlap, write
        from leantrain.run.scores import images_with
        from leantrain.scoring import combined

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

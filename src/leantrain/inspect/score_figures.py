"""Scores in pictures: how they are distributed, whose are lowest and highest, and how two of them agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from leantrain.data import ImageSet
from leantrain.files import write_atomically
from leantrain.inspect.figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    RED,
    SKY,
    WIDTH,
    new_axes,
    new_figure,
    percent_axes,
    png,
    shortened,
    show_picture,
)
from leantrain.report.pictures import shrink
from leantrain.scoring.kinds import words_for
from leantrain.scoring.scores import Scores
from leantrain.scoring.summary import PRUNED, SHOWN, by_class, order, quantiles

BINS = 60
COLUMNS = 10
MOST_CLASSES = 30
PICTURE = 96  # the largest side of a picture in the gallery


def draw(scores: Scores, folder: Path, images: ImageSet | None = None) -> list[Path]:
    """Write every figure of some scores; the gallery needs the images that were scored."""
    figures = {"histogram": histogram(scores), "classes": classes(scores)}
    if images is not None:
        figures["gallery"] = gallery(scores, images)
    return [write(figure, folder / f"{name}.png") for name, figure in figures.items()]


def write(figure: Figure, path: Path) -> Path:
    """A figure as a PNG file."""
    content = png(figure)
    write_atomically(path, lambda file: file.write(content))
    return path


def histogram(scores: Scores) -> Figure:
    """How many examples have which score, and where pruning the lowest quarter would cut."""
    cut, middle, top = quantiles(scores.values, (PRUNED, 0.5, 1.0))
    figure = new_figure(
        f"{words_for(scores.kind).title}: a quarter of the {len(scores):,} examples has at most {cut:.3g}, "
        f"half {middle:.3g}; the highest is {top:.3g}",
        f"{_made(scores)} Pruning {PRUNED:.0%} takes away what lies left of the line.{_warning(scores)}",
    )
    axes = new_axes(figure)
    values = scores.values.numpy()
    counts, edges = np.histogram(values, BINS)
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=BLUE, edgecolor="white", linewidth=0.4)
    axes.axvline(cut, color=RED, linestyle="--", linewidth=1.6)
    axes.annotate(
        f"{PRUNED:.0%} pruned", (cut, 1), (4, -4), xycoords=("data", "axes fraction"), textcoords="offset points",
        va="top", color=RED,
    )  # fmt: skip
    axes.set(xlabel=words_for(scores.kind).meaning, ylabel="examples")
    return figure


def classes(scores: Scores) -> Figure:
    """The scores of each class, from the easiest class to the hardest."""
    groups = {scores.classes[number]: scores.values[mine].numpy() for number, mine in by_class(scores).items()}
    ranked = sorted(groups, key=lambda name: float(np.median(groups[name])))
    shown = ranked if len(ranked) <= MOST_CLASSES else ranked[: MOST_CLASSES // 2] + ranked[-MOST_CLASSES // 2 :]
    left_out = "" if shown == ranked else f" Of {len(ranked)} classes, the easiest and the hardest {len(shown) // 2}."
    low, high = (float(np.median(groups[name])) for name in (ranked[0], ranked[-1]))
    figure = new_figure(
        f"The median {words_for(scores.kind).title} is lowest for {ranked[0]} ({low:.3g}) and highest for {ranked[-1]} "
        f"({high:.3g})",
        f"{_made(scores)}{left_out} Boxes: the middle half and the median; whiskers: 5 % to 95 %. Left of the line is "
        f"the lowest {PRUNED:.0%} of all examples, which pruning takes from some classes more than from others.",
        height=0.28 * len(shown) + 2.2,
    )
    axes = new_axes(figure)
    axes.boxplot(
        [groups[name] for name in shown], vert=False, whis=(5, 95), showfliers=False, widths=0.6, patch_artist=True,
        boxprops={"facecolor": SKY, "edgecolor": BLACK}, medianprops={"color": BLACK, "linewidth": 2},
    )  # fmt: skip
    axes.set_yticks(range(1, len(shown) + 1), [shortened(name, 24) for name in shown], parse_math=False)
    axes.axvline(quantiles(scores.values, (PRUNED,))[0], color=RED, linestyle="--", linewidth=1.6)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=words_for(scores.kind).meaning)
    return figure


def gallery(scores: Scores, images: ImageSet) -> Figure:
    """The images with the lowest and with the highest scores."""
    ranked = order(scores)
    count = min(SHOWN, len(ranked))
    lines = -(-count // COLUMNS)
    tile = WIDTH / COLUMNS
    figure = new_figure(
        f"{words_for(scores.kind).title}: the {count} lowest above, the {count} highest below",
        f"{_made(scores)} Under each its class and its score, from the outermost inwards.{_warning(scores)}",
        height=2 * lines * (tile + 0.36) + 1.4,
    )
    grid: Any = figure.subplots(2 * lines, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for part, (which, colour) in enumerate(((ranked[:count], BLUE), (ranked.flip(0)[:count], RED))):
        pixels, _ = images.train.batch(which, -1)
        pictures = (shrink(pixels, PICTURE).permute(0, 2, 3, 1).float() / 255).numpy()
        for number, i in enumerate(which.tolist()):
            text = f"{shortened(scores.classes[int(scores.targets[i])], 11)}\n{float(scores.values[i]):.3g}"
            line, column = divmod(number, COLUMNS)
            show_picture(grid[part * lines + line, column], pictures[number], text, colour)
    return figure


def overlap(compared: dict[str, Any]) -> Figure:
    """Which share of the examples two scores would both prune, for every share that is pruned."""
    rank, quarter = compared["spearman"], compared["overlap"][round(PRUNED * len(compared["overlap"])) - 1]
    correlation = "no rank correlation, as one is constant" if rank is None else f"Spearman {rank:.3f}"
    one, other = (words_for(compared[side]).title for side in ("a", "b"))
    figure = new_figure(
        f"{one} and {other}: {correlation}; of the lowest {PRUNED:.0%} they share {quarter:.0%}",
        f"{compared['common']:,} examples in both, matched by id. Drawn: the lowest by {one} that are also lowest by "
        f"{other}; with unrelated scores it would be the dashed line. Equal scores at the border count by "
        "their chance.",
    )
    axes = new_axes(figure)
    shares = np.array(compared["fractions"])
    axes.plot(shares, compared["overlap"], color=BLUE, linewidth=2, label="overlap")
    axes.plot(shares, compared["chance"], color=GREY, linestyle="--", label="by chance")
    axes.plot([PRUNED], [quarter], "o", color=ORANGE)
    axes.set(xlabel="share pruned, from the lowest score", ylabel="share of the pruned in common", xlim=(0, 1), ylim=(0, 1.02))  # fmt: skip  # noqa: E501
    percent_axes(axes)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(loc="lower right")
    return figure


def _warning(scores: Scores) -> str:
    return "" if scores.kind == "use" else " The highest scores are often wrong labels, which pruning the lowest keeps."


def _made(scores: Scores) -> str:
    """Where the scores are from, in a sentence."""
    made = scores.made_with
    if scores.kind == "use":
        return f"{made.get('method')} on {made.get('data')}, {made.get('epochs')} epochs."
    if scores.kind == "combined":
        one, other = (words_for(kind).title for kind in made["of"])
        return f"Mean of the ranks by {one} and by {other}, {made.get('data')}."
    models = made.get("models", 1)
    return (
        f"Mean of {models} {made.get('model')} model{'s' * (models != 1)} trained for {made.get('epochs')} epochs on "
        f"{made.get('data')}."
    )

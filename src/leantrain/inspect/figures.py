"""Drawing: one function per diagnostic, from its numbers to a figure, without matplotlib's global state."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from leantrain.inspect.record import Array, Numbers

# Okabe and Ito's colours, which people of any colour vision can tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#222222",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, PALE = "#8A8A8A", "#DDDDDD"
WAYS = {  # name, colour, marker
    "alone": ("without mixing", BLACK, "o"),
    "zeropatch": ("ZeroPatch\n(other half zeroed)", SKY, "D"),
    "cutmix_split": ("CutMix\nwith split", BLUE, "s"),
    "cutmix": ("CutMix\nwithout split", RED, "o"),
    "mixup": ("MixUp", ORANGE, "^"),
}
CONSTITUENTS = (RED, BLUE, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
WIDTH, DPI = 9.0, 100
FEW = 20  # a share of fewer examples says little


def png(figure: Figure) -> bytes:
    """The figure as a file's content."""
    content = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(content, format="png")
    return content.getvalue()


def loss_change(numbers: Numbers) -> Figure:
    """Fig. 5A."""
    low, high = _ends(numbers["change"]["cutmix"])
    figure = new_figure(
        f"CutMix without split changes the lowest losses by {low:.2f} and the highest by {high:.2f}",
        "MixTrain Fig. 5A: |loss − mixed loss| against the loss without mixing, with the model at the end of the run. "
        f"Each point is the mean of {_range(numbers['examples'])} training examples; mixed at equal shares, the mixed "
        "loss averaged over random pairings.",
    )
    axes = new_axes(figure)
    for name, curve in numbers["change"].items():
        label, colour, marker = _way(name)
        axes.plot(numbers["loss"], np.array(curve, dtype=float), color=colour, marker=marker, label=label, linewidth=2)
    axes.set(xlabel="loss without mixing", ylabel="mean |loss − mixed loss|")
    axes.set_ylim(bottom=0)
    if min(numbers["loss"]) > 0 and max(numbers["loss"]) > 30 * min(numbers["loss"]):
        axes.set_xscale("log")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(numbers["change"]), frameon=False)
    return figure


def accuracy_kept(numbers: Numbers) -> Figure:
    """Fig. 5B."""
    kept = numbers["kept"]
    listed = ", ".join(f"{_way(name)[0]} {_percent(row['mean'])}" for name, row in kept.items())
    figure = new_figure(
        f"Still recognised after mixing: {listed}",
        f"MixTrain Fig. 5B: of the {numbers['examples']:,} examples that the model recognises without mixing, the "
        "share it recognises when they are mixed with a random other one. Bars: mean over pairings; lines: standard "
        "deviation; dots: each pairing. With one answer for two, a label counts in first place, or in second behind "
        "the other's.",
    )
    axes = new_axes(figure)
    for place, (name, row) in enumerate(kept.items()):
        axes.bar(place, row["mean"], 0.6, color=_way(name)[1], yerr=row["spread"], capsize=8, ecolor=BLACK)
        axes.plot(place + np.linspace(-0.12, 0.12, len(row["each"])), row["each"], "o", color="white", mec=BLACK, ms=5)
        axes.annotate(
            f"{row['mean']:.1%} ± {row['spread']:.1%}", (place, max(row["each"])), (0, 8), textcoords="offset points",
            ha="center",
        )  # fmt: skip
    axes.set_xticks(range(len(kept)), [WAYS[name][0] for name in kept])
    axes.set(ylabel="share still recognised", ylim=(0, 1.08), xlim=(-0.6, len(kept) - 0.4))
    axes.set_yticks(np.linspace(0, 1, 6))
    percent_axes(axes)
    axes.grid(visible=False, axis="x")
    return figure


def loss_distribution(numbers: Numbers) -> Figure:
    """Fig. 5C."""
    edges, (low, high) = numbers["edges"], (numbers["L_mid"], numbers["L_incorr"])
    region = numbers["unmixed_in_region"]
    figure = new_figure(
        f"Epoch {numbers['epoch'] + 1}: of the unmixed examples {region['1']:,} are in region 1 (easy), "
        f"{region['2']:,} in region 2, {region['3']:,} in region 3 (hard)",
        "MixTrain Fig. 5C: losses of one epoch, and the thresholds that its unmixed losses were judged by. Below L_mid "
        "an example is mixed next; above L_incorr it is where its loss has risen. Losses of mixed examples are those "
        "inside their composites. The last bar holds all higher losses.",
    )
    axes = new_axes(figure)
    top = edges[-1]
    for start, stop, name, colour in (
        (0, low, "region 1", GREEN), (low, high, "region 2", PALE), (high, top, "region 3", RED)
    ):  # fmt: skip
        axes.axvspan(start, stop, color=colour, alpha=0.35 if colour == PALE else 0.12, linewidth=0)
        axes.text((start + stop) / 2, 0.985, name, transform=axes.get_xaxis_transform(), ha="center", va="top")
    floor = np.zeros(len(edges) - 1)
    for key, label, colour in (
        ("unmixed_correct", "unmixed, correct", BLUE),
        ("unmixed_wrong", "unmixed, wrong", ORANGE),
        ("mixed", "mixed", GREY),
    ):
        counts = np.array(numbers[key])
        axes.bar(edges[:-1], counts, np.diff(edges), floor, align="edge", color=colour, label=label, edgecolor="white", linewidth=0.4)  # fmt: skip  # noqa: E501
        floor = floor + counts
    peak = float(floor.max()) or 1.0
    axes.set(xlabel="loss", ylabel="examples", xlim=(0, top), ylim=(0, 1.28 * peak))
    # Names at three heights: the thresholds may lie close to each other.
    for name, label, height in (("L_corr", "L$_{corr}$", 0.92), ("L_mid", "L$_{mid}$", 0.86), ("L_incorr", "L$_{incorr}$", 0.92)):  # fmt: skip  # noqa: E501
        axes.axvline(numbers[name], 0, height, color=BLACK, linestyle="--", linewidth=1.2)
        axes.text(
            numbers[name], height, f" {label} = {numbers[name]:.2f}", transform=axes.get_xaxis_transform(), va="top",
            fontsize=9,
        )  # fmt: skip
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.8))
    return figure


def efficacy(numbers: Numbers) -> Figure:
    """Fig. 6."""
    right, wrong = (_percent(numbers[f"{kind}_below_overall"]) for kind in ("correct", "wrong"))
    figure = new_figure(
        f"Over all epochs {right} of the correct and {wrong} of the wrong unmixed examples lie below L_mid",
        "MixTrain Fig. 6: share of the unmixed examples whose loss is below the L_mid they were judged by, by whether "
        "they were classified correctly. In the paper: over 95% and under 10%. What is mixed already does not count, "
        f"so late epochs have few of either kind; hollow: fewer than {FEW} examples.",
    )
    axes = new_axes(figure)
    for kind, colour, marker in (("correct", BLUE, "o"), ("wrong", ORANGE, "s")):
        shares, few = np.array(numbers[f"{kind}_below"], dtype=float), np.array(numbers[kind]) < FEW
        axes.plot(
            _epochs(numbers), shares, color=colour, marker=marker, label=f"{kind}, below L$_{{mid}}$", linewidth=2
        )
        axes.plot(_epochs(numbers)[few], shares[few], marker, color=colour, mfc="white", zorder=3)
    axes.set(ylabel="share of the unmixed examples", ylim=(-0.03, 1.03))
    percent_axes(axes)
    _epoch_axis(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return figure


def mixed_shares(numbers: Numbers) -> Figure:
    """Fig. 7 and 9A."""
    parts = [("mixed_region1", "mixed, region 1", BLUE), ("mixed_region3", "mixed, region 3", RED)]
    if any(numbers["skipped"]):
        parts.append(("skipped", "skipped, region 3", GREY))
    one, three = (np.array(numbers[key]) for key, _, _ in parts[:2])
    figure = new_figure(
        f"Mixed per epoch: {one.mean():.0%} of the examples from region 1 and {three.mean():.0%} from region 3 "
        f"on average; {one[-1]:.0%} and {three[-1]:.0%} in the last epoch",
        "MixTrain Fig. 7 and 9A. Above: share of the training set that is mixed, by the region it came from. Below: "
        "share that moves into the mixed set and out of it from one epoch to the next.",
        height=6.4,
    )
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    epochs, floor = _epochs(numbers), np.zeros(len(numbers["epochs"]))
    for key, label, colour in parts:
        values = np.array(numbers[key])
        above.bar(epochs, values, 0.8, floor, color=colour, label=label)
        floor = floor + values
    above.set(ylabel="share mixed", ylim=(0, 1))
    for key, label, colour, marker in (
        ("moved_to_mixed", "into the mixed set", BLUE, "o"), ("moved_to_unmixed", "out of the mixed set", ORANGE, "s")
    ):  # fmt: skip
        below.plot(epochs, numbers[key], color=colour, marker=marker, label=label, linewidth=2)
    below.set(ylabel="share moved")
    below.set_ylim(bottom=0)
    for axes in (above, below):
        _plain(axes)
        percent_axes(axes)
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts), frameon=False)
    below.legend(loc="upper right")
    _epoch_axis(below)
    return figure


def time_in_region3(numbers: Numbers) -> Figure:
    """Fig. 8."""
    figure = new_figure(
        "In region 3 for most of the run, unmixed: "
        + ", ".join(
            f"{_percent(numbers[kind]['share_above'])} of the finally {kind} (over {numbers[kind]['above']:.0%})"
            for kind in ("wrong", "correct")
        ),
        "MixTrain Fig. 8: in how many epochs an example was unmixed and its loss above L_incorr. Finally: by the "
        f"model at the end of the run. {numbers['never_unmixed']:,} examples that were never unmixed once there were "
        "thresholds are left out.",
    )
    left, right = figure.subplots(1, 2, sharey=True)
    edges = np.array(numbers["edges"])
    for axes, kind, colour, letter in ((left, "wrong", ORANGE, "A"), (right, "correct", BLUE, "B")):
        total = numbers[kind]["examples"]
        _plain(axes)
        axes.bar(edges[:-1], np.array(numbers[kind]["counts"]) / max(1, total), np.diff(edges), align="edge", color=colour, edgecolor="white")  # fmt: skip  # noqa: E501
        axes.set_title(f"{letter}: finally {kind} ({total:,} examples)", fontsize=11)
        axes.set(xlabel=f"unmixed epochs in region 3, of {numbers['epochs']}", xlim=(0, edges[-1]), ylim=(0, 1))
        percent_axes(axes)
    left.set_ylabel("share of the examples")
    return figure


def interference(numbers: Numbers) -> Figure:
    """Fig. 2B."""
    rows = {name: numbers["rows"][name] for name in WAYS if name in numbers["rows"]}
    both = ", ".join(
        f"{_way(name)[0]} {_percent(row['both']['mean'])}" for name, row in rows.items() if name != "alone"
    )
    figure = new_figure(
        f"Both of two are recognised: {both}",
        f"MixTrain Fig. 2B: {numbers['pairs']:,} random pairs of training examples that the model recognises without "
        "mixing, at equal shares, mean (± standard deviation) over pairings. With one answer for two: both labels in "
        "the first two places; one: only the first place is one of them. With split, and with ZeroPatch (the other "
        "half zero after normalisation, that is the mean colour), each is asked apart.",
        height=0.62 * len(rows) + 2.8,
    )
    axes = new_axes(figure)
    for place, row in enumerate(rows.values()):
        start = 0.0
        for kind, colour, ink in (("both", BLUE, "white"), ("one", SKY, BLACK), ("none", PALE, BLACK)):
            share, spread = row[kind]["mean"], row[kind]["spread"]
            axes.barh(place, share, 0.7, start, color=colour, label=kind if place == 0 else None, edgecolor="white")
            if share > 0.035:
                text = f"{share:.0%}" + (f" ± {spread:.1%}" if spread and share > 0.12 else "")
                axes.text(start + share / 2, place, text, ha="center", va="center", color=ink, fontsize=9)
            start += share
    axes.set_yticks(range(len(rows)), [WAYS[name][0] for name in rows])
    axes.invert_yaxis()
    axes.set(xlabel="share of the pairs", xlim=(0, 1))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(visible=False, axis="y")
    axes.legend(title="recognised", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def second_constituent(numbers: Numbers) -> Figure:
    """Fig. 11 of the first version."""
    places, width = numbers["places"], 0.8 / len(numbers["within"])
    last = ", ".join(f"{_percent(rows[-1]['mean'])} with {_way(name)[0]}" for name, rows in numbers["within"].items())
    asked = ", ".join(f"{count:,.0f} with {_way(name)[0]}" for name, count in numbers["pairs_asked"].items())
    figure = new_figure(
        f"Where one of two is named first, the other is in the top {places[-1]}: {last}",
        f"InterTrain Fig. 11 (first version of the paper): of {numbers['pairs']:,} pairs those of two classes one of "
        f"which has the highest score ({asked}), how often the other class is within the top places. Lines across: "
        "what a random order of the other classes would give; thin lines: standard deviation over pairings.",
    )
    axes = new_axes(figure)
    for number, (name, rows) in enumerate(numbers["within"].items()):
        label, colour, _ = _way(name)
        at = np.arange(len(places)) + (number - (len(numbers["within"]) - 1) / 2) * width
        shares = [row["mean"] or 0.0 for row in rows]
        axes.bar(at, shares, 0.94 * width, color=colour, label=label, yerr=[row["spread"] or 0.0 for row in rows], capsize=4)  # fmt: skip  # noqa: E501
        for x, row in zip(at, rows, strict=True):
            text, height = _percent(row["mean"]), (row["mean"] or 0.0) + (row["spread"] or 0.0)
            axes.annotate(text, (x, height), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    spots = np.arange(len(places))
    axes.hlines(numbers["chance"], spots - 0.45, spots + 0.45, color=BLACK, linestyle="--", label="by chance")
    axes.set_xticks(spots, [f"top {place}" for place in places])
    axes.set(ylabel="share of the pairs", ylim=(0, 1.3), xlim=(-0.6, len(places) - 0.4))
    axes.set_yticks(np.linspace(0, 1, 6))
    percent_axes(axes)
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", ncols=3)
    return figure


def savings(numbers: Numbers) -> Figure:
    """Fig. 10B."""
    mean = numbers["mean"]
    figure = new_figure(
        f"Region 1 saves {mean['region1']:.0%} of the cost and region 3 {mean['region3']:.0%}, on average over the run",
        "MixTrain Fig. 10B: what mixing saves of an epoch's cost, as a share of plain training's, by the region that "
        "the mixed examples came from. In the paper (ResNet18 on ImageNet): nearly 25% and another 8%.",
    )
    axes, floor = new_axes(figure), np.zeros(len(numbers["epochs"]))
    for key, label, colour in (("region1", "region 1", BLUE), ("region3", "region 3", RED)):
        axes.bar(_epochs(numbers), numbers[key], 0.8, floor, color=colour, label=label)
        floor = floor + np.array(numbers[key])
    axes.set(ylabel="share of the cost that is saved")
    axes.set_ylim(0, max(0.5, float(floor.max()) * 1.05))
    percent_axes(axes)
    _epoch_axis(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return figure


def runtime(runs: dict[str, Numbers]) -> Figure:
    """Fig. 14 of the first version, of one run or of several beside each other."""
    means = ", ".join(f"{name} {np.mean(numbers['cost']):.2f}" for name, numbers in runs.items())
    figure = new_figure(
        f"Mean cost of an epoch, over plain training's: {means}",
        "InterTrain Fig. 14 (first version of the paper): cost per epoch, averaged over tenths of the run; 1 is plain "
        "training. Cost counts a composite as one input and leaves evaluation out.",
    )
    axes, width = new_axes(figure), 0.8 / len(runs)
    for number, ((name, numbers), colour) in enumerate(zip(runs.items(), CONSTITUENTS * len(runs), strict=False)):
        at = np.arange(len(numbers["cost"])) + (number - (len(runs) - 1) / 2) * width
        axes.bar(at, numbers["cost"], 0.94 * width, color=colour, label=name)
    first = next(iter(runs.values()))["epochs"]
    names = [f"{start + 1}–{stop + 1}" if stop > start else f"{start + 1}" for start, stop in first]
    axes.set_xticks(np.arange(len(names)), names)
    axes.axhline(1, color=BLACK, linestyle="--", linewidth=1.2)
    axes.set(xlabel="epochs", ylabel="mean cost per epoch")
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return figure


def share_over_epochs(numbers: Numbers, what: str, caption: str) -> Figure:
    """A share per way of mixing over the epochs whose weights were kept (Fig. 2B, 5B and 11)."""
    last = ", ".join(f"{_way(name)[0]} {_percent(curve[-1])}" for name, curve in numbers["share"].items())
    figure = new_figure(f"{what} after epoch {numbers['epochs'][-1] + 1}: {last}", caption)
    axes = new_axes(figure)
    for name, curve in numbers["share"].items():
        label, colour, marker = _way(name)
        values = np.array(curve, dtype=float)
        axes.plot(_epochs(numbers), values, color=colour, marker=marker, label=label, linewidth=2)
    axes.set(ylabel=what, ylim=(-0.03, 1.03))
    percent_axes(axes)
    _epoch_axis(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(numbers["share"]), frameon=False)
    return figure


def change_over_epochs(numbers: Numbers) -> Figure:
    """Fig. 5A at several epochs: the later, the darker."""
    figure = new_figure(
        f"What {_way(numbers['way'])[0]} changes in the losses, at {len(numbers['epochs'])} moments of the run",
        "MixTrain Fig. 5A: |loss − mixed loss| against the loss without mixing, with the weights that were kept after "
        "some epochs; the mixed loss is averaged over random pairings.",
    )
    axes, count = new_axes(figure), len(numbers["epochs"])
    for place, (epoch, loss, change) in enumerate(
        zip(numbers["epochs"], numbers["loss"], numbers["change"], strict=True)
    ):
        shade = 0.25 + 0.75 * (place + 1) / count
        axes.plot(loss, np.array(change, dtype=float), color=BLUE, alpha=shade, marker="o", label=f"epoch {epoch + 1}")
    axes.set(xlabel="loss without mixing", ylabel="mean |loss − mixed loss|")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=8)
    return figure


def mean_loss(numbers: Numbers) -> Figure:
    """Fig. 12 of the first version."""
    loss = numbers["loss"]
    figure = new_figure(
        f"The mean training loss: {loss[0]:.2f} in the first epoch, {loss[-1]:.2f} in the last of {len(loss)}",
        "InterTrain Fig. 12 (first version of the paper): mean loss over all examples trained in an epoch, in the form "
        "in which they were trained. The smaller the step from one epoch to the next, the better one epoch's loss "
        "foretells the next one's.",
    )
    axes = new_axes(figure)
    axes.plot(_epochs(numbers), loss, color=BLUE, marker="o" if len(loss) < 50 else None, linewidth=2)
    axes.set(ylabel="mean training loss")
    axes.set_ylim(bottom=0)
    _epoch_axis(axes)
    return figure


def gallery(numbers: Numbers, shown: dict[str, Tensor]) -> Figure:
    """Composites beside their constituents, each with the outline of what it gave."""
    composites = numbers["composites"]
    each = len(composites[0])
    blocks = 2 if each <= 3 else 1
    lines = -(-len(composites) // blocks)
    tile = WIDTH / (blocks * (each + 1) + 0.4 * (blocks - 1))
    outlined = "Outlined in its colour: what each constituent gives. " if "owner" in shown else ""
    answer = "an answer for each by split propagation" if numbers["split"] else "one answer for all"
    figure = new_figure(
        f"What the model sees: {len(composites)} composites by {numbers['mixer']}, beside what is in them",
        f"Random training examples, mixed as the run mixes; {answer}. {outlined}Under each: its class, its share, and "
        "its loss without mixing → inside the composite.",
        height=lines * (tile + 0.42) + 1.3,
    )
    ratios = ([1.0] * (each + 1) + [0.25]) * blocks
    grid = figure.subplots(lines, len(ratios) - 1, width_ratios=ratios[:-1], squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    pictures = shown["constituents"].permute(1, 0, 3, 4, 2).numpy()
    wholes = shown["composites"].permute(0, 2, 3, 1).numpy()
    owners = shown["owner"].numpy() if "owner" in shown else None
    for number, parts in enumerate(composites):
        line, column = number // blocks, number % blocks * (each + 2)
        show_picture(grid[line, column], wholes[number], "composite")
        for j, part in enumerate(parts):
            axes = grid[line, column + 1 + j]
            text = f"{shortened(part['class'])}, {part['share']:.0%}\n{part['loss']:.2f} → {part['mixed_loss']:.2f}"
            show_picture(axes, pictures[number, j], text, CONSTITUENTS[j])
            if owners is not None:
                for place in (grid[line, column], axes):
                    _outline(place, owners[number] == j, CONSTITUENTS[j])
    return figure


# -- what they share ---------------------------------------------------------------------------------------------------


def new_figure(title: str, caption: str, height: float = 5.4) -> Figure:
    """An empty figure with a title that says what one sees and a caption that names where it is from."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    head, foot = textwrap.wrap(title, 84), textwrap.wrap(caption, 124)
    line = 0.19 / height
    figure.text(0.012, 1 - 0.5 * line, "\n".join(head), va="top", fontsize=12, fontweight="bold", parse_math=False)
    figure.text(0.012, 0.4 * line, "\n".join(foot), va="bottom", fontsize=9, color="#555555", parse_math=False)
    bottom, top = (len(foot) * 0.95 + 0.8) * line, 1 - (1.15 * len(head) + 0.7) * line
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.005, bottom, 0.985, top - bottom), wspace=0.04)
    return figure


def new_axes(figure: Figure) -> Axes:
    return _plain(figure.add_subplot())


def _plain(axes: Axes) -> Axes:
    """A light grid behind the data, and no box around it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def show_picture(axes: Axes, pixels: Array, text: str, colour: str = BLACK) -> None:
    if pixels.shape[2] == 1:
        axes.imshow(pixels[..., 0], cmap="gray", vmin=0, vmax=1)
    else:
        axes.imshow(pixels.clip(0, 1))
    axes.text(
        0.5, -0.04, text, transform=axes.transAxes, ha="center", va="top", fontsize=8, color=colour, parse_math=False
    )


def _outline(axes: Axes, mask: Array, colour: str) -> None:
    """The border of a region, drawn just inside of it, so that neighbours' borders lie side by side."""
    inset = 0.012 * max(mask.shape)
    framed = np.pad(mask, 1)
    lines = []
    for axis, step in ((1, 1), (1, -1), (0, 1), (0, -1)):
        edge = framed & ~np.roll(framed, step, axis)  # the neighbour before (1) or behind (-1) is another's
        across, along = (np.nonzero(edge)[axis] - 1.0, np.nonzero(edge)[1 - axis] - 1.0)
        place = across - step * (0.5 - inset)
        ends = [np.stack([place, along + half], 1) for half in (-0.5, 0.5)]
        lines.append(np.stack([end if axis == 1 else end[:, ::-1] for end in ends], 1))
    segments: Any = np.concatenate(lines)
    axes.add_collection(
        LineCollection(segments, colors=colour, linewidths=1.8, capstyle="projecting", clip_on=False), autolim=False
    )


def _way(name: str) -> tuple[str, str, str]:
    label, colour, marker = WAYS[name]
    return label.split("\n(")[0].replace("\n", " "), colour, marker


def _epochs(numbers: Numbers) -> Array:
    """Counted from 1, as the command prints them."""
    return np.array(numbers["epochs"]) + 1


def _epoch_axis(axes: Axes) -> None:
    axes.set_xlabel("epoch")
    axes.set_xlim(left=max(0.4, axes.get_xlim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def percent_axes(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"


def shortened(name: str, most: int = 13) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _ends(values: Sequence[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    return known[0], known[-1]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"

"""Single examples: which of them a page knows, what became of them, and what a method did, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from leantrain.data import ImageSet
from leantrain.errors import LeanError
from leantrain.methods import Chain, Panel, chain
from leantrain.mixing import Mixer
from leantrain.report import pictures
from leantrain.report.past import Array, Past, evenly, histograms, histories, treatments
from leantrain.report.runs import RunRecord, Series
from leantrain.run.config import PLAIN
from leantrain.run.folder import Json
from leantrain.run.setup import load_images

EXAMPLES = 240  # examples that a page knows
STRIP = 20  # of them the most and the least used, or the hardest and the easiest
CELLS = 300_000  # losses of single examples that a page holds, about 2 MB
HISTOGRAMS = 60
CLASSES = 40  # classes in a chart


@dataclass(frozen=True, eq=False)
class RowWithHistory:
    """A row whose history is there, and the run that it comes from."""

    series: Series
    run: RunRecord
    past: Past


def single_examples(series: Sequence[Series], share: int) -> Json:
    """The parts of a study about single examples.

    Args:
        series: the rows to show.
        share: how many studies the page has, which share its room.
    """
    notes: list[str] = []
    rows = [part for one in series if (part := _with_history(one, notes))]
    if len({len(part.past) for part in rows}) > 1:
        notes.append("The runs were trained on sets of different size, so only the first one's examples are shown.")
        rows = [part for part in rows if len(part.past) == len(rows[0].past)]
    images = _images(rows, notes) if rows else None
    chosen, sampled = _sample(rows, images, max(60, EXAMPLES // share))
    return {
        "inside": [part for one in series for part in _inside(one, images, sampled, notes)],
        "use": [_use(part, images, chosen[part.series.label]) for part in rows if part.series.label in chosen],
        "examples": _examples(rows, images, sampled, CELLS // share, notes) if rows else None,
        "notes": list(dict.fromkeys(notes)),
    }


def _with_history(one: Series, notes: list[str]) -> RowWithHistory | None:
    run = one.first
    if run is None:
        return None
    try:
        past = run.past
    except LeanError as error:
        notes.append(str(error))
        return None
    if past is None:
        notes.append(f"{one.label} kept no history (--no-history), so nothing is known of its single examples.")
        return None
    return RowWithHistory(one, run, past)


def _images(rows: Sequence[RowWithHistory], notes: list[str]) -> ImageSet | None:
    """The runs' data set, if it is still what they were trained on."""
    run = rows[0].run
    try:
        images = load_images(run.config)
    except LeanError as error:
        notes.append(f"The pictures are not shown: {error}")
        return None
    known = run.made_with.get("data_fingerprint", images.fingerprint)
    if known != images.fingerprint or len(images.train) != len(rows[0].past):
        notes.append(f"The pictures are not shown: '{run.config.data}' is no longer what the run was trained on.")
        return None
    return images


# -- single examples ---------------------------------------------------------------------------------------------------


def _sample(rows: Sequence[RowWithHistory], images: ImageSet | None, most: int) -> tuple[dict[str, Json], Array]:
    """Which examples a page knows: the most and least used of every method, hard and easy ones, some of every class.

    Returns:
        By row what its use is counted in, and its most and least used; and the sampled examples, in order.
    """
    if not rows:
        return {}, np.zeros(0, np.int64)
    length = len(rows[0].past)
    uneven = [part for part in rows if part.run.config.method != PLAIN and _differ(part.past)]
    strip = min(STRIP, length // 2, max(4, most // (3 * max(1, len(uneven)))))
    chosen: dict[str, Json] = {}
    wanted: list[int] = []
    for part in uneven:
        what = _differ(part.past)
        order = np.argsort(-_counts(part.past, what), kind="stable")
        ends = {"most": order[:strip].tolist(), "least": order[::-1][:strip].tolist()}
        chosen[part.series.label] = {"what": what, **ends}
        wanted += [*ends["most"], *ends["least"]]
    by_loss = np.argsort(np.nan_to_num(rows[0].past.loss), kind="stable")
    wanted += [*by_loss[: -STRIP - 1 : -1].tolist(), *by_loss[:STRIP].tolist(), *_one_of_each_class(images, length)]
    return chosen, np.sort(np.array(list(dict.fromkeys(wanted))[:most], np.int64))


def _differ(past: Past) -> str:
    """In what a run treated its examples differently: how often it trained on them, or how often it mixed them."""
    return "trained" if np.ptp(past.used) else "mixed" if np.ptp(past.mixed) else ""


def _counts(past: Past, what: str) -> Array:
    return past.used if what == "trained" else past.mixed


def _one_of_each_class(images: ImageSet | None, length: int) -> list[int]:
    """All examples, the first of every class first, then the second of every class, and so on."""
    if images is None:
        return evenly(range(length), EXAMPLES)
    targets = images.train.targets.numpy()
    order = np.argsort(targets, kind="stable")
    first = np.searchsorted(targets[order], targets[order])
    rank = np.empty(length, np.int64)
    rank[order] = np.arange(length) - first
    listed: list[int] = np.lexsort((targets, rank))[: 2 * EXAMPLES].tolist()
    return listed


def _examples(
    rows: Sequence[RowWithHistory], images: ImageSet | None, sampled: Array, cells: int, notes: list[str]
) -> Json:
    """The sampled examples with their pictures and histories; long runs are thinned to so many cells in all."""
    where = torch.from_numpy(sampled)
    shown: Json | None = None
    classes, targets, names = None, None, None
    if images is not None:
        classes, targets = list(images.classes), images.train.targets[where].tolist()
        ids = images.train.ids
        names = [str(ids[i]) for i in sampled.tolist()] if isinstance(ids, tuple) else None
        try:
            shown = vars(pictures.sheet(images.train.batch(where, -1)[0], pictures.TILE))
        except LeanError as error:
            notes.append(f"The pictures are not shown: {error}")
    most = max(12, cells // (len(sampled) * len(rows)))
    return {
        "total": len(rows[0].past),
        "index": sampled.tolist(),
        "classes": classes,
        "targets": targets,
        "names": names,
        "mean_loss": [float(f"{x:.3g}") for x in np.nan_to_num(rows[0].past.loss[sampled])],
        "sheet": shown,
        "histories": [
            {
                **part.series.described(),
                "seed": part.run.config.seed,
                **histories(part.past, sampled, evenly(part.past.epochs, most), treatments(part.run.method)),
            }
            for part in rows
        ],
    }


def _use(part: RowWithHistory, images: ImageSet | None, chosen: Json) -> Json:
    """The most and the least used examples of a row, and its use per class."""
    counts, epochs = _counts(part.past, chosen["what"]), len(part.past.epochs)
    by_class = None
    if images is not None:
        targets, number = images.train.targets.numpy(), len(images.classes)
        mean = np.bincount(targets, counts, number) / np.maximum(1, np.bincount(targets, minlength=number)) / epochs
        kept = np.arange(number)
        if number > CLASSES:
            order = np.argsort(-mean, kind="stable")
            kept = np.concatenate([order[: CLASSES // 2], order[-CLASSES // 2 :]])
        by_class = [{"name": images.classes[i], "share": float(f"{mean[i]:.4g}")} for i in kept]
    return {
        **part.series.described(),
        "what": chosen["what"],
        "seed": part.run.config.seed,
        "epochs": epochs,
        **{name: [{"index": i, "count": int(counts[i])} for i in chosen[name]] for name in ("most", "least")},
        "classes": by_class,
        "all_classes": None if images is None else len(images.classes),
    }


# -- what a method did -------------------------------------------------------------------------------------------------


def _inside(one: Series, images: ImageSet | None, sampled: Array, notes: list[str]) -> list[Json]:
    """Per seed: what the methods report of themselves, and composites for the first seed only, as they look alike."""
    found: list[Json] = []
    for run in one.runs:
        method = chain(run.method)
        panels = [(place, panel) for place, part in enumerate(method.methods) for panel in part.panels]
        if not run.rows or not (panels or method.mixer):
            continue
        part: Json = {
            **one.described(),
            "seed": run.config.seed,
            "epochs": [row["epoch"] for row in run.rows],
            "panels": [_panel(run, method, place, panel) for place, panel in panels],
            "histogram": None,
            "gallery": None,
        }
        try:
            past = run.past
            if past is not None:
                part["histogram"] = _histogram(run, past, method, [one for one in panels if one[1].on_losses])
                if images is not None and not found and len(sampled) and method.mixer is not None:
                    part["gallery"] = _gallery(run, method.mixer, past, images, sampled)
        except LeanError as error:
            notes.append(str(error))
        found.append(part)
    return found


def _panel(run: RunRecord, method: Chain, place: int, panel: Panel) -> Json:
    return {
        "kind": panel.kind,
        "title": panel.title,
        "words": panel.words,
        "series": [
            {"name": name, "label": label, "values": [row.get(method.metric_name(place, name)) for row in run.rows]}
            for name, label in panel.metrics.items()
        ],
    }


def _histogram(run: RunRecord, past: Past, method: Chain, marked: Sequence[tuple[int, Panel]]) -> Json:
    """The losses by epoch with the values that they were judged by, which are reported with the next epoch."""
    drawn = histograms(past, evenly(past.epochs, HISTOGRAMS))
    by_epoch = {row["epoch"]: row for row in run.rows}
    marks = [(place, name) for place, panel in marked for name in panel.metrics]
    drawn["marks"] = [name for _, name in marks]
    drawn["thresholds"] = [
        [by_epoch.get(epoch + 1, {}).get(method.metric_name(place, name)) for place, name in marks]
        for epoch in drawn["epochs"]
    ]
    return drawn


def _gallery(run: RunRecord, mixer: Mixer, past: Past, images: ImageSet, sampled: Array) -> Json | None:
    last = past.folder.epoch(past.epochs[-1])
    constituents = max(2, int(last["constituents"].max()))
    mixed = sampled[last["constituents"][sampled] > 1]
    taken = mixed if len(mixed) >= 2 * constituents else sampled
    losses = torch.from_numpy(last["loss"][taken].astype(np.float32))
    return pictures.gallery(images, mixer, constituents, torch.from_numpy(taken), losses, run.config.seed)

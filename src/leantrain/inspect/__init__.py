"""Inspect: the papers' diagnostics of a run, as pictures and as the numbers in them.

Rooms: `record.py` reads what a run wrote down, `study.py` asks its model about mixed inputs, `figures.py` draws.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from leantrain.data import Augment, ImageSet
from leantrain.errors import LeanError
from leantrain.files import write_atomically, write_text
from leantrain.inspect import figures, record, study
from leantrain.inspect.record import LeftOut, Numbers, Record
from leantrain.inspect.study import Study
from leantrain.mixing import CutMix
from leantrain.rng import generator
from leantrain.run.config import TrainConfig
from leantrain.run.folder import RunFolder
from leantrain.run.setup import build_model, evaluation_batches, load_images, load_resized, load_saved, resolve
from leantrain.split import Split

EXAMPLES = 2000

Drawing = Callable[[], tuple[Numbers, Figure]]

__all__ = ["EXAMPLES", "inspect_run"]


def inspect_run(
    folder: Path,
    out: Path | None = None,
    *,
    pairings: int = 5,
    examples: int | None = None,
    epoch: int | None = None,
    device: str = "auto",
    seed: int = 0,
    log: Callable[[str], Any] = lambda line: None,
) -> Path:
    """Draw what can be drawn of a run; returns the folder of the pictures and of `inspect.json`.

    Args:
        folder: what `leantrain train` wrote, finished or cut.
        out: default: `inspect` in that folder.
        pairings: how many random pairings the studies of mixed inputs are averaged over.
        examples: how many training examples they take, at random; default: 2,000, or all where there are fewer.
        epoch: from 0, whose loss distribution is drawn; default: the last one.
        seed: decides examples, pairings and cuts.
        log: gets a line per figure, and one for each that is left out.
    """
    run = Record.read(RunFolder(folder), log)
    out = run.folder.inspect if out is None else out
    run.check_epoch(epoch)
    images = load_images(run.config)
    config = resolve(dataclasses.replace(run.config, device=device, precision="fp32"), images)
    _check_data(run, images)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        log(f"note: {text}")

    studied = _study(run, config, images, pairings, examples, seed, note)
    drawn: dict[str, Numbers] = {}
    drawings = {**_drawings(run, studied, epoch), **_over_epochs(run, config, images, studied)}
    for name, draw in drawings.items():
        file = out / f"{name}.png"
        try:
            numbers, figure = draw()
        except LeftOut as reason:
            note(f"{name} is left out: {reason}.")
            file.unlink(missing_ok=True)  # of an earlier time, perhaps
            continue
        content = figures.png(figure)
        write_atomically(file, lambda place, content=content: place.write(content))  # type: ignore[misc]
        drawn[name] = {"file": file.name, "title": _title(figure), **numbers}
        log(f"{file.name}  {_title(figure)}")
    about = {
        "method": config.method,
        "data": config.data,
        "model": config.model,
        "epochs_trained": len(run.rows),
        "finished": run.folder.has_weights,
        "weights": (run.folder.weights_file if run.folder.has_weights else run.folder.checkpoint_file).name,
        "examples": len(studied.index),
        "train_accuracy_of_examples": float(studied.correct.double().mean()),
        "pairings": pairings,
        "seed": seed,
        "storage": record.storage(run, images.channels * images.image_size**2),
    }
    write_text(out / "inspect.json", json.dumps({**about, "notes": notes, "figures": drawn}, indent=1, allow_nan=False))
    return out


def _simple(numbers: Callable[[], Numbers], draw: Callable[[Numbers], Figure]) -> Drawing:
    def both() -> tuple[Numbers, Figure]:
        found = numbers()
        return found, draw(found)

    return both


def _drawings(run: Record, studied: Study, epoch: int | None) -> dict[str, Drawing]:
    """Every figure by the name of its file."""
    interference: list[tuple[Numbers, Numbers]] = []  # one study for two figures

    def interfering(which: int) -> Numbers:
        if not interference:
            interference.append(study.interference(studied))
        numbers = interference[0][which]
        if which and not any(numbers["pairs_asked"].values()):
            raise LeftOut("in no pair of two classes is either of them named first")
        return numbers

    def pictures() -> tuple[Numbers, Figure]:
        mixer, own = (run.mixtrain[1].mixer, run.mixtrain[1].constituents) if run.mixtrain else (CutMix(), 2)
        numbers, shown = study.gallery(studied, mixer, own)
        return numbers, figures.gallery(numbers, shown)

    def region3() -> Numbers:
        return record.time_in_region3(run, studied.index.numpy(), studied.correct.numpy())

    return {
        "fig2b": _simple(lambda: interfering(0), figures.interference),
        "fig5a": _simple(lambda: study.loss_change(studied), figures.loss_change),
        "fig5b": _simple(lambda: study.accuracy_kept(studied), figures.accuracy_kept),
        "fig5c": _simple(lambda: record.loss_distribution(run, epoch), figures.loss_distribution),
        "fig6": _simple(lambda: record.efficacy(run), figures.efficacy),
        "fig7": _simple(lambda: record.mixed_shares(run), figures.mixed_shares),
        "fig8": _simple(region3, figures.time_in_region3),
        "fig10b": _simple(lambda: record.savings(run), figures.savings),
        "fig11": _simple(lambda: interfering(1), figures.second_constituent),
        "fig12": _simple(lambda: record.mean_loss(run), figures.mean_loss),
        "fig14": _simple(
            lambda: record.runtime(run), lambda numbers: figures.runtime({str(run.config.method): numbers})
        ),
        "gallery": pictures,
    }


def _over_epochs(run: Record, config: TrainConfig, images: ImageSet, studied: Study) -> dict[str, Drawing]:
    """The studies of mixed inputs at every epoch whose weights the run kept; none where it kept none."""
    epochs = run.folder.kept_epochs()
    if not epochs:
        return {}
    over = study.OverEpochs()
    for epoch in epochs:
        # A model of its own: a study remembers its model's answers, and another epoch's may have had other channels.
        model = build_model(config, images, fresh=False)
        load_resized(model, run.folder.kept_weights(epoch), images)
        model = model.to(config.device).eval()
        split = (
            None if studied.split is None else Split(model, _example(studied.augment, studied.pixels, studied.device))
        )
        over.add(epoch, dataclasses.replace(studied, model=model, split=split))

    asked = "Each point: the weights kept after an epoch, mean over random pairings of the same training examples."
    return {
        "fig2b-epochs": _simple(
            over.recognised,
            lambda numbers: figures.share_over_epochs(
                numbers,
                "recognised in a composite",
                "MixTrain Fig. 2B: of the constituents that the model recognises without mixing, the share that it "
                f"recognises in a composite of two of them. {asked}",
            ),
        ),
        "fig5a-epochs": _simple(over.change, figures.change_over_epochs),
        "fig5b-epochs": _simple(
            over.kept,
            lambda numbers: figures.share_over_epochs(
                numbers,
                "still recognised",
                "MixTrain Fig. 5B: of the examples that the model recognises without mixing, the share that it "
                f"recognises when they are mixed with a random other one. {asked}",
            ),
        ),
        "fig11-epochs": _simple(
            over.second,
            lambda numbers: figures.share_over_epochs(
                numbers,
                f"second in the top {numbers['top']}",
                "InterTrain Fig. 11 (first version of the paper): where one of two is named first without split, how "
                f"often the other class is in the top places. In the paper never above 12%, of the top 5. {asked}",
            ),
        ),
    }


def _study(
    run: Record,
    config: TrainConfig,
    images: ImageSet,
    pairings: int,
    examples: int | None,
    seed: int,
    note: Callable[[str], None],
) -> Study:
    """The run's model and some of its training examples, held in memory as bytes."""
    model = _model(run, config, images)
    count = min(len(images.train), EXAMPLES if examples is None else examples)
    order = torch.randperm(len(images.train), generator=generator(seed, "inspect", "examples"))
    index = order[:count].sort().values
    pixels = torch.cat([batch.inputs for batch in evaluation_batches(images.train.select(index), config)])
    device = torch.device(config.device)
    augment = Augment(images, config.seed, device)
    split: Split | None = None
    try:
        split = Split(model, _example(augment, pixels, device))
    except LeanError as refused:
        note(f"what needs split propagation is left out: {refused}")
    patch = str(getattr(run.mixtrain[1], "patch", "half")) if run.mixtrain else "half"
    return Study(model, split, augment, images, pixels, index, device, pairings, seed, patch)


def _example(augment: Augment, pixels: Tensor, device: torch.device) -> Tensor:
    return augment.evaluate(pixels[:2].to(device))


def _model(run: Record, config: TrainConfig, images: ImageSet) -> nn.Module:
    model = build_model(config, images, fresh=False)
    load_saved(model, run.folder, config, images)
    return model.to(config.device).eval()


def _check_data(run: Record, images: ImageSet) -> None:
    """Refuse data that has changed since: the history is by place in the training set."""
    lengths = {len(run.folder.epoch(epoch)["loss"]) for epoch in run.epochs[-1:]}
    changed = run.saved is not None and run.saved["identity"]["data"] != images.fingerprint
    if changed or lengths - {len(images.train)}:
        raise LeanError(
            f"'{run.config.data}' is not what the run in '{run.folder}' was trained on; bring the data back as it was."
        )


def _title(figure: Figure) -> str:
    return " ".join(figure.texts[0].get_text().split())

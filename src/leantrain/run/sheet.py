"""A sheet of training images as the network sees them: augmented, and in every form in which the method shows them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from leantrain.eval_mode import trial
from leantrain.forms import WHOLE, Form
from leantrain.loader import PlannedDataset
from leantrain.plan import PlannedBatch
from leantrain.run.loop import Run

COLUMNS, EPOCHS, GAP = 8, 2, 4
"""Images beside each other, how often each is drawn anew, and pixels between them."""


def draw_sheet(run: Run, file: Path) -> str:
    """Write the sheet; returns one line on what its rows show."""
    forms = (WHOLE, *run.lean.forms)
    rows, names = list[Tensor](), list[str]()
    for form in forms:
        seen = [_seen(run, form, epoch) for epoch in range(EPOCHS)]
        rows += seen
        height, width = seen[0].shape[-2:]
        shown = "".join(f", {name} {value:g}" for name, value in form.parts)
        names.append(f"{height}×{width}{shown or ', whole'}")
    _sheet(rows, run.images.image_size).save(file)
    return f"two rows each: {'; '.join(names)}"


def _seen(run: Run, form: Form, epoch: int) -> Tensor:
    """What reaches the model of some examples in that form, as bytes (n, C, H, W)."""
    wanted = min(COLUMNS * form.constituents, len(run.images.train))
    wanted -= wanted % form.constituents
    index = torch.linspace(0, len(run.images.train) - 1, wanted).long()
    planned = PlannedBatch(0, epoch, index, None, form)
    batch = run.augment(PlannedDataset(run.images.train, None, (0, 1))[planned])
    caught = list[Tensor]()

    def catch(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0].detach())

    handle = run.module.register_forward_pre_hook(catch)
    try:
        with trial(run.model):
            run.lean.answer(batch)
    finally:
        handle.remove()
    return run.augment.bytes_of(caught[0].cpu())


def _sheet(rows: list[Tensor], side: int) -> Image.Image:
    """Rows of images, each at its own size, so that what is shown small looks small."""
    channels = rows[0].shape[1]
    sheet = torch.full((channels, len(rows) * (side + GAP) + GAP, COLUMNS * (side + GAP) + GAP), 255, dtype=torch.uint8)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = row * (side + GAP) + GAP, column * (side + GAP) + GAP
            sheet[:, top : top + image.shape[1], left : left + image.shape[2]] = image
    pixels = sheet.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)

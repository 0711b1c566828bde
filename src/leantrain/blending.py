"""Blending: CutMix and MixUp as they were published, as augmentation: an input per example, with two labels."""

from __future__ import annotations

from typing import Any

import torch

from leantrain.batch import Batch
from leantrain.errors import LeanError
from leantrain.forms import Answer, Ask, Attached, FormKind, register_form
from leantrain.mixing import DRAWS
from leantrain.rng import uniform

PARTNER, WHOLE = 4, 5
"""Which of an example's random numbers choose its partner, and whether it stays as it is; a mixer uses others."""


@register_form
class Blended(FormKind):
    """Every example with a part of another one of its batch; its value is the share of the inputs that stay whole.

    There are as many inputs as examples, so nothing is saved. The loss is that of both labels, by their shares.
    """

    name = "blended"
    order = 10
    mixes = True

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        if attached.mixer is None:
            raise LeanError("the plan blends examples, but no method of the run says how to mix them.")
        self.mixer = attached.mixer
        self.mixer.check(attached.example)

    def show(self, inputs: Any, value: float, batch: Batch, ask: Ask) -> Answer:
        run = self.attached
        with run.clock.measure("mixing", inputs.device):
            draws = uniform(run.seed, batch.epoch, batch.index, 2 * DRAWS, "blend")
            partners = draws[:, PARTNER].argsort()
            unknown = draws.new_full((2, len(draws)), torch.nan)  # no share goes by a loss
            mixed = self.mixer.mix(torch.cat([inputs, inputs[partners]]), 2, unknown, draws)
            whole = draws[:, WHOLE] < value
            shown = torch.where(whole.view(-1, *[1] * (inputs.ndim - 1)), inputs, mixed.inputs)
            shares = torch.where(whole, 1.0, mixed.shares[0])
        return ask(shown)._replace(shares=shares, partners=partners)

"""CutMix and MixUp as augmentation: the regularisers that MixTrain is not. They save nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leantrain.blending import Blended
from leantrain.draft import Draft
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods.base import Method, Moment, State, register_method
from leantrain.mixing import CutMix as CutMixer
from leantrain.mixing import Mixer
from leantrain.mixing import MixUp as MixUpMixer
from leantrain.options import option


@dataclass(frozen=True)
class Augmentation(Method):
    """What both share: every example is shown with a part of another one, and trained towards both labels."""

    alpha: float = option(1.0, "of the distribution Beta(alpha, alpha) of the shares; 1 is uniform", above=0.0)
    chance: float = option(1.0, "share of the inputs that are mixed; the others stay as they are", above=0.0, high=1.0)

    @property
    def mixer(self) -> Mixer:
        raise NotImplementedError

    @property
    def expected_share(self) -> float:
        return 1.0

    def forms(self, side: int) -> tuple[Form, ...]:
        return (Form.of(blended=1.0 - self.chance),)

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        return draft.show(Blended.name, 1.0 - self.chance), state


@register_method
@dataclass(frozen=True)
class CutMix(Augmentation):
    """Paste a random rectangle of another image into every image, and train towards both labels by their areas."""

    name: ClassVar[str] = "cutmix"

    @property
    def mixer(self) -> Mixer:
        return CutMixer(ratio="beta", split=False, alpha=self.alpha, patch="rect")


@register_method
@dataclass(frozen=True)
class MixUp(Augmentation):
    """Average every image with another one by a random share, and train towards both labels by that share."""

    name: ClassVar[str] = "mixup"

    @property
    def mixer(self) -> Mixer:
        return MixUpMixer(ratio="beta", alpha=self.alpha)

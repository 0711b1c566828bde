"""What is done to training images beyond the set's own crop: nothing, or one of torchvision's policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leantrain import _torchvision, rng
from leantrain.data.images import EVALUATION, FileImages, Images, ImageSet
from leantrain.forms import WHOLE, Form

POLICIES = ("none", "light", "trivial", "randaugment")
TORCHVISION = {"trivial": "TrivialAugmentWide", "randaugment": "RandAugment"}


@dataclass(frozen=True, eq=False)
class PolicyImages:
    """A training part whose images torchvision changes one by one, in loader workers where there are any.

    What happens to an image follows from (seed, epoch, its index) alone, so that a resumed run sees what it would have
    seen. It happens to the bytes, before the crop on the device; the evaluation view stays as it is.
    """

    part: Images
    policy: str
    seed: int

    @property
    def targets(self) -> Tensor:
        return self.part.targets

    @property
    def ids(self) -> tuple[str, ...] | Tensor:
        return self.part.ids

    @property
    def shows(self) -> frozenset[str]:
        return getattr(self.part, "shows", frozenset())

    def __len__(self) -> int:
        return len(self.part)

    def batch(self, indices: Tensor, epoch: int, form: Form = WHOLE) -> tuple[Tensor, Tensor]:
        given = (form,) if form.parts else ()
        pixels, targets = self.part.batch(indices, epoch, *given)
        if epoch == EVALUATION:
            return pixels, targets
        changed = torch.empty_like(pixels)
        # Torchvision draws from torch's own generator, so each image gets it freshly seeded, and it is put back.
        with torch.random.fork_rng(devices=[]):
            for row, index in enumerate(indices.tolist()):
                torch.default_generator.manual_seed(rng.derive(self.seed, "policy", epoch, index))
                changed[row] = self._change(pixels[row])
        return changed, targets

    def select(self, indices: Tensor) -> PolicyImages:
        return dataclasses.replace(self, part=self.part.select(indices))

    def digest(self, update: Callable[[bytes], object]) -> None:
        self.part.digest(update)

    @cached_property
    def _change(self) -> Callable[[Tensor], Tensor]:
        _torchvision.prepare()
        from torchvision.transforms import v2

        made: Callable[[Tensor], Tensor] = getattr(v2, TORCHVISION[self.policy])()
        return made


def augmented(images: ImageSet, policy: str, flip: bool | None, erase: float, seed: int) -> ImageSet:
    """The set with its training images treated as asked; `none` leaves even the crop and the mirror out."""
    plain = policy == "none"
    train = images.train
    if plain and isinstance(train, FileImages):
        train = dataclasses.replace(train, crop=False)
    if policy in TORCHVISION:
        train = PolicyImages(train, policy, seed)
    mirrored = (images.flip and not plain) if flip is None else flip
    return dataclasses.replace(
        images, train=train, pad=0 if plain else images.pad, flip=mirrored, erase=erase, policy=policy
    )


def described(images: ImageSet) -> str:
    """What is done to training images, for the first line of a run."""
    train = images.train.part if isinstance(images.train, PolicyImages) else images.train
    cropped = bool(images.pad) or (isinstance(train, FileImages) and train.random_crops)
    done = ["cropped"] * cropped + ["mirrored"] * images.flip
    done += [TORCHVISION[images.policy]] if images.policy in TORCHVISION else []
    done += [f"erased in part ({images.erase:.0%})"] if images.erase else []
    return f"images {', '.join(done)}" if done else "images as they are"

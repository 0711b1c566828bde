"""What published weights were made with, so that training can start from them as they are."""

from __future__ import annotations

from typing import NamedTuple

from leantrain.data.files import IMAGENET_MEAN, IMAGENET_STD
from leantrain.models.build import OWN, TORCHVISION, libraries


class Published(NamedTuple):
    """How images were shown when the weights were made.

    Attributes:
        side: in pixels.
        mean: per channel, of pixels scaled to 0…1.
        std: per channel, likewise.
    """

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def published(name: str) -> Published | None:
    """What is known of a model's published weights; None for our own models, which have none."""
    if name in OWN:
        return None
    if name.startswith(TORCHVISION):
        return Published(224, IMAGENET_MEAN, IMAGENET_STD)
    timm, _ = libraries()
    if not timm.is_model(name.split(".")[0]):
        return None  # building it says so
    found = timm.get_pretrained_cfg(name)
    return None if found is None else Published(min(found.input_size[-2:]), tuple(found.mean), tuple(found.std))

"""Models by name: two small ResNets of our own, timm's, torchvision's; made right for small images.

Rooms: `build.py` makes a model of a name, `nets.py` holds our own, `small.py` fits a model to small images,
`weights.py` reads weights to start from, `published.py` knows how images were shown when published ones were made.
"""

from __future__ import annotations

from leantrain.models.build import build, default_model, names, parameter_count
from leantrain.models.nets import BasicBlock, Shortcut, SmallResNet
from leantrain.models.published import Published, published
from leantrain.models.weights import load_weights

__all__ = [
    "BasicBlock",
    "Published",
    "Shortcut",
    "SmallResNet",
    "build",
    "default_model",
    "load_weights",
    "names",
    "parameter_count",
    "published",
]

"""Models by name: two small ResNets of our own, timm's, torchvision's; made right for small images.

Rooms: `build.py` makes a model of a name, `nets.py` holds our own, `small.py` fits a model to small images,
`weights.py` reads weights to start from.
"""

from __future__ import annotations

from leantrain.models.build import build, default_model, names, parameter_count
from leantrain.models.nets import BasicBlock, Shortcut, SmallResNet
from leantrain.models.weights import load_weights

__all__ = [
    "BasicBlock",
    "Shortcut",
    "SmallResNet",
    "build",
    "default_model",
    "load_weights",
    "names",
    "parameter_count",
]

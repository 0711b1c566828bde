"""Making a model right for small images: published ones reduce an image 32-fold, which leaves nothing to pool."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.errors import LeanError

SMALL = 64  # up to this many pixels a model made for 224 is changed to suit
LEAST_MAP = 4  # the last map of a small image must have this side: less, and there is nothing left to pool


@dataclass
class Probe:
    """What one trial image met on its way through a model."""

    map_side: int = 1  # of the last map before the pool, or of the token grid
    strided: dict[int, list[nn.Module]] = field(default_factory=lambda: defaultdict(list))  # by side of their input
    error: Exception | None = None


def fit(
    model: nn.Module, name: str, channels: int, size: int, pretrained: bool = False, halvings: int | None = None
) -> None:
    """Change a model for small images, in place, and make sure that it takes images of this size at all.

    Strided modules that see the same resolution are the branches of one step down (a block and its shortcut), so they
    change together, the highest resolution first. A model that fails half-way still shows the strides up to there.
    """
    if size <= SMALL and _small_stem(model) and pretrained:
        warnings.warn(
            f"{name}: the pretrained stem is made for large images; for {size} px a new one starts from scratch",
            stacklevel=4,
        )
    now = first = probe(model, channels, size)
    done = 0
    while size <= SMALL and (not _fits(now) if halvings is None else done < halvings) and now.strided:
        for module in now.strided[max(now.strided)]:
            _halve_stride(module)
        now = probe(model, channels, size)
        done += 1
    if now.error is None and (size > SMALL or _fits(now)):
        return
    why = reason(first.error) if first.error else f"it leaves a map of {first.map_side}×{first.map_side}"
    raise LeanError(f"model {name} cannot take images of {size} px ({why}); use larger ones or --model resnet8.")


def _fits(found: Probe) -> bool:
    return found.error is None and found.map_side >= LEAST_MAP


def _small_stem(model: nn.Module) -> bool:
    """Give a ResNet of timm or torchvision the stem of its CIFAR version; whether its weights are new."""
    if not all(hasattr(model, part) for part in ("conv1", "maxpool", "layer1", "layer4")):
        return False
    model.maxpool = nn.Identity()
    stem = model.get_submodule("conv1")
    if isinstance(stem, nn.Conv2d) and max(stem.kernel_size) > 3:
        model.conv1 = conv_like(stem, kernel_size=3, stride=1, padding=1)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        return True
    for module in filter(_is_strided, stem.modules()):  # three 3×3 convolutions, ResNet-D's stem
        _halve_stride(module)
    return False


def probe(model: nn.Module, channels: int, size: int) -> Probe:
    """Send one black image through, in eval mode so that no statistics change, and watch."""
    found = Probe()

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if _is_strided(module) and module not in found.strided[inputs[0].shape[2]]:
            found.strided[inputs[0].shape[2]].append(module)

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, nn.AdaptiveAvgPool2d):  # the last one is the global pool; others sit inside blocks
            found.map_side = inputs[0].shape[2]
        elif isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] > 1:
            found.map_side = output.shape[2]

    leaves = [module for module in model.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(after) for module in leaves]
    hooks += [module.register_forward_pre_hook(before) for module in model.modules() if _is_strided(module)]
    image = torch.zeros(1, channels, size, size)
    model.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using padding='same'")  # said once per process, of no use
            model(image)
            forward_features: Any = getattr(model, "forward_features", None)
            if forward_features is not None:
                found.map_side = _side(model, forward_features(image)) or found.map_side
    except Exception as error:
        found.error = error
    finally:
        for hook in hooks:
            hook.remove()
        model.train()
    return found


def _side(model: nn.Module, features: Any) -> int | None:
    """The side of a square map, channels first or last, or of a grid of tokens."""
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        return None
    if features.ndim == 4:
        return features.shape[2]
    return math.isqrt(features.shape[1] - int(getattr(model, "num_prefix_tokens", 0)))


def _is_strided(module: nn.Module) -> bool:
    blur = type(module).__name__ == "BlurPool2d"  # timm's; by name, so that timm need not be imported
    if not (blur or isinstance(module, (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d))):
        return False
    return max(_pair(module.stride)) > 1


def _halve_stride(module: Any) -> None:
    """Step half as far and pad so that the output's side is the input's over the stride, as every branch must agree."""
    stride = tuple(max(1, s // 2) for s in _pair(module.stride))
    if type(module).__name__ == "BlurPool2d":  # pads for its filter already
        module.stride = max(stride)
        return
    module.stride = stride
    kernel = _pair(module.kernel_size)
    if not isinstance(module, nn.Conv2d) and kernel[0] % 2 == 0:  # an even pool of stride 1 would lose a pixel
        kernel = module.kernel_size = tuple(k // 2 for k in kernel)
    if "Same" in type(module).__name__:  # timm's TensorFlow ports pad as they go
        return
    if isinstance(module, nn.Conv2d) and kernel[0] % 2 == 0 and max(stride) == 1:
        module.padding = "same"
        return
    dilation = _pair(module.dilation) if isinstance(module, nn.Conv2d) else (1, 1)
    module.padding = tuple(
        d * (k - 1) // 2 if k % 2 else max(0, k - s) // 2 for k, s, d in zip(kernel, stride, dilation, strict=True)
    )


def _pair(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def conv_like(old: nn.Conv2d, **changed: Any) -> nn.Conv2d:
    """A fresh convolution like another one, but for what is changed."""
    usual = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return nn.Conv2d(**({key: getattr(old, key) for key in usual} | {"bias": old.bias is not None} | changed))


def reason(error: Exception) -> str:
    """The first line of what went wrong, for a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:160] if lines else type(error).__name__

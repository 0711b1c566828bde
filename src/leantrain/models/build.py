"""Models by name, built: our own, timm's and torchvision's."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leantrain import rng
from leantrain.errors import LeanError, nearest
from leantrain.models.nets import SmallResNet
from leantrain.models.small import SMALL, conv_like, fit, probe, reason
from leantrain.models.weights import head_names, load_weights

OWN = {"resnet8": (1, 32), "resnet20": (3, 16)}  # name: blocks per stage, width of the first
TORCHVISION = "torchvision/"


def build(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    image_size: int,
    width: int | None = None,
    dropout: float = 0.0,
    pretrained: bool = False,
    weights: Path | None = None,
    seed: int = 0,
) -> nn.Module:
    """The model called `name`, in train mode on the CPU, ready for square images of `image_size` pixels.

    Published models reduce an image 32-fold, which leaves one pixel of a 32-pixel image. Up to 64 pixels they are
    changed so that the last map before the global pool is at least 4×4: ResNets get a 3×3 stem without max-pool,
    other CNNs lose their earliest strides, transformers get smaller patches. Larger images get the model as published.

    Args:
        name: `resnet8`, `resnet20`, a name of timm's, or `torchvision/NAME`; see `names`.
        width: Channels of the first stage, for `resnet8` and `resnet20` alone.
        dropout: Before the last layer (torchvision's transformers: everywhere); 0 leaves what its authors chose.
        pretrained: Start from the published weights, which are downloaded.
        weights: Start from this file instead, `.safetensors` or a state dict saved by torch.
        seed: The initial weights are a function of it alone; torch's global generators stay as they were.
    """
    _check(name, classes, channels, image_size, width, dropout, pretrained, weights)
    # Models are made on the CPU, so only its generator is forked; torch.manual_seed would reseed the GPUs' as well.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.derive(seed, "model"))
        if name in OWN:
            model = _own(name, classes, channels, width, dropout)
            fit(model, name, channels, image_size)
        elif name.startswith(TORCHVISION):
            model = _from_torchvision(name, classes, channels, image_size, dropout, pretrained)
        else:
            model = _from_timm(name, classes, channels, image_size, dropout, pretrained)
    if weights is not None:
        load_weights(model, weights)
    return model.train()


def default_model(image_size: int, examples: int, device: str) -> str:
    """The model for a user who named only the data: what that device trains from scratch in reasonable time.

    Up to 64 pixels `resnet8` on a CPU and `resnet18` on a GPU. Larger images: `resnet18` on a CPU (there as fast as
    MobileNetV2, whose depthwise convolutions save arithmetic but no time) and on a GPU while there are fewer than
    50,000 examples; beyond that `resnet50`.
    """
    on_cpu = device.split(":")[0] == "cpu"
    if image_size <= SMALL:
        return "resnet8" if on_cpu else "resnet18"
    return "resnet18" if on_cpu or examples < 50_000 else "resnet50"


def names(pattern: str = "*") -> list[str]:
    """Every model name that matches the shell pattern: our own first, then timm's, then torchvision's."""
    timm, vision = libraries()
    known = [*OWN, *timm.list_models(), *(TORCHVISION + name for name in vision.list_models(module=vision))]
    return fnmatch.filter(known, pattern)


def parameter_count(model: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# --- where models come from ------------------------------------------------------------------------------------------


def _check(
    name: str,
    classes: int,
    channels: int,
    image_size: int,
    width: int | None,
    dropout: float,
    pretrained: bool,
    weights: Path | None,
) -> None:
    for what, value, least in (("classes", classes, 2), ("channels", channels, 1), ("image_size", image_size, 8)):
        if value < least:
            raise LeanError(f"{what} must be at least {least}, not {value}.")
    if not 0 <= dropout < 1:
        raise LeanError(f"dropout must be at least 0 and less than 1, not {dropout}.")
    if width is not None and name not in OWN:
        raise LeanError(f"width {width} cannot be set for {name}: --width is for {' and '.join(OWN)} alone.")
    if width is not None and width < 1:
        raise LeanError(f"width must be at least 1, not {width}.")
    if pretrained and weights is not None:
        raise LeanError(f"pretrained weights and --weights {weights} exclude each other; give one of them.")
    if pretrained and name in OWN:
        raise LeanError(f"{name} has no published weights; leave out --pretrained or give a file with --weights.")


def libraries() -> tuple[Any, Any]:
    """timm and torchvision.models; imported late, because together they take longer than everything else."""
    import timm
    import torchvision

    return timm, torchvision.models


def _own(name: str, classes: int, channels: int, width: int | None, dropout: float) -> nn.Module:
    depth, usual = OWN[name]
    return SmallResNet(depth, classes=classes, channels=channels, width=width or usual, dropout=dropout)


def _from_torchvision(
    name: str, classes: int, channels: int, image_size: int, dropout: float, pretrained: bool
) -> nn.Module:
    vision, short = libraries()[1], name.removeprefix(TORCHVISION)
    if short not in vision.list_models(module=vision):
        raise _unknown(name)
    options: dict[str, Any] = {} if pretrained else {"num_classes": classes}
    if short in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False} if pretrained else {"aux_logits": False, "init_weights": True}
        warnings.warn(
            f"{name} is built without its auxiliary heads, which split propagation and small images have no place for; "
            "in your own loop a model that has them trains with them",
            stacklevel=3,
        )
    if short.startswith("vit_"):
        options["image_size"] = image_size
    if short.startswith("maxvit"):
        options["input_size"] = (image_size, image_size)
    if dropout:
        options["dropout"] = dropout
    make = partial(vision.get_model, short, weights="DEFAULT" if pretrained else None)
    model = _make(make, name, options, pretrained)
    if pretrained:
        _new_head(model, classes)
    if channels != 3:
        _new_input(model, channels)
    if short.startswith("maxvit"):
        _fix_size(model, image_size)
    fit(model, name, channels, image_size, pretrained)
    return model


def _from_timm(name: str, classes: int, channels: int, image_size: int, dropout: float, pretrained: bool) -> nn.Module:
    """timm's model, given its image size in the first way that this family takes and that fits.

    The way is found on fresh weights, so that a download is tried once and at the end.
    """
    timm = libraries()[0]
    if not timm.is_model(name.split(".")[0]):
        raise _unknown(name)
    make = partial(timm.create_model, name, num_classes=classes, in_chans=channels)
    shared = {"drop_rate": dropout} if dropout else {}
    for way, halvings in _timm_ways(image_size):
        try:
            model = _make(make, name, shared | way)
            fit(model, name, channels, image_size, halvings=halvings)
        except LeanError:
            if not way:  # the last one
                raise
            continue
        break
    if pretrained:
        model = _make(make, name, shared | way | {"pretrained": True}, pretrained=True)
        fit(model, name, channels, image_size, pretrained, halvings)
    sized = "img_size" in way and not way.keys() & {"dynamic_img_size", "strict_img_size"}
    if sized and probe(model, channels, image_size // 2 + 1).error is not None:
        _fix_size(model, image_size)
    return model


def _timm_ways(size: int) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Arguments that give a timm model its image size, best first, and how many strides to halve (None: what it takes).

    A family refuses arguments it does not know, so trying is how to learn which it takes: Swin a window, ViT a dynamic
    size, others a fixed one with or without a patch, CNNs none. A hierarchical transformer whose patch is fixed is
    made for a larger image, and its stem's strides are then halved until it takes the smaller one.
    """
    small = size <= SMALL
    coarsest = 4 if size <= 48 else 8
    for patch in (p for p in (8, 4, 2, 1) if small and p <= coarsest and size % p == 0):
        grid = size // patch
        window = max(w for w in range(1, 9) if grid % w == 0)
        sized = {"img_size": size, "patch_size": patch}
        yield sized | {"window_size": window, "strict_img_size": False}, 0
        yield sized | {"dynamic_img_size": True}, 0
        yield sized, 0
    if not small:
        yield {"img_size": size, "strict_img_size": False}, 0
        yield {"img_size": size, "dynamic_img_size": True}, 0
    for halvings in range(6 if small else 1):
        yield {"img_size": size << halvings}, halvings
    yield {}, None


def _make(make: Callable[..., nn.Module], name: str, options: dict[str, Any], pretrained: bool = False) -> nn.Module:
    """Call a foreign constructor; whatever it cannot do becomes a sentence."""
    try:
        return make(**options)
    except TypeError as error:
        if options.keys() & {"drop_rate", "dropout"}:
            raise LeanError(f"model {name} takes no dropout; leave out --dropout or choose another --model.") from error
        raise LeanError(f"model {name} cannot be built: {reason(error)}; choose another --model.") from error
    except Exception as error:
        if pretrained:
            raise LeanError(
                f"the published weights of {name} could not be loaded ({reason(error)}); "
                "give a file of them with --weights FILE, or train from scratch."
            ) from error
        raise LeanError(f"model {name} cannot be built: {reason(error)}; choose another --model.") from error


def _unknown(name: str) -> LeanError:
    return LeanError(f"there is no model '{name}'.{nearest(name, names())} `resnet8` always works.")


def _fix_size(model: nn.Module, image_size: int) -> None:
    """Leave a note for `size_step`: this model's insides were laid out for one image size."""
    model.lean_fixed_size = image_size  # type: ignore[assignment]


def _new_head(model: nn.Module, classes: int) -> None:
    """Torchvision's pretrained models come with 1,000 classes."""
    for name in head_names(model):
        old = model.get_submodule(name)
        if isinstance(old, nn.Linear):
            model.set_submodule(name, nn.Linear(old.in_features, classes))
        elif isinstance(old, nn.Conv2d):
            model.set_submodule(name, nn.Conv2d(old.in_channels, classes, 1))


def _new_input(model: nn.Module, channels: int) -> None:
    """Torchvision's models take three channels; give the first convolution another number, as timm does for its own."""
    from timm.models import adapt_input_conv

    name, old = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    new = conv_like(old, in_channels=channels)
    with torch.no_grad():
        new.weight.copy_(adapt_input_conv(channels, old.weight))
        if old.bias is not None and new.bias is not None:
            new.bias.copy_(old.bias)
    model.set_submodule(name, new)
    if hasattr(model, "transform_input"):  # renormalises three channels
        model.transform_input = False  # type: ignore[assignment]

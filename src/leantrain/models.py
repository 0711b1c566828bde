"""Models by name: two small ResNets of our own, timm's, torchvision's; made right for small images."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain import _torchvision, rng
from leantrain.errors import LeanError, nearest


class Shortcut(nn.Conv2d):
    """A strided 1×1 convolution that also works for few channels on a CPU.

    There oneDNN's weight gradient writes past its workspace (channels_last, fewer than 16 input channels, several
    threads: uxlfoundation/oneDNN#6035), which ends the process. The same as a convolution of stride 1 over the pixels
    that the strided one visits is right, and about 10 % of a step slower, so the rest keeps the strided one.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels >= 16 or x.device.type != "cpu":
            return super().forward(x)
        down, across = self.stride
        return F.conv2d(x[..., ::down, ::across], self.weight)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.act = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(Shortcut(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        main = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        out: Tensor = self.act(main + self.downsample(x))
        return out


class SmallResNet(nn.Module):
    """A ResNet for small images: a 3×3 stem, three stages of basic blocks, each twice as wide as the one before.

    The names follow timm's (`forward_features`, `forward_head`, `global_pool`, `fc`), so that code which looks for a
    split point treats it like any other model.
    """

    def __init__(self, depth: int, *, classes: int, channels: int, width: int, dropout: float) -> None:
        super().__init__()
        self.num_classes, self.num_features = classes, 4 * width
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.layer1 = _stage(width, width, depth, stride=1)
        self.layer2 = _stage(width, 2 * width, depth, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, depth, stride=2)
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        out: Tensor = self.layer3(self.layer2(self.layer1(x)))
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _stage(inside: int, outside: int, depth: int, stride: int) -> nn.Sequential:
    blocks = [BasicBlock(inside if i == 0 else outside, outside, stride if i == 0 else 1) for i in range(depth)]
    return nn.Sequential(*blocks)


_OWN = {"resnet8": (1, 32), "resnet20": (3, 16)}  # name: blocks per stage, width of the first
_SMALL = 64  # up to this many pixels a model made for 224 is changed to suit
_LEAST_MAP = 4  # the last map of a small image must have this side: less, and there is nothing left to pool
_TORCHVISION = "torchvision/"


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
        if name in _OWN:
            model = _own(name, classes, channels, width, dropout)
            _fit(model, name, channels, image_size)
        elif name.startswith(_TORCHVISION):
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
    if image_size <= _SMALL:
        return "resnet8" if on_cpu else "resnet18"
    return "resnet18" if on_cpu or examples < 50_000 else "resnet50"


def names(pattern: str = "*") -> list[str]:
    """Every model name that matches the shell pattern: our own first, then timm's, then torchvision's."""
    timm, vision = _libraries()
    known = [*_OWN, *timm.list_models(), *(_TORCHVISION + name for name in vision.list_models(module=vision))]
    return fnmatch.filter(known, pattern)


def size_step(model: nn.Module) -> int:
    """What an input's side must be a multiple of: 1 for CNNs, the patch for transformers.

    A model that takes its one size only (fixed position biases) answers with that size.
    """
    fixed = getattr(model, "lean_fixed_size", None) or getattr(model, "image_size", None)
    if isinstance(fixed, int):
        return fixed
    embed = getattr(model, "patch_embed", None)
    project = getattr(embed, "proj", None)
    if not isinstance(project, nn.Conv2d) or project.kernel_size != project.stride:  # overlapping patches are padded
        return 1
    strict, side = getattr(embed, "strict_img_size", False), getattr(embed, "img_size", None)
    return max(side) if strict and side else max(project.stride)


def parameter_count(model: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a state dict, without ever running code from the file. A head for other classes is left as initialised."""
    found, wanted = _read_weights(file), model.state_dict()
    differing = {key for key in found.keys() & wanted.keys() if found[key].shape != wanted[key].shape}
    fresh = {key for key in differing if key.rpartition(".")[0] in _head_names(model)}
    fresh |= {key for key in differing & {"conv1.weight"} if found[key].shape[:2] == wanted[key].shape[:2]}  # the stem
    missing = {key for key in wanted.keys() - found.keys() if not key.endswith("num_batches_tracked")}
    for label, keys in (
        ("lacks", missing),
        ("has unknown", found.keys() - wanted.keys()),
        ("has another shape of", differing - fresh),
    ):
        if keys:
            some = ", ".join(sorted(keys)[:3]) + (", …" if len(keys) > 3 else "")
            raise LeanError(
                f"weights file {file} {label} {len(keys)} of the model's {len(wanted)} tensors ({some}); "
                "give the --model, --width and image size it was saved from"
            )
    if fresh:
        warnings.warn(
            f"{file}: {', '.join(sorted(fresh))} have another shape than this model's and start from scratch",
            stacklevel=3,
        )
    model.load_state_dict({key: value for key, value in found.items() if key not in fresh}, strict=False)


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
            raise LeanError(f"{what} must be at least {least}, not {value}")
    if not 0 <= dropout < 1:
        raise LeanError(f"dropout must be at least 0 and less than 1, not {dropout}")
    if width is not None and name not in _OWN:
        raise LeanError(f"width {width} cannot be set for {name}: --width is for {' and '.join(_OWN)} alone")
    if width is not None and width < 1:
        raise LeanError(f"width must be at least 1, not {width}")
    if pretrained and weights is not None:
        raise LeanError(f"pretrained weights and --weights {weights} exclude each other; give one of them")
    if pretrained and name in _OWN:
        raise LeanError(f"{name} has no published weights; leave out --pretrained or give a file with --weights")


def _libraries() -> tuple[Any, Any]:
    """timm and torchvision.models; imported late, because together they take longer than everything else."""
    _torchvision.prepare()
    import timm
    import torchvision

    return timm, torchvision.models


def _own(name: str, classes: int, channels: int, width: int | None, dropout: float) -> nn.Module:
    depth, usual = _OWN[name]
    return SmallResNet(depth, classes=classes, channels=channels, width=width or usual, dropout=dropout)


def _from_torchvision(
    name: str, classes: int, channels: int, image_size: int, dropout: float, pretrained: bool
) -> nn.Module:
    vision, short = _libraries()[1], name.removeprefix(_TORCHVISION)
    if short not in vision.list_models(module=vision):
        raise _unknown(name)
    options: dict[str, Any] = {} if pretrained else {"num_classes": classes}
    if short in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False} if pretrained else {"aux_logits": False, "init_weights": True}
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
    _fit(model, name, channels, image_size, pretrained)
    return model


def _from_timm(name: str, classes: int, channels: int, image_size: int, dropout: float, pretrained: bool) -> nn.Module:
    """timm's model, told its image size in the first way that this family takes and that fits.

    The way is found on fresh weights, so that a download is tried once and at the end.
    """
    timm = _libraries()[0]
    if not timm.is_model(name.split(".")[0]):
        raise _unknown(name)
    make = partial(timm.create_model, name, num_classes=classes, in_chans=channels)
    shared = {"drop_rate": dropout} if dropout else {}
    for way, halvings in _timm_ways(image_size):
        try:
            model = _make(make, name, shared | way)
            _fit(model, name, channels, image_size, halvings=halvings)
        except LeanError:
            if not way:  # the last one
                raise
            continue
        break
    if pretrained:
        model = _make(make, name, shared | way | {"pretrained": True}, pretrained=True)
        _fit(model, name, channels, image_size, pretrained, halvings)
    told = "img_size" in way and not way.keys() & {"dynamic_img_size", "strict_img_size"}
    if told and _probe(model, channels, image_size // 2 + 1).error is not None:
        _fix_size(model, image_size)
    return model


def _timm_ways(size: int) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Arguments that tell a timm model its image size, best first, and how many strides to halve (None: what it takes).

    A family refuses arguments it does not know, so trying is how to learn which it takes: Swin a window, ViT a dynamic
    size, others a fixed one with or without a patch, CNNs none. A hierarchical transformer whose patch is fixed is
    made for a larger image, and its stem's strides are then halved until it takes the smaller one.
    """
    small = size <= _SMALL
    coarsest = 4 if size <= 48 else 8
    for patch in (p for p in (8, 4, 2, 1) if small and p <= coarsest and size % p == 0):
        grid = size // patch
        window = max(w for w in range(1, 9) if grid % w == 0)
        told = {"img_size": size, "patch_size": patch}
        yield told | {"window_size": window, "strict_img_size": False}, 0
        yield told | {"dynamic_img_size": True}, 0
        yield told, 0
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
            raise LeanError(f"model {name} takes no dropout; leave out --dropout or choose another --model") from error
        raise LeanError(f"model {name} cannot be built: {_reason(error)}; choose another --model") from error
    except Exception as error:
        if pretrained:
            raise LeanError(
                f"the published weights of {name} could not be loaded ({_reason(error)}); "
                "give a file of them with --weights FILE, or train from scratch"
            ) from error
        raise LeanError(f"model {name} cannot be built: {_reason(error)}; choose another --model") from error


def _unknown(name: str) -> LeanError:
    return LeanError(f"there is no model '{name}'.{nearest(name, names())} `resnet8` always works.")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:160] if lines else type(error).__name__


def _fix_size(model: nn.Module, image_size: int) -> None:
    """Leave a note for `size_step`: this model's insides were laid out for one image size."""
    model.lean_fixed_size = image_size  # type: ignore[assignment]


def _head_names(model: nn.Module) -> set[str]:
    """The modules whose shape depends on the number of classes."""
    config = getattr(model, "pretrained_cfg", None)
    declared = config.get("classifier") if isinstance(config, Mapping) else None
    if declared:
        return {declared} if isinstance(declared, str) else set(declared)
    return {[name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))][-1]}


def _new_head(model: nn.Module, classes: int) -> None:
    """Torchvision's pretrained models come with 1,000 classes."""
    for name in _head_names(model):
        old = model.get_submodule(name)
        if isinstance(old, nn.Linear):
            model.set_submodule(name, nn.Linear(old.in_features, classes))
        elif isinstance(old, nn.Conv2d):
            model.set_submodule(name, nn.Conv2d(old.in_channels, classes, 1))


def _new_input(model: nn.Module, channels: int) -> None:
    """Torchvision's models take three channels; give the first convolution another number, as timm does for its own."""
    from timm.models import adapt_input_conv

    name, old = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    new = _conv_like(old, in_channels=channels)
    with torch.no_grad():
        new.weight.copy_(adapt_input_conv(channels, old.weight))
        if old.bias is not None and new.bias is not None:
            new.bias.copy_(old.bias)
    model.set_submodule(name, new)
    if hasattr(model, "transform_input"):  # renormalises three channels
        model.transform_input = False  # type: ignore[assignment]


def _conv_like(old: nn.Conv2d, **changed: Any) -> nn.Conv2d:
    usual = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return nn.Conv2d(**({key: getattr(old, key) for key in usual} | {"bias": old.bias is not None} | changed))


def _read_weights(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise LeanError(f"there is no weights file {file}; check --weights")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise LeanError(
            f"weights file {file} cannot be read as plain tensors ({_reason(error)}); "
            "save the model's state_dict() with torch.save or safetensors"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise LeanError(f"weights file {file} holds no state dict; save the model's state_dict() with torch.save")
    return dict(found)


# --- small images ----------------------------------------------------------------------------------------------------


@dataclass
class _Probe:
    """What one trial image met on its way through a model."""

    map_side: int = 1  # of the last map before the pool, or of the token grid
    strided: dict[int, list[nn.Module]] = field(default_factory=lambda: defaultdict(list))  # by side of their input
    error: Exception | None = None


def _fit(
    model: nn.Module, name: str, channels: int, size: int, pretrained: bool = False, halvings: int | None = None
) -> None:
    """Change a model for small images, in place, and make sure that it takes images of this size at all.

    Strided modules that see the same resolution are the branches of one step down (a block and its shortcut), so they
    change together, the highest resolution first. A model that fails half-way still shows the strides up to there.
    """
    if size <= _SMALL and _small_stem(model) and pretrained:
        warnings.warn(
            f"{name}: the pretrained stem is made for large images; for {size} px a new one starts from scratch",
            stacklevel=4,
        )
    probe = first = _probe(model, channels, size)
    done = 0
    while size <= _SMALL and (not _fits(probe) if halvings is None else done < halvings) and probe.strided:
        for module in probe.strided[max(probe.strided)]:
            _halve_stride(module)
        probe = _probe(model, channels, size)
        done += 1
    if probe.error is None and (size > _SMALL or _fits(probe)):
        return
    why = _reason(first.error) if first.error else f"it leaves a map of {first.map_side}×{first.map_side}"
    raise LeanError(f"model {name} cannot take images of {size} px ({why}); use larger ones or --model resnet8")


def _fits(probe: _Probe) -> bool:
    return probe.error is None and probe.map_side >= _LEAST_MAP


def _small_stem(model: nn.Module) -> bool:
    """Give a ResNet of timm or torchvision the stem of its CIFAR version; whether its weights are new."""
    if not all(hasattr(model, part) for part in ("conv1", "maxpool", "layer1", "layer4")):
        return False
    model.maxpool = nn.Identity()
    stem = model.get_submodule("conv1")
    if isinstance(stem, nn.Conv2d) and max(stem.kernel_size) > 3:
        model.conv1 = _conv_like(stem, kernel_size=3, stride=1, padding=1)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        return True
    for module in filter(_is_strided, stem.modules()):  # three 3×3 convolutions, ResNet-D's stem
        _halve_stride(module)
    return False


def _probe(model: nn.Module, channels: int, size: int) -> _Probe:
    """Send one black image through, in eval mode so that no statistics change, and watch."""
    probe = _Probe()

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if _is_strided(module) and module not in probe.strided[inputs[0].shape[2]]:
            probe.strided[inputs[0].shape[2]].append(module)

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, nn.AdaptiveAvgPool2d):  # the last one is the global pool; others sit inside blocks
            probe.map_side = inputs[0].shape[2]
        elif isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] > 1:
            probe.map_side = output.shape[2]

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
                probe.map_side = _side(model, forward_features(image)) or probe.map_side
    except Exception as error:
        probe.error = error
    finally:
        for hook in hooks:
            hook.remove()
        model.train()
    return probe


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

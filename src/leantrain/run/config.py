"""The settings of a training run: one dataclass, from which flags, help, checks and config.yaml derive."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from leantrain.errors import LeanError, nearest, shortened
from leantrain.options import check, convert, option, scalar_type

PLAIN = "plain"
"""The method that trains on every example in every epoch; what all others are compared with."""


def _flag(group: str, default: Any, help: str, **limits: Any) -> Any:
    return option(default, help, group=group, flag=True, **limits)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Every setting of `leantrain train`. None means: chosen to suit the data and the machine.

    Operational settings may change when a run is resumed; the others decide what is computed and may not.
    """

    data: str = _flag(
        "Data",
        "digits",
        "digits, fashion-mnist, cifar10, cifar100, imagenet, a folder with a folder per class, parquet, "
        "WebDataset shards ('train-{000..099}.tar'), or hf:PATH",
    )
    data_root: str | None = _flag(
        "Data", None, "where sets known by name are kept (default: ~/.cache/leantrain-data)", operational=True
    )
    train_limit: int | None = _flag("Data", None, "train on the first N of a fixed, class-balanced permutation", low=2)
    validation: float = _flag(
        "Data", 0.0, "share held out of the training part and evaluated on instead of the test set", low=0.0, below=1.0
    )
    image_size: int | None = _flag(
        "Data", None, "side in pixels that images are brought to (default: their own, up to 224)", low=4
    )
    skip_bad_images: bool = _flag(
        "Data", False, "leave out images that cannot be read, and count them", operational=True
    )
    augment: str = _flag(
        "Data",
        "light",
        "light: random crops, which shift small images more and more as the run goes on, and mirrored where --flip "
        "is on; trivial and randaugment do more besides",
        choices=("none", "light", "trivial", "randaugment"),
    )
    flip: bool | None = _flag(
        "Data", None, "mirror half of the training images; not for letters or signs (default: on, digits off)"
    )
    erase: float = _flag("Data", 0.0, "share of the training images that lose a random rectangle", low=0.0, high=1.0)

    model: str | None = _flag("Model", None, "resnet8, resnet20, any timm name, or torchvision/NAME")
    width: int | None = _flag("Model", None, "width of resnet8's or resnet20's first stage", low=1, high=4096)
    pretrained: bool = _flag("Model", False, "start from the published weights")
    weights: str | None = _flag("Model", None, "start from a .safetensors or .pt file")
    fit_head: bool | None = _flag(
        "Model",
        None,
        "let a new classifier start from least squares on the model's features, for a forward pass over at most 4,096 "
        "images (default: on where training starts from weights)",
    )
    keep_statistics: bool | None = _flag(
        "Model",
        None,
        "normalise by the weights' own BatchNorm statistics, in training too "
        "(default: on where training starts from weights)",
    )
    dropout: float = _flag("Model", 0.0, "dropout before the classifier", low=0.0, below=1.0)

    method: str | None = _flag(
        "Training",
        None,
        'which examples to train on, e.g. "infobatch + progressive-resizing"; see `leantrain methods` '
        "(default: lean with a --budget, freezing where training starts from weights as well, else plain)",
    )
    epochs: int | None = _flag("Training", None, "epochs the run stands for", low=1, high=32767)
    budget: float | None = _flag(
        "Training",
        None,
        "spend this share of what plain training costs, schedule fully decayed; 0.5 is half",
        above=0.0,
    )
    batch_size: int | None = _flag(
        "Training",
        None,
        "examples (or composites) per optimiser step, of all processes together, unless --accumulate-batches gathers "
        "several "
        "(default: 32, 64 or 128, the largest with which a full run has 2,500 steps)",
        low=1,
    )
    optimizer: str | None = _flag(
        "Training",
        None,
        "sgd has Nesterov momentum (default: sgd; adamw where training starts from weights)",
        choices=("sgd", "adam", "adamw"),
    )
    lr: float | None = _flag(
        "Training",
        None,
        "peak learning rate (default: for batch size 128, and in proportion to it, sgd 0.6 for ResNets and 0.1 for "
        "others, adam and adamw 0.001; "
        "where training starts from weights sgd 0.02, the others 0.001 with the square root of the batch size)",
        above=0.0,
    )
    momentum: float = _flag("Training", 0.9, "of sgd", low=0.0, below=1.0)
    weight_decay: float | None = _flag(
        "Training", None, "on all weights but biases and normalisation (default: 0.0005; adamw 0.05)", low=0.0
    )
    clip: float | None = _flag("Training", None, "largest gradient norm", above=0.0)
    schedule: str = _flag(
        "Training", "linear", 'linear, onecycle, cosine, step, constant; with options "step[every=30,factor=0.1]"'
    )
    label_smoothing: float = _flag(
        "Training", 0.0, "of the loss that is minimised; recorded losses stay clean", low=0.0, below=1.0
    )
    seed: int = _flag("Training", 0, "what every random choice derives from", low=0)

    precision: str = _flag(
        "Speed",
        "auto",
        "auto: bf16 where the hardware has it and is faster in it",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    accumulate: int = _flag("Speed", 1, "compute each batch in N parts, to save memory", low=1)
    accumulate_batches: int = _flag(
        "Speed", 1, "one optimiser step per N batches: an effective batch of N times --batch-size", low=1
    )
    channels_last: bool = _flag("Speed", True, "memory format of images and convolutions")
    compile: bool = _flag("Speed", False, "torch.compile the model")
    workers: int | None = _flag(
        "Speed",
        None,
        "processes that decode images (default: 0 for sets in memory, else up to 8)",
        low=0,
        high=1024,
        operational=True,
    )
    pin_memory: bool | None = _flag("Speed", None, "page-locked host memory (default: with CUDA)", operational=True)
    device: str = _flag("Speed", "auto", "auto, cpu, cuda, cuda:1, mps", operational=False)
    devices: int | None = _flag(
        "Speed",
        None,
        "train in N processes on this machine, a GPU each, or on the CPU (default: 1); torchrun may start them instead",
        low=1,
        high=1024,
        operational=True,
    )
    nodes: int = _flag(
        "Speed",
        1,
        "machines, on each of which the same command is started with MASTER_ADDR and NODE_RANK set",
        low=1,
        high=100_000,
        operational=True,
    )
    sync_batchnorm: bool = _flag("Speed", False, "BatchNorm's statistics over all processes; needs GPUs")
    threads: int | None = _flag("Speed", None, "CPU threads (default: torch's)", low=1, high=1024)

    eval_every: int = _flag("Output", 1, "epochs between evaluations; the last epoch is always evaluated", low=1)
    checkpoint_every: int | None = _flag(
        "Output", None, "steps between checkpoints (default: at the end of every epoch)", low=1, operational=True
    )
    history: bool = _flag("Output", True, "keep every example's loss of every epoch in OUT/history", operational=True)
    keep_weights: int | None = _flag(
        "Output",
        None,
        "keep the weights of every N-th epoch in OUT/weights, for `leantrain inspect` to look back over the epochs",
        low=1,
        operational=True,
    )
    log: str = _flag(
        "Output", "", "also log epochs for tensorboard, csv or mlflow, or several: tensorboard,mlflow", operational=True
    )
    out: str | None = _flag(
        "Output", None, "folder for results and checkpoints (default: runs/DATA-MODEL-METHOD-SEED)", operational=True
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def from_weights(self) -> bool:
        """Whether training starts from somebody's weights and not from nothing."""
        return self.pretrained or self.weights is not None

    @property
    def step_size(self) -> int:
        """Examples (or composites) per optimiser step."""
        assert self.batch_size is not None
        return self.batch_size * self.accumulate_batches

    @property
    def step_parts(self) -> int:
        """Parts that a step is computed in, one forward and backward pass each."""
        return self.accumulate * self.accumulate_batches


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(TrainConfig)}
OPERATIONAL = frozenset(name for name, field in FIELDS.items() if field.metadata.get("operational"))


def from_mapping(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings from YAML or flags as the types of the dataclass; unknown names are refused with the nearest match."""
    hints = typing.get_type_hints(TrainConfig)
    settings: dict[str, Any] = {}
    for name, value in values.items():
        key = str(name).replace("-", "_")
        if key == "tensorboard" and isinstance(value, bool):  # as runs have it that were made before there was `log`
            settings["log"] = "tensorboard" if value else ""
            continue
        if key not in FIELDS:
            raise LeanError(f"{where} has no setting '{shortened(str(name))}'.{nearest(key[:100], FIELDS)}")
        if value is None and FIELDS[key].default is not None:
            raise LeanError(f"{where}: {name} has no value; give one or take the line out.")
        settings[key] = convert(scalar_type(hints[key]), value, f"{where}: {name}")
    return settings


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of settings; what a run wrote beside them (`made_with`) is left out."""
    content = load_yaml(path)
    content.pop("made_with", None)
    return from_mapping(content, str(path))


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of `name: value` lines.

    Raises:
        LeanError: it cannot be read, or is something else.
    """
    try:
        content = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise LeanError(f"the config file '{path}' cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise LeanError(f"the config file '{path}' is not YAML: {shortened(str(error), 300)}.") from None
    if not isinstance(content, dict):
        raise LeanError(f"the config file '{path}' must hold 'name: value' lines.")
    return content


class _Loader(yaml.SafeLoader):
    """Refuses what settings do not need: a name given twice, and aliases, with which a few lines become a billion."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*name), which settings cannot; write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key.value, str)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"it gives '{twice}' twice; give it once")
        return super().construct_mapping(node, deep)


def default_workers(in_memory: bool) -> int:
    """Sets in memory need no worker; decoding keeps up to eight processes busy, less one core for the training."""
    return 0 if in_memory else max(1, min(8, (os.cpu_count() or 2) - 1))

"""On a CPU that computes in bf16, which networks are faster in it? Forward and backward pass, against fp32.

    python benchmarks/precision.py --threads 1
    python benchmarks/precision.py --models mobilenetv2_100,resnet18

Each network of timm's takes a batch of random images in either precision in turn, channels_last, and the times of the
same round are compared. `--precision auto` follows from the answer: fp32 for MobileNets, EfficientNets and their kin.
Result: see benchmarks/README.md and results/precision.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from _common import Spread, alternate, finish, markdown, parser, ratios
from torch import nn

from leantrain.models import build
from leantrain.run.machine import slow_in_bf16


class Case(NamedTuple):
    model: str
    size: int = 64
    batch: int = 16


CASES = (
    Case("mobilenetv2_100"),
    Case("tf_efficientnet_lite0", 128),
    Case("efficientnet_b0"),
    Case("mobilenetv3_small_100"),
    Case("mobilenetv4_conv_small"),
    Case("ghostnet_100"),
    Case("convnext_atto"),
    Case("edgenext_xx_small"),
    Case("resnet18"),
    Case("resnext50_32x4d"),
    Case("regnety_002"),
    Case("vit_tiny_patch16_224", 224, 4),
)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    cases = tuple(case for case in CASES if case.model in arguments.models.split(","))
    lines, result = [], {}
    for case in cases:
        model = build(case.model, classes=10, image_size=case.size).to(memory_format=torch.channels_last)
        steps = {precision: _step(model, case, precision == "bf16") for precision in ("fp32", "bf16")}
        rates = alternate(steps, arguments.rounds, discard=2)
        time = ratios(rates, "fp32", "bf16")  # how many times as long a step in bf16 takes
        auto = "fp32" if slow_in_bf16(model) else "bf16"
        lines.append((case.model, case.size, time.text(), auto))
        result[case.model] = {"size": case.size, "batch": case.batch, "auto": auto, **_json(time)}
    table = markdown(("network", "pixels", "time in bf16 / in fp32", "auto"), lines)
    finish("precision", arguments, table, result, n=arguments.rounds)


def _step(model: nn.Module, case: Case, mixed: bool) -> Callable[[], int]:
    inputs = torch.randn(case.batch, 3, case.size, case.size).contiguous(memory_format=torch.channels_last)

    def step() -> int:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            output = model(inputs)
        output.float().logsumexp(1).mean().backward()
        return case.batch

    return step


def _json(time: Spread) -> dict[str, float]:
    return {name: round(value, 3) for name, value in time._asdict().items()}


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    known = ",".join(case.model for case in CASES)
    options.add_argument("--models", default=known, help="of those in the file (default: all)")
    options.add_argument("--threads", type=int, default=1, help="torch's threads (default: 1)")
    options.add_argument("--rounds", type=int, default=9, help="(default: 9)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.models, arguments.rounds = CASES[0].model, 1
    return arguments


if __name__ == "__main__":
    main()

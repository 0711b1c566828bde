"""The tables and figures of the papers: their rows as methods here, their settings, and their numbers as printed.

A number that cannot be read in the text we have is left empty. 000 is MixTrain (Krithivasan et al. 2024), 002 its first
version InterTrain (2022), 003 the review of accelerators (Nokhwal et al.), 004 the poster on Diet Selective-Backprop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCALES = ("tiny", "cpu", "full")
ERROR_AND_SPEED = ("top-1 error", "speed-up")


@dataclass(frozen=True)
class Row:
    """One row: what the paper calls it, the method here, and the paper's numbers in the order of its columns."""

    label: str
    method: str
    paper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One network and data set of a table: rows of a comparison.

    Parts that have the same settings at a scale, of whatever table, are rows of one comparison, so that no run is
    trained twice and all of them take turns with one baseline.

    Attributes:
        heading: as the paper has it.
        settings: by scale, those of `leantrain train`; a scale that is missing cannot be trained, and `note` says why.
        rows: the first is the baseline.
        note: what is not as in the paper.
    """

    heading: str
    settings: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    note: str = ""

    def comparison(self, scale: str) -> str:
        """The name of the comparison that its rows are of at a scale."""
        own = self.settings[scale]
        width = f"-{own['width']}" if own.get("width") else ""
        return f"{own['data']}-{own['model']}{width}" + "-pretrained" * bool(own.get("pretrained"))


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        columns: what the paper's numbers are; none where its figure has no numbers that can be read.
        figures: what it also draws: "scores" are figures c to f of 004, "runtime" is Fig. 14 of 002.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...] = ()
    note: str = ""
    figures: str = ""


TINY: dict[str, Any] = {
    "data": "digits", "model": "resnet8", "width": 2, "train_limit": 60, "epochs": 3, "batch_size": 16, "eval_every": 3,
}  # fmt: skip
"""Seconds; its numbers mean nothing."""

_SUBSET: dict[str, Any] = {"data": "cifar10", "train_limit": 2000, "epochs": 18, "batch_size": 64, "eval_every": 18}
_IMAGENET: dict[str, Any] = {
    "data": "imagenet", "image_size": 224, "epochs": 90, "batch_size": 64, "lr": 0.025, "weight_decay": 4e-5,
    "schedule": "step[every=30,factor=0.1]",
}  # fmt: skip
_CIFAR: dict[str, Any] = {
    "data": "cifar10", "epochs": 90, "batch_size": 64, "lr": 0.05, "weight_decay": 5e-4,
    "schedule": "step[every=10,factor=0.1]",
}  # fmt: skip


def _scales(full: dict[str, Any], model: str = "resnet8", width: int | None = 8) -> dict[str, dict[str, Any]]:
    return {"tiny": TINY, "cpu": {**_SUBSET, "model": model, "width": width}, "full": full}


_RESNET18 = _scales({**_IMAGENET, "model": "resnet18"})
_RESNET34 = _scales({**_IMAGENET, "model": "resnet34"}, "resnet20", 8)
_RESNET50 = _scales({**_IMAGENET, "model": "resnet50"})
_MOBILENET = _scales(
    {**_IMAGENET, "model": "mobilenetv2_100", "lr": 0.0125, "epochs": 150, "schedule": "cosine"},
    "mobilenetv2_035",
    None,
)
_MOBILENET["cpu"]["train_limit"] = 700  # depthwise convolutions are slow on a CPU
_POSTER = _scales({"data": "cifar100", "model": "resnet18"})

CUTMIX, MIXUP = "mixtrain-cutmix", "mixtrain-mixup"


def _three(baseline: tuple[str, ...], cutmix: tuple[str, ...], mixup: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of most tables: the baseline and MixTrain with both operators."""
    return (
        Row("Baseline SGD", "plain", baseline),
        Row("MixTrain-CutMix", CUTMIX, cutmix),
        Row("MixTrain-MixUp", MIXUP, mixup),
    )


_IMAGENET_PARTS = (
    Part("ResNet18, ImageNet", _RESNET18, _three(("30.2%", "1x"), ("30.44%", "1.51x"), ("30.6%", "1.32x"))),
    Part("ResNet34, ImageNet", _RESNET34, _three(("26%", "1x"), ("26.25%", "1.54x"), ("26.4%", "1.37x"))),
    Part("ResNet50, ImageNet", _RESNET50, _three(("24.3%", "1x"), ("24.45%", "1.56x"), ("24.6%", "1.41x"))),
    Part(
        "MobileNetV2, ImageNet",
        _MOBILENET,
        _three(("28.5%", "1x"), ("28.76%", "1.52x"), ("29%", "1.3x")),
    ),
)
_BASELINE50 = Row("Baseline SGD", "plain", ("24.3%", "1x"))
_OURS50 = (Row("MixTrain-CutMix", CUTMIX, ("24.45%", "1.56x")), Row("MixTrain-MixUp", MIXUP, ("24.6%", "1.41x")))
_SB, _RB, _SCORES = "selective-backprop", "random-backprop", "scores={scores}"


def _poster(*rows: Row) -> tuple[Part, ...]:
    return (
        Part(
            "CIFAR-100",
            _POSTER,
            rows,
            "The poster names no settings; ours are leantrain's own, and ResNet18 one of the two networks that it "
            "names. EL2N scores are made once, by other seeds, and their cost is not in the rows.",
        ),
    )


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("000-table1", "Training CNNs on ImageNet", _IMAGENET_PARTS, ERROR_AND_SPEED),
        Table(
            "000-table2",
            "Training vision transformers on Cifar10",
            (
                Part(
                    "ViT-small, from scratch",
                    _scales({**_CIFAR, "model": "vit_small_patch16_224"}, "test_vit", None),
                    _three(("19%", "1x"), ("19.35%", "1.32x"), ("19.11%", "1.37x")),
                ),
                Part(
                    "ViT-SWIN, from scratch",
                    {"tiny": TINY, "full": {**_CIFAR, "model": "swin_tiny_patch4_window7_224"}},
                    _three(("9%", "1x"), ("9.2%", "1.4x"), ("8.9%", "1.44x")),
                    "there is no Swin small enough for a CPU",
                ),
                Part(
                    "ViT-pretrained, fine-tuning",
                    {"tiny": TINY, "full": {**_CIFAR, "model": "vit_small_patch16_224", "pretrained": True}},
                    _three(("2.5%", "1x"), ("2.55%", "1.58x"), ("2.46%", "1.6x")),
                    "published weights are for larger models than a CPU trains",
                ),
            ),
            ERROR_AND_SPEED,
            "The transformers' own settings are in an appendix that we do not have; these are 002's for Cifar10.",
        ),
        Table(
            "000-table3",
            "Comparison against coreset selection techniques",
            (
                Part(
                    "Cifar10",
                    _scales({**_CIFAR, "model": "resnet18"}),
                    (
                        Row("Baseline", "plain", ("4.4%", "1x", "1")),
                        Row("MixTrain-MixUp", MIXUP, ("4.33%", "1.4x", "0.69")),
                        Row("MixTrain-CutMix", CUTMIX, ("4.2%", "1.45x", "0.66")),
                        Row("Glister", "glister[keep=0.8]", ("4.65%", "1.18x", "0.8")),
                        Row("Glister", "glister[keep=0.7]", ("4.76%", "1.32x", "0.7")),
                        Row("Grand", "grand-coreset[keep=0.8]", ("4.6%", "1.15x", "0.8")),
                        Row("Grand", "grand-coreset[keep=0.7]", ("4.7%", "1.2x", "0.7")),
                        Row("Facility location", "facility-location[keep=0.8]", ("4.55%", "1.19x", "0.8")),
                        Row("Facility location", "facility-location[keep=0.7]", ("4.79%", "1.25x", "0.7")),
                    ),
                    "The paper names neither network nor data of this table; its error fits ResNet18 on Cifar10.",
                ),
            ),
            (*ERROR_AND_SPEED, "fraction"),
        ),
        Table("002-table1", "ImageNet", _IMAGENET_PARTS, ERROR_AND_SPEED, "The same numbers as 000 Table 1."),
        Table(
            "002-table2",
            "Cifar10",
            (
                Part(
                    "ResNet18, Cifar10",
                    _scales({**_CIFAR, "model": "resnet18"}),
                    _three(("", "1x"), ("5.4%", "1.74x"), ("5.7%", "1.69x")),
                ),
                Part(
                    "ResNet34, Cifar10",
                    _scales({**_CIFAR, "model": "resnet34"}, "resnet20", 8),
                    _three(("", "1x"), ("4.2%", "1.78x"), ("4.6%", "1.71x")),
                ),
            ),
            ERROR_AND_SPEED,
            "The baselines' errors cannot be read in our copy.",
        ),
        Table(
            "002-table3",
            "Analyzing efficacy of our amenability metric",
            (
                Part(
                    "ResNet50, ImageNet",
                    _RESNET50,
                    (
                        _BASELINE50,
                        Row("Our effort (region 1 only)", f"{CUTMIX}[select=region1]", ("24.56%", "1.38x")),
                        Row("Our effort (regions 1 and 3)", CUTMIX, ("24.45%", "1.56x")),
                        Row("Threshold = accuracy", f"{CUTMIX}[select=correct]", ("24.80%", "1.36x")),
                        Row("Threshold = average loss", f"{CUTMIX}[select=mean-loss]", ("24.50%", "1.33x")),
                        Row("Region 1, and all above L_incorr", f"{CUTMIX}[select=all-region3]", ("25.14%", "1.74x")),
                    ),
                ),
            ),
            ERROR_AND_SPEED,
        ),
        Table(
            "002-table4",
            "Comparing interpolation versus skipping Region 3 samples",
            (
                Part(
                    "ResNet50, ImageNet",
                    _RESNET50,
                    (
                        _BASELINE50,
                        *(
                            Row(f"skipped, k = {k}", f"{CUTMIX}[select=region3,region3=skip,k={k}]", numbers)
                            for k, numbers in enumerate((("", "1.12x"), ("25.41%", "1.14x"), ("25.74%", "1.15x")), 1)
                        ),
                        *(
                            Row(f"mixed, k = {k}", f"{CUTMIX}[select=region3,k={k}]", numbers)
                            for k, numbers in enumerate(
                                (("24.45%", "1.08x"), ("24.4%", "1.1x"), ("24.36%", "1.11x")), 1
                            )
                        ),
                    ),
                ),
            ),
            ERROR_AND_SPEED,
            "Region 1 is not mixed in any row. The error of skipping with k = 1 reads 24.05 %, which must be a slip.",
        ),
        Table(
            "002-table5",
            "Comparing oracle-based skipping against our effort",
            (
                Part(
                    "ResNet50, ImageNet",
                    _RESNET50,
                    (
                        _BASELINE50,
                        Row("Selective interpolation", CUTMIX, ("24.45%", "1.56x")),
                        Row("Instance skipping", "oracle-skip", ("25.12%", "1.44x")),
                    ),
                ),
            ),
            ERROR_AND_SPEED,
            figures="runtime",
        ),
        Table(
            "002-fig9",
            "Comparison against existing efforts",
            (
                Part(
                    "ResNet50, ImageNet",
                    _RESNET50,
                    (_BASELINE50, *_OURS50, Row("FixRes", "fixres"), Row("Auto-Assist", "autoassist")),
                ),
            ),
            ERROR_AND_SPEED,
            "The rivals' numbers are points in a figure; the others are from Table 1.",
        ),
        Table(
            "002-fig13",
            "Ablation analysis",
            (
                Part(
                    "(a) contribution of the strategies, (b) of the regions; ResNet18, ImageNet",
                    _RESNET18,
                    (
                        Row("Baseline SGD", "plain", ("30.2%", "1x")),
                        Row("naive interpolation", f"{CUTMIX}[select=all,split=false]"),
                        Row("selective, interference not reduced", f"{CUTMIX}[split=false]"),
                        Row("selective, interference reduced", CUTMIX, ("30.44%", "1.51x")),
                        Row("region 1 only", f"{CUTMIX}[select=region1]"),
                        Row("region 3 only", f"{CUTMIX}[select=region3]"),
                    ),
                ),
            ),
            ERROR_AND_SPEED,
            "The figure's own numbers cannot be read; its text says that region 1 brings 25 % and region 3 8 % more.",
        ),
        Table(
            "002-fig15",
            "Comparison against existing efforts, with those that make the model smaller",
            (
                Part(
                    "ResNet50, ImageNet",
                    _RESNET50,
                    (
                        _BASELINE50,
                        *_OURS50,
                        Row("Auto-Assist", "autoassist"),
                        Row("Yuan et al.", "prune-train[grow=true]"),
                        Row("Prune Train", "prune-train"),
                        Row("Stochastic depth", "stochastic-depth"),
                        Row("FixRes", "fixres"),
                        Row("early termination (000 Fig. 11A)", "early-termination"),
                        Row("mini-batch skipping, 30 % (000 Fig. 11A)", "minibatch-skip[skip=0.3]"),
                        Row("input size scaling, 1.4x (000 Fig. 11A)", "input-scaling"),
                    ),
                    "PruneTrain's settings are for far more steps than the scale cpu has; Yuan et al. decide by masks",
                ),
            ),
            ERROR_AND_SPEED,
            "The rivals' numbers are points in a figure; the others are from Table 1.",
        ),
        Table(
            "004-table1",
            "Typical runtime per epoch when training with different methods",
            _poster(
                Row("Baseline", "plain", ("0% (0%)", "45.77s")),
                Row("SB, half of every batch", f"{_SB}[keep=0.5,per_batch=true]", ("50% (0%)", "43.37s")),
                Row("SB, batches refilled", f"{_SB}[keep=0.5]"),
                Row("Random-Backprop, per batch", f"{_RB}[keep=0.5,per_batch=true]", ("50% (0%)", "27.19s")),
                Row("Random-Backprop, per batch", f"{_RB}[keep=0.25,per_batch=true]", ("75% (0%)", "18.83s")),
                Row("Random-Backprop, batches refilled", f"{_RB}[keep=0.5]"),
                Row("EL2N", f"el2n[prune=0.25,{_SCORES}]", ("25% (25%)", "35.97s")),
                Row("Diet SB", f"diet-sb[keep=0.6667,{_SCORES}]", ("50% (25%)", "37.86s")),
                Row("Diet SB", f"diet-sb[keep=0.5,{_SCORES}]", ("62.5% (25%)", "32.66s")),
                Row("EL2N + Random-Backprop (future work)", f"diet-random[keep=0.5,{_SCORES}]"),
            ),
            ("total pruned (before training)", "runtime per epoch"),
            "The poster's seconds are on a Tesla T4.",
        ),
        Table(
            "004-fig-a",
            "Accuracy of various backprop methods",
            _poster(
                Row("Baseline", "plain"),
                *(
                    Row(f"{name}, {1 - keep:.0%} dropped", f"{method}[keep={keep:g}]")
                    for keep in (0.75, 0.5, 0.25, 0.1)
                    for name, method in (("SB", _SB), ("Random-Backprop", _RB))
                ),
            ),
            note="The figure has no numbers that can be read.",
        ),
        Table(
            "004-fig-b",
            "Accuracy of EL2N, SB and Diet SB",
            _poster(
                Row("Baseline", "plain"),
                *(
                    row
                    for share in (0.25, 0.5)
                    for row in (
                        Row(f"EL2N, {share:.0%} pruned", f"el2n[prune={share:g},{_SCORES}]"),
                        Row(f"SB, {share:.0%} dropped", f"{_SB}[keep={1 - share:g}]"),
                        Row(f"Diet SB, {share:.0%} pruned, half kept", f"diet-sb[prune={share:g},keep=0.5,{_SCORES}]"),
                    )
                ),
            ),
            note="The figure has no numbers that can be read.",
        ),
        Table(
            "004-fig-cdef",
            "What EL2N and SB leave out: (c) over architectures, (d) against each other, (e, f) as images",
            _poster(Row("Baseline", "plain"), Row("SB", f"{_SB}[keep=0.5]")),
            note="The figures have no numbers that can be read.",
            figures="scores",
        ),
    )
}

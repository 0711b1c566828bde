"""Table I of the accelerators' review (003): mixed precision, accumulation and pinned memory, each alone and together.

Rows take turns, an epoch each, so that a slow minute of the machine falls on all alike. Eq. 1 to 4 are computed from
the runs; Eq. 5 to 7 describe no pinned memory and are not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leantrain.bench.markdown import UNKNOWN, mean, table
from leantrain.errors import LeanError
from leantrain.files import write_text
from leantrain.run import machine
from leantrain.run.config import TrainConfig, read_yaml
from leantrain.run.display import Display
from leantrain.run.folder import RunFolder, read_json
from leantrain.run.loop import Run
from leantrain.run.memory import peak_alone_mb
from leantrain.run.setup import load_images, resolve
from leantrain.run.signals import Interrupted, on_stop

MODELS = ("resnet50", "vit_small_patch16_224", "efficientnet_b0")
DATA = ("cifar10", "cifar100")
WITHOUT: dict[str, Any] = {"precision": "fp32", "accumulate_batches": 1, "pin_memory": False}
BASE_LOSS_SCALE = 2.0**16  # where torch's GradScaler starts
SMALL: dict[str, Any] = {"epochs": 2, "train_limit": 512, "validation": 0.02, "batch_size": 32, "pretrained": False}
"""What is not the paper's unless --full is given: minutes on a CPU."""

PAPER: dict[tuple[str, str], dict[str, tuple[str, str, str, str, str]]] = {
    # accuracy, F1, hours, training loss, validation loss, as Table I prints them
    ("resnet50", "cifar10"): {
        "without": ("93.07", "93.07", "0.86", "0.11", "0.21"),
        "with": ("93.00", "93.00", "0.46", "0.33", "0.26"),
    },
    ("resnet50", "cifar100"): {
        "without": ("75.12", "75.12", "0.85", "0.50", "0.95"),
        "with": ("75.23", "75.23", "0.18", "0.14", "0.93"),
    },
    ("vit_small_patch16_224", "cifar10"): {
        "without": ("97.10", "97.10", "4.2", "0.52", "0.35"),
        "with": ("97", "97", "2.0", "0.53", "0.35"),
    },
    ("vit_small_patch16_224", "cifar100"): {
        "without": ("84.30", "84.30", "6.2", "2.75", "2.46"),
        "with": ("84.3", "84.3", "2.5", "2.6", "2.5"),
    },
    ("efficientnet_b0", "cifar10"): {
        "without": ("98", "98", "1.80", "0.1", "0.02"),
        "with": ("98", "98", "1.05", "0.12", "0.06"),
    },
    ("efficientnet_b0", "cifar100"): {
        "without": ("90", "90", "1.70", "0.5", "0.18"),
        "with": ("90", "90", "1.11", "0.5", "0.3"),
    },
}
"""For EfficientNet without them the paper's text says 1.41 and 1.42 hours, its table 1.80 and 1.70."""


def paper_config(model: str, data: str) -> dict[str, Any]:
    """The paper's settings for its row "with"."""
    file = Path(__file__).parent / "configs" / f"003-{model}-{data}.yaml"
    if not file.exists():
        raise LeanError(
            f"the paper has no {model} on {data}; take one of {', '.join(MODELS)} on {' or '.join(DATA)}, or leave out "
            "--full."
        )
    return read_yaml(file)


class Accelerators:
    """The rows of the table, trained and summed up.

    Args:
        given: settings of the user's that go before the paper's and the small ones.
        full: the paper's settings, not the small ones.
        out: the folder; what is finished there is not trained again.
    """

    def __init__(self, given: dict[str, Any], full: bool, seeds: int, out: Path, display: Display) -> None:
        model, data = given.get("model") or MODELS[0], given.get("data") or DATA[0]
        known = (model, data) in PAPER
        own = paper_config(model, data) if known or full else {}
        self.paper = PAPER.get((model, data))
        settings = {**own, **({} if full else SMALL), "model": model, "data": data, **given}
        accelerated = {name: settings.pop(name, None) for name in WITHOUT}
        asked = given.get("precision")  # the paper's fp16 needs CUDA; what the user asks for is tried anywhere
        self.config = TrainConfig(**{**settings, **WITHOUT})
        self.full, self.seeds, self.out, self.display = full, seeds, out, display
        self.device = machine.choose_device(self.config.device)
        on_gpu = accelerated["precision"] if self.device.type == "cuda" else None
        self.rows, self.left_out = self._rows(asked or on_gpu or "auto", accelerated["accumulate_batches"] or 2)
        self._running: Run | None = None
        self._stop_signal = 0
        stored = out / "bench.json"
        if stored.exists() and read_json(stored)["settings"] != dataclasses.asdict(self.config):
            raise LeanError(f"'{out}' holds a benchmark of other settings; choose another --out.")

    def _rows(self, precision: str, batches: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """The settings of every row beyond WITHOUT, and what cannot be measured on this machine."""
        gpu, left_out = self.device.type == "cuda", []
        parts: dict[str, dict[str, Any]] = {}
        precision = machine.choose_precision(precision, self.device)
        if precision != "fp32":
            parts["mixed precision"] = {"precision": precision}
        else:
            left_out.append(
                "mixed precision: this machine has none faster than fp32 (a CPU that emulates bf16 is 12× slower)"
            )
        parts["accumulation"] = {"accumulate_batches": batches}
        if gpu:
            parts["pinned memory"] = {"pin_memory": True}
        else:
            left_out.append("pinned memory: it speeds up copies to a GPU, and there is none")
        together = {name: value for part in parts.values() for name, value in part.items()}
        alone = parts if len(parts) > 1 else {}
        return {"without": {}, **alone, "with": together}, left_out

    def train(self) -> None:
        """Train what is missing, the rows of a seed in turns."""
        write_text(self.out / "bench.json", json.dumps({"settings": dataclasses.asdict(self.config)}, indent=2) + "\n")
        with on_stop(self._stop):
            for seed in range(self.config.seed, self.config.seed + self.seeds):
                images = load_images(self.config)
                turns = [run for row in self.rows if (run := self._open(row, seed, images)) is not None]
                while turns:
                    for run in list(turns):
                        self._turn(run)
                        if run.finished:
                            turns.remove(run)

    def _open(self, row: str, seed: int, images: Any) -> Run | None:
        folder = self._folder(row, seed)
        if folder.finished:
            return None
        config = dataclasses.replace(self.config, **self.rows[row], seed=seed, out=str(folder))
        config = dataclasses.replace(config, lr=self.config.lr or resolve(self.config, images).lr)  # the same for all
        run = Run(resolve(config, images), images, folder.path, alone=False)
        if not run.load_checkpoint():
            run.write_config()
        return run

    def _turn(self, run: Run) -> None:
        self._running = run
        run.train_epoch()
        if run.finished:
            result = run.write_result()
            self.display.note(f"{run.folder}: {result['test_accuracy']:.2%} in {result['train_seconds']:.1f} s")
        self._running = None
        if self._stop_signal:
            raise Interrupted(self._stop_signal)

    def _stop(self, number: int) -> None:
        self._stop_signal = number
        if self._running is not None:
            self._running.stop(number)

    def _folder(self, row: str, seed: int) -> RunFolder:
        return RunFolder(self.out / "runs" / row.replace(" ", "-") / f"seed-{seed}")

    # -- what came of it ---------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Per row and seed what Table I reports, and per row the memory of a process that trains it alone."""
        seeds = range(self.config.seed, self.config.seed + self.seeds)
        rows = {row: [self._measured(self._folder(row, seed)) for seed in seeds] for row in self.rows}
        made: dict[str, Any] = {
            "settings": dataclasses.asdict(self.config),
            "full": self.full,
            "rows": rows,
            "memory_mb": {row: self._memory(row) for row in self.rows},
            "left_out": self.left_out,
            "made_with": machine.describe(self.device),
        }
        write_text(self.out / "bench.json", json.dumps(made, indent=2) + "\n")
        return made

    def _memory(self, row: str) -> float:
        config = TrainConfig(**read_yaml(self._folder(row, self.config.seed).settings_file))
        self.display.note(f"measuring the memory of '{row}' in a process of its own")
        return peak_alone_mb(config)

    def _measured(self, folder: RunFolder) -> dict[str, Any]:
        result, rows = folder.result(), folder.rows()
        assert result is not None
        precision = read_yaml(folder.settings_file)["precision"]
        return {
            "accuracy": 100 * result["test_accuracy"],
            "f1": 100 * result["macro_f1"],
            "seconds": result["train_seconds"],
            "train_loss": rows[-1]["train_loss"],
            "test_loss": result["test_loss"],
            "throughput": result["examples"] / result["train_seconds"],
            "quantisation_error": quantisation_error(folder.weights().values(), precision),
        }


def quantisation_error(weights: Iterable[Tensor], precision: str) -> float:
    """Eq. 3: the mean distance of the trained weights from what the precision makes of them."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    floats = [weight.float() for weight in weights if weight.is_floating_point()]
    total = sum(float((weight - weight.to(kind).float()).abs().sum(dtype=torch.float64)) for weight in floats)
    return total / max(1, sum(weight.numel() for weight in floats))


def loss_scale(full_loss: float, mixed_loss: float, exponent: float = 1.0) -> float:
    """Eq. 4: the base scale times (loss in fp32 / loss in mixed precision)^β; the paper gives no β."""
    return float(BASE_LOSS_SCALE * (full_loss / mixed_loss) ** exponent)


def as_markdown(made: dict[str, Any], paper: Mapping[str, tuple[str, ...]] | None) -> str:
    """Ours, then the paper's two rows, then the equations."""
    settings, rows = made["settings"], made["rows"]
    base = rows["without"]
    header = ("", "accuracy, %", "F1, %", "time", "training loss", "validation loss", "peak memory, MB")
    lines = [_line(name, own, base, made["memory_mb"][name]) for name, own in rows.items()]
    for name, values in (paper or {}).items():
        accuracy, f1, hours, *losses = values
        lines.append([f"the paper, {name}", accuracy, f1, f"{hours} h", *losses, ""])
    examples = "all" if settings["train_limit"] is None else f"{settings['train_limit']:,}"
    scale = "the paper's settings" if made["full"] else "not the paper's scale"
    seeds = len(base)
    return "\n".join(
        [
            f"## 003 Table I: {settings['model']} on {settings['data']}, {scale}",
            f"{examples} training images, {settings['epochs']} epochs, batch {settings['batch_size']}, {seeds} "
            f"seed{'s' * (seeds > 1)}, {made['made_with']['hardware']['device']} "
            f"({made['made_with']['hardware']['cpu']}). Time is a multiple of the row without, whose epochs took turns "
            "with the others'. Peak memory is that of a process which trains two steps of the row and nothing else.",
            "",
            table(header, lines),
            "",
            *(f"- Left out: {text}." for text in made["left_out"]),
            *_equations(rows),
        ]
    )


def _line(name: str, own: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], memory: float) -> list[str]:
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(own, base, strict=True)]
    time = f"{mean([one['seconds'] for one in own], 1)} s" if own is base else f"{mean(ratios)}×"
    scores = [mean([one[key] for one in own]) for key in ("accuracy", "f1")]
    losses = [mean([one[key] for one in own], 3) for key in ("train_loss", "test_loss")]
    return [name, *scores, time, *losses, f"{memory:,.0f}"]


def _equations(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    base, all_on = rows["without"], rows["with"]
    mixed = rows.get("mixed precision")
    error = mean([one["quantisation_error"] for one in mixed], 6) if mixed else UNKNOWN
    lines = [
        "- Eq. 1, speed-up: "
        + ", ".join(
            f"{name} {mean([b['seconds'] / o['seconds'] for b, o in zip(base, own, strict=True)])}"
            for name, own in rows.items()
            if own is not base
        )
        + ".",
        f"- Eq. 2, throughput: {mean([one['throughput'] for one in base], 1)} images/s without, "
        f"{mean([one['throughput'] for one in all_on], 1)} with.",
    ]
    if mixed:
        scales = [loss_scale(b["train_loss"], m["train_loss"]) for b, m in zip(base, mixed, strict=True)]
        lines.append(f"- Eq. 3, quantisation error of the trained weights: {error}.")
        lines.append(f"- Eq. 4, loss scale with β = 1 and a base of 65,536: {mean(scales, 0)}.")
    else:
        lines.append("- Eq. 3 and 4 (quantisation error, loss scale) need the row of mixed precision.")
    return lines

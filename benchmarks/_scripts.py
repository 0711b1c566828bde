"""Runs a script as `python SCRIPT …` would, in small, and writes what it did: for scripts.py, in a process of its own.

The data sets that scripts would download are replaced by parts of ours. What is counted is counted beside leantrain, by
hooks of torch and around `Lean`: steps of the optimiser, losses taken, examples in the ledger, the rate at the end.

    python benchmarks/_scripts.py --note FILE [--limit N] [--stop-at STEP] SCRIPT [its arguments …]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import runpy
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import leantrain
import leantrain.errors
from leantrain.data import default_root
from leantrain.lean import Lean

STOPPED = 75  # the exit code of a run that was to be cut


def main() -> None:
    arguments, words = _arguments()
    note = Note(arguments.note, arguments.stop_at)
    replace_data(arguments.limit)
    sys.argv = [arguments.script, *words]
    sys.path[0] = str(Path(arguments.script).resolve().parent)
    try:
        runpy.run_path(arguments.script, run_name="__main__")
    except leantrain.LeanError as error:
        note.refused = str(error)
    finally:
        note.write()


class Note:
    """What a run did, so far."""

    def __init__(self, file: Path, stop_at: int | None) -> None:
        self.file, self.stop_at = file, stop_at
        self.steps = self.losses = self.rows = self.right = 0
        self.refused: str | None = None
        self.lean: Lean | None = None
        self.optimizer: Optimizer | None = None
        self.rates: list[float] = []
        self.said: list[str] = []
        register_optimizer_step_post_hook(self._step)
        make, loss = Lean.__init__, Lean.loss

        def made(lean: Lean, *args: Any, **kwargs: Any) -> None:
            self.lean = lean
            make(lean, *args, **kwargs)

        def counted(lean: Lean, batch: Any) -> torch.Tensor:
            answer = loss(lean, batch)
            self.losses += 1
            self.rows += len(lean.last.targets)
            self.right += int((lean.last.logits.argmax(1) == lean.last.targets).sum())
            return answer

        Lean.__init__, Lean.loss = made, counted  # type: ignore[method-assign]
        show = warnings.showwarning

        def shown(message: Any, category: Any, *rest: Any) -> None:
            if issubclass(category, leantrain.errors.LeanWarning):
                self.said.append(str(message))
            show(message, category, *rest)

        warnings.showwarning = shown

    def _step(self, optimizer: Optimizer, *_: Any) -> None:
        self.steps += 1
        self.optimizer = optimizer
        self.rates.append(float(optimizer.param_groups[0]["lr"]))
        if self.steps == self.stop_at:
            self.write()
            os._exit(STOPPED)

    def write(self) -> None:
        lean, found = self.lean, dict[str, Any]()
        if lean is not None and lean.epoch >= 0:
            found = {
                "finished": lean.finished,
                "progress": lean.progress,
                "examples": lean.examples,
                "recorded": int(lean.ledger["trained"].sum()),
                "cost_share": lean.cost_share,
                "epochs": lean.epoch + 1,
                "budget": lean.budget,
            }
        rate = None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])
        counts = {"steps": self.steps, "losses": self.losses, "rows": self.rows, "right": self.right}
        rates = {"rate": rate, "highest_rate": max(self.rates, default=None)}
        self.file.write_text(json.dumps({**counts, **rates, **found, "refused": self.refused, "said": self.said}))


def replace_data(limit: int) -> None:
    """Parts of the sets that are on this machine for those that scripts would download, and a metric for theirs."""
    import torchvision  # after leantrain, which helps a build of torchvision that lacks its operators

    root = default_root()

    class CIFAR10(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, root: Any = None, train: bool = True, transform: Any = None, **_: Any) -> None:
            file = "data_batch_1.bin" if train else "test_batch.bin"
            rows = np.fromfile(default_root() / "cifar-10-batches-bin" / file, np.uint8).reshape(-1, 3073)[:limit]
            self.targets = rows[:, 0].astype(int).tolist()
            self.data = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            self.transform = transform

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return self.transform(Image.fromarray(self.data[index])), self.targets[index]

    class FashionMNIST(torchvision.datasets.FashionMNIST):  # which finds its files by this name
        def __init__(self, _: Any, train: bool = True, transform: Any = None, **__: Any) -> None:
            super().__init__(str(root), train=train, transform=transform)
            self.data, self.targets = self.data[:limit], self.targets[:limit]

    torchvision.datasets.CIFAR10, torchvision.datasets.MNIST = CIFAR10, FashionMNIST
    metric = types.SimpleNamespace(
        compute=lambda predictions, references: {"accuracy": float((predictions == references).mean())}
    )
    evaluate: Any = types.ModuleType("evaluate")
    evaluate.load = lambda *_, **__: metric
    sys.modules["evaluate"] = evaluate
    os.popen = lambda *_: io.StringIO("24 80")  # type: ignore[assignment,misc]  # the size of the terminal, of which there is none


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--note", type=Path, required=True, help="where to write what it did")
    options.add_argument("--limit", type=int, default=400, help="images of a set (default: 400)")
    options.add_argument("--stop-at", type=int, help="leave at this step, as if killed")
    options.add_argument("script")
    options.add_argument("words", nargs=argparse.REMAINDER)
    arguments = options.parse_args()
    return arguments, arguments.words


if __name__ == "__main__":
    main()

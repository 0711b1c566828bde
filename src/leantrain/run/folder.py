"""A run's folder: the one place that knows what a run writes, under which names, and how to read it back.

Imports nothing heavy, so that the command can look into a folder before it loads torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leantrain.errors import LeanError
from leantrain.files import append_line, remove_leftovers, write_atomically, write_text
from leantrain.run.config import TrainConfig, read_yaml

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from leantrain.ledger import Ledger

Json = dict[str, Any]


class RunFolder:
    """What `leantrain train` writes into a folder, whether the run is finished, cut or not yet begun.

    Attributes:
        path: the folder.
        settings_file: every setting, and what the run was made with.
        metrics_file: a line of JSON per finished epoch.
        history: a file per epoch with every example's loss.
        checkpoint_file: everything needed to go on.
        weights_file: the trained model; only of a finished run.
        result_file: the outcome; only of a finished run.
        tensorboard: logs for TensorBoard.
        inspect: what `leantrain inspect` draws.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.history = path / "history"
        self.checkpoint_file = path / "checkpoint.pt"
        self.weights_file = path / "model.safetensors"
        self.result_file = path / "result.json"
        self.tensorboard = path / "tensorboard"
        self.inspect = path / "inspect"

    def __str__(self) -> str:
        return str(self.path)

    # -- what is there -----------------------------------------------------------------------------------------------

    @property
    def holds_run(self) -> bool:
        return self.settings_file.is_file()

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint_file.exists()

    @property
    def has_weights(self) -> bool:
        """Whether the trained model is there, and not only a checkpoint."""
        return self.weights_file.exists()

    def scores_file(self, number: int) -> Path:
        """The scores that a method of the run made for itself, numbered from 1 along the chain."""
        return self.path / ("scores.npz" if number == 1 else f"scores-{number}.npz")

    def check_weights(self) -> None:
        """Refuse a run that has saved neither a model nor a checkpoint."""
        if not self.has_weights and not self.has_checkpoint:
            raise LeanError(
                f"the run in '{self}' has saved no weights yet (model.safetensors or checkpoint.pt); "
                "let it train for an epoch first."
            )

    # -- reading -----------------------------------------------------------------------------------------------------

    def config(self) -> TrainConfig:
        """The settings.

        Raises:
            LeanError: the folder holds no run.
        """
        if not self.holds_run:
            raise LeanError(f"'{self}' holds no run (no config.yaml); give the folder that leantrain train wrote.")
        return TrainConfig(**read_yaml(self.settings_file))

    def made_with(self) -> Json:
        """Versions, hardware, classes and the data's fingerprint; empty where nothing was noted."""
        content = yaml.safe_load(self.settings_file.read_text()) if self.holds_run else None
        return (content or {}).get("made_with") or {}

    def rows(self) -> list[Json]:
        """The metrics, one row per finished epoch."""
        return read_rows(self.metrics_file)

    def result(self) -> Json | None:
        """The outcome; None where the run is not finished."""
        return read_json(self.result_file) if self.finished else None

    def checkpoint(self) -> Json | None:
        """The last checkpoint; None where there is none."""
        from leantrain.run import checkpoint

        return checkpoint.load(self.checkpoint_file) if self.has_checkpoint else None

    def weights(self) -> dict[str, Tensor]:
        """The trained model's tensors, or those of the last checkpoint.

        Raises:
            LeanError: there is neither, or the file cannot be read.
        """
        if not self.has_weights:
            self.check_weights()
            weights: dict[str, Tensor] = (self.checkpoint() or {})["model"]
            return weights
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.weights_file)
        except SafetensorError as error:
            reason = str(error).splitlines()[0]
            raise LeanError(f"'{self.weights_file}' cannot be read ({reason}); restore it or train again.") from None

    def epochs(self) -> list[int]:
        """The finished epochs whose history is there, in order."""
        from leantrain.run import history

        finished = {row["epoch"] for row in self.rows()}
        return [epoch for epoch in history.epochs_in(self.history) if epoch in finished]

    def epoch(self, number: int) -> dict[str, np.ndarray[Any, Any]]:
        """What the history holds of one epoch: per example loss, correct, constituents, size and why."""
        from leantrain.run import history

        return history.read_epoch(self.history, number)

    # -- writing -----------------------------------------------------------------------------------------------------

    def write_config(self, config: TrainConfig, made_with: Json) -> None:
        content = {**dataclasses.asdict(config), "made_with": made_with}
        write_text(self.settings_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def add_row(self, row: Json) -> None:
        append_line(self.metrics_file, json.dumps(row))

    def first_rows(self, count: int) -> list[Json]:
        """The metrics of the first `count` epochs."""
        return self.rows()[:count]

    def keep_rows(self, count: int) -> list[Json]:
        """The metrics of the first `count` epochs; later or half-written lines are taken out of the file."""
        rows = self.first_rows(count)
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def write_epoch(self, ledger: Ledger, epoch: int) -> None:
        """Add what one epoch recorded to the history."""
        from leantrain.run import history

        history.write_epoch(self.history, ledger, epoch)

    def write_checkpoint(self, content: Json) -> None:
        from leantrain.run import checkpoint

        checkpoint.save(self.checkpoint_file, content)

    def write_weights(self, state: dict[str, Tensor], model: str) -> None:
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        # One entry: safetensors writes several in random order, and equal runs should give equal files.
        data = save(tensors, metadata={"model": model})
        write_atomically(self.weights_file, lambda file: file.write(data))

    def write_result(self, result: Json) -> None:
        write_text(self.result_file, json.dumps(result, indent=2) + "\n")

    def remove_leftovers(self) -> None:
        """Take away what writes left behind that were cut by a kill."""
        remove_leftovers(self.path)


def read_rows(path: Path) -> list[Json]:
    """The whole lines of a file of JSON lines."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def read_json(file: Path) -> Json:
    """A file that the program wrote, or a sentence that says what is wrong with it."""
    try:
        content: Json = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise LeanError(f"'{file}' cannot be read ({error}); remove it and go on with --resume.") from None
    return content

"""A run's folder: the one place that knows what a run writes, under which names, and how to read it back.

Imports nothing heavy, so that the command can look into a folder before it loads torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import yaml

from leantrain.errors import LeanError, shortened
from leantrain.files import append_line, remove_leftovers, write_atomically, write_text
from leantrain.run.config import TrainConfig, load_yaml, read_yaml

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from leantrain.ledger import Ledger

Json = dict[str, Any]
Kinds = tuple[type, ...]
AGAIN = "remove it and go on with --resume"

_NUMBER, _OPEN, _TEXT, _COUNT = (int, float), (int, float, NoneType), (str,), (int,)
ROW: dict[str, Kinds] = {
    "epoch": _COUNT, "train_loss": _NUMBER, "train_accuracy": _NUMBER, "test_accuracy": _OPEN, "test_loss": _OPEN,
    "lr": _NUMBER, "cost": _NUMBER, "total_cost": _NUMBER, "seconds": _NUMBER, "total_seconds": _NUMBER,
}  # fmt: skip
"""What every line of the metrics holds, and of what type."""

RESULT: dict[str, Kinds] = {
    "method": _TEXT, "data": _TEXT, "model": _TEXT, "evaluated_on": _TEXT, "class_accuracy": (dict,),
    "test_accuracy": _NUMBER, "best_test_accuracy": _NUMBER, "test_loss": _NUMBER, "macro_f1": _NUMBER,
    "worst_class_accuracy": _NUMBER, "calibration_error": _NUMBER, "test_examples": _COUNT, "train_examples": _COUNT,
    "epochs": _COUNT,
    "planned_epochs": _COUNT, "cost": _NUMBER, "cost_epochs": _NUMBER, "train_seconds": _NUMBER,
    "peak_memory_mb": _OPEN, "scores": (dict, NoneType), "note": (str, NoneType),
}  # fmt: skip
"""What a result holds, of that which is read again."""

CHECKPOINT = ("identity", "model", "optimizer", "scaler", "lean", "steps", "rows", "timing", "generators")
"""What a checkpoint holds."""


class RunFolder:
    """What `leantrain train` writes into a folder, whether the run is finished, cut or not yet begun.

    Attributes:
        path: the folder.
        settings_file: every setting, and what the run was made with.
        metrics_file: a line of JSON per finished epoch.
        history: a file per epoch with every example's loss.
        checkpoint_file: everything needed to go on.
        earlier_checkpoint_file: the checkpoint before that one, to go back to where the last is damaged.
        weights_file: the trained model; only of a finished run.
        result_file: the outcome; only of a finished run.
        inspect: what `leantrain inspect` draws.
        kept: the weights of some epochs, where the run was asked to keep them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.history = path / "history"
        self.checkpoint_file = path / "checkpoint.pt"
        self.earlier_checkpoint_file = path / "checkpoint-before.pt"
        self.weights_file = path / "model.safetensors"
        self.result_file = path / "result.json"
        self.inspect = path / "inspect"
        self.kept = path / "weights"

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
        return bool(self._checkpoints())

    def _checkpoints(self) -> list[Path]:
        """The last checkpoint and the one before it, where they are there."""
        return [file for file in (self.checkpoint_file, self.earlier_checkpoint_file) if file.exists()]

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
        noted = load_yaml(self.settings_file).get("made_with") if self.holds_run else None
        if noted is not None and not isinstance(noted, dict):
            raise LeanError(
                f"made_with in '{self.settings_file}' is no list of names and values; put it back or train again."
            )
        return noted or {}

    def rows(self) -> list[Json]:
        """The metrics, one row per finished epoch."""
        return read_rows(self.metrics_file, ROW, "go on with --resume, which writes it again from the checkpoint")

    def result(self) -> Json | None:
        """The outcome; None where the run is not finished."""
        if not self.finished:
            return None
        result = read_json(self.result_file)
        check_fields(result, RESULT, self.result_file, AGAIN)
        return result

    def checkpoint(self, say: Callable[[str], object] = lambda text: None) -> Json | None:
        """The last checkpoint that is whole; None where there is none at all.

        Args:
            say: gets a sentence where it is not the last that was written.
        """
        from leantrain.run import checkpoint

        return checkpoint.load(*self._checkpoints(), needs=CHECKPOINT, say=say) if self.has_checkpoint else None

    def checkpoint_to_resume(self, say: Callable[[str], object]) -> Json | None:
        """As `checkpoint`; where it had to go back, the earlier one replaces the last, so that it is never lost."""
        went_back = [not self.checkpoint_file.exists()]

        def heard(text: str) -> None:
            went_back.append(True)
            say(text)

        content = self.checkpoint(heard)
        if content is not None and any(went_back):
            os.replace(self.earlier_checkpoint_file, self.checkpoint_file)
        return content

    def weights(self) -> dict[str, Tensor]:
        """The trained model's tensors, or those of the last checkpoint.

        Raises:
            LeanError: there is neither, or the file cannot be read.
        """
        if not self.has_weights:
            self.check_weights()
            weights: dict[str, Tensor] = (self.checkpoint() or {})["model"]
            return weights
        return _read_weights(self.weights_file)

    def kept_epochs(self) -> list[int]:
        """The finished epochs whose weights were kept, in order."""
        finished = {row["epoch"] for row in self.rows()}
        return sorted({int(path.stem.removeprefix("epoch-")) for path in self.kept.glob("epoch-*")} & finished)

    def kept_weights(self, epoch: int) -> dict[str, Tensor]:
        """The model's tensors after an epoch whose weights were kept.

        Raises:
            LeanError: the file cannot be read.
        """
        return _read_weights(self._kept_file(epoch))

    def _kept_file(self, epoch: int) -> Path:
        return self.kept / f"epoch-{epoch:04d}.safetensors"

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

    def write_rows(self, rows: Iterable[Json]) -> None:
        """The metrics of these epochs and no others; nothing where there is neither a row nor the file."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if text or self.metrics_file.exists():
            write_text(self.metrics_file, text)

    def write_epoch(self, ledger: Ledger, epoch: int) -> None:
        """Add what one epoch recorded to the history."""
        from leantrain.run import history

        history.write_epoch(self.history, ledger, epoch)

    def write_checkpoint(self, content: Json) -> None:
        from leantrain.run import checkpoint

        checkpoint.save(self.checkpoint_file, content, keep=self.earlier_checkpoint_file)

    def write_weights(self, state: dict[str, Tensor], model: str, epoch: int | None = None) -> None:
        """The trained model, or what it was after an epoch."""
        from leantrain.models.weights import safetensors_bytes

        data = safetensors_bytes(state, model)
        place = self.weights_file if epoch is None else self._kept_file(epoch)
        write_atomically(place, lambda file: file.write(data))

    def write_result(self, result: Json) -> None:
        write_text(self.result_file, json.dumps(result, indent=2) + "\n")

    def remove_leftovers(self) -> None:
        """Take away what writes left behind that were cut by a kill."""
        remove_leftovers(self.path)


def read_rows(path: Path, fields: Mapping[str, Kinds], remedy: str) -> list[Json]:
    """The lines of a file of JSON lines; the last may have been cut while it was written.

    Args:
        fields: what every line holds, and of what type.
        remedy: what to do about a damaged line.
    """
    try:
        *lines, _cut = path.read_text().split("\n") if path.exists() else [""]
    except (OSError, UnicodeDecodeError) as error:
        raise LeanError(f"'{path}' cannot be read ({shortened(str(error))}); {remedy}.") from None
    rows: list[Json] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            raise LeanError(f"line {number} of '{path}' is damaged; {remedy}.") from None
        check_fields(rows[-1], fields, path, remedy)
    return rows


def _read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a model that a run wrote, checked by their checksum."""
    from safetensors import SafetensorError

    from leantrain.models.weights import read_safetensors

    try:
        return read_safetensors(file)
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise LeanError(f"'{file}' cannot be read ({reason}); restore it or train again.") from None


def read_json(file: Path) -> Json:
    """A file that the program wrote, or a sentence that says what is wrong with it."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise LeanError(f"'{file}' cannot be read ({shortened(str(error))}); {AGAIN}.") from None
    if not isinstance(content, dict):
        raise LeanError(f"'{file}' holds no names and values; {AGAIN}.")
    return content


def check_fields(content: Any, fields: Mapping[str, Kinds], file: Path, remedy: str) -> None:
    """Refuse what the program cannot have written: a flipped bit may well leave valid JSON.

    What may be unknown may also be missing, as an earlier version did not write it yet; it is None then.
    """
    if not isinstance(content, dict):
        raise LeanError(f"'{file}' holds {shortened(repr(content))} where names and values should be; {remedy}.")
    for name, kinds in fields.items():
        if NoneType in kinds:
            content.setdefault(name, None)
        if name not in content:
            raise LeanError(f"'{file}' has no '{name}', so it was damaged or written by another version; {remedy}.")
        if not isinstance(content[name], kinds) or isinstance(content[name], bool):
            raise LeanError(f"{name} in '{file}' is {shortened(repr(content[name]))}, so it was damaged; {remedy}.")

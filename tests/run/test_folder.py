"""A run's folder gives back what was written into it, and says in a sentence what is missing or broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leantrain.errors import LeanError
from leantrain.forms import WHOLE
from leantrain.ledger import Ledger
from leantrain.run.config import TrainConfig
from leantrain.run.folder import CHECKPOINT, RESULT, ROW, RunFolder


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = TrainConfig(epochs=3, method="random-backprop[keep=0.25]")
    folder.write_config(config, {"versions": {"torch": "2"}, "classes": ["a", "ü"]})
    assert folder.holds_run and not folder.finished
    assert folder.config() == config
    assert folder.made_with() == {"versions": {"torch": "2"}, "classes": ["a", "ü"]}

    row = dict.fromkeys(ROW, 0.5)
    for epoch in range(3):
        folder.add_row({**row, "epoch": epoch})
    with folder.metrics_file.open("a") as file:
        file.write('{"epoch": 3, "tra')  # cut while it was written
    assert [row["epoch"] for row in folder.rows()] == [0, 1, 2]
    folder.write_rows(folder.rows()[:2])
    assert folder.rows() == [{**row, "epoch": epoch} for epoch in range(2)]

    ledger = Ledger(4)
    for epoch in (0, 1, 2):
        ledger.record(torch.tensor([epoch]), torch.tensor([0.25]), torch.tensor([True]), epoch=epoch, form=WHOLE)
        folder.write_epoch(ledger, epoch)
    assert folder.epochs() == [0, 1]  # the third one has no row, so it is not finished
    assert folder.epoch(1)["loss"][1] == 0.25

    weights = {"weight": torch.randn(2, 3)}
    folder.write_checkpoint({**dict.fromkeys(CHECKPOINT), "model": weights})
    assert folder.weights()["weight"].equal(weights["weight"])
    final = {"weight": torch.randn(2, 3)}
    folder.write_weights(final, "resnet8")
    assert folder.weights()["weight"].equal(final["weight"])
    result = {name: kinds[0]() for name, kinds in RESULT.items()}
    folder.write_result(result)
    assert folder.finished
    assert folder.result() == result


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not (folder.holds_run or folder.finished or folder.has_weights or folder.has_checkpoint)
    assert folder.rows() == folder.epochs() == []
    assert folder.result() is folder.checkpoint() is None
    assert folder.made_with() == {}
    with pytest.raises(LeanError, match="holds no run"):
        folder.config()
    with pytest.raises(LeanError, match="saved no weights yet"):
        folder.weights()


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.result_file.write_text("{")
    with pytest.raises(LeanError, match="result.json' cannot be read .*--resume"):
        folder.result()
    folder.weights_file.write_bytes(b"no tensors")
    with pytest.raises(LeanError, match="model.safetensors' cannot be read"):
        folder.weights()

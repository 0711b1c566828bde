"""Early termination: the plain schedule, stopped and not decayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.errors import LeanError
from leantrain.estimate import expected_cost
from leantrain.methods import parse_method
from leantrain.run.config import TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve


def attached(method: str, epochs: int = 8, **options: float) -> leantrain.Lean:
    data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 4)
    return leantrain.attach(nn.Linear(4, 4), data, method, epochs=epochs, **options)


def epoch(lean: leantrain.Lean) -> None:
    for batch in lean.loader(8):
        lean.loss(batch)


@pytest.mark.parametrize(("method", "epochs"), [("early-termination", 6), ("early-termination[at=0.5]", 4)])
def test_it_ends_at_a_share_of_the_run_with_the_schedule_as_it_is_there(method: str, epochs: int) -> None:
    lean, done = attached(method), 0
    while not lean.finished:
        epoch(lean)
        done += 1
    assert done == epochs
    assert lean.progress == epochs / 8  # what the learning rate follows: not decayed over the shorter run
    assert lean.cost == 40 * epochs
    assert expected_cost(parse_method(method), examples=40, epochs=8, batch_size=8) == pytest.approx(epochs)


def test_a_share_of_a_budget() -> None:
    for method in ("early-termination[at=0.5]", "selective-backprop + early-termination[at=0.5]"):
        lean = attached(method, epochs=20, budget=0.5)
        while not lean.finished:
            epoch(lean)
        assert lean.cost == pytest.approx(0.25 * 20 * 40, abs=50)
        assert 0.5 <= lean.progress < 0.6


def test_an_accuracy_ends_it_also_after_a_resume() -> None:
    lean = attached("early-termination[accuracy=0.8]")
    epoch(lean)
    lean.validated(0.79)
    assert not lean.finished
    epoch(lean)
    lean.validated(0.8)
    again = attached("early-termination[accuracy=0.8]")
    again.load_state_dict(lean.state_dict())
    assert lean.finished and again.finished and again.progress == 2 / 8


def run_of(accuracy: float, validation: float, out: Path | None = None) -> Run:
    config = TrainConfig(
        method=f"early-termination[accuracy={accuracy}]",
        validation=validation,
        width=4,
        train_limit=200,
        batch_size=32,
        epochs=20,
        precision="fp32",
        threads=1,
    )
    images = load_images(config)
    return Run(resolve(config, images), images, out)


def test_train_ends_when_the_held_out_part_is_right_often_enough(tmp_path: Path) -> None:
    run = run_of(0.4, 0.2, tmp_path)
    run.train()
    reached = [row["test_accuracy"] >= 0.4 for row in run.rows]
    assert reached == [False] * (len(reached) - 1) + [True] and len(reached) < 20
    assert run.rows[-1]["lr"] > 0.2 * run.config.lr


def test_without_held_out_data_an_accuracy_is_refused() -> None:
    with pytest.raises(LeanError, match="--validation 0.1"):
        run_of(0.4, 0.0)
    with pytest.raises(LeanError, match="give at=SHARE"):
        parse_method("early-termination[until=0.5]")

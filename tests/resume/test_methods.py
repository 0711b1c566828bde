"""Every method, cut in mid-epoch and resumed, ends in the same bits as when it was left alone."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from leantrain.errors import LeanError
from leantrain.methods import METHODS, Coreset
from leantrain.options import options_of
from leantrain.run.config import TrainConfig
from leantrain.run.display import Quiet
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve
from leantrain.run.signals import Interrupted
from program import same_run


class StopAfter(Quiet):
    """Ends a run after so many steps, as a signal would."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.run: Run | None = None

    def step(self, examples: int, progress: float) -> None:
        self.left -= 1
        if self.left == 0 and self.run is not None:
            self.run.stop(signal.SIGTERM)


def make_run(out: Path, method: str, display: Quiet | None = None, examples: int = 200) -> Run:
    tokens = "token-dropping" in method
    config = TrainConfig(
        method=method,
        model="test_vit" if tokens else None,
        width=None if tokens else 4,
        train_limit=examples,
        batch_size=32,
        epochs=4,
        precision="fp32",
        dropout=0.2,
        eval_every=2,
        threads=1,
    )
    images = load_images(config)
    return Run(resolve(config, images), images, out, display)


SHORT = "[models=1,score_epochs=1]"  # a score from little training prunes like any other
CHAINS = [
    "infobatch + progressive-resizing",
    f"el2n{SHORT} + mixtrain-cutmix[until=0.8] + progressive-resizing",
    f"el2n{SHORT} + grand{SHORT} + random-backprop[keep=0.8]",
    "random-backprop[keep=0.8] + selective-backprop + input-scaling",
    "selective-backprop + lean",
    "mixtrain-cutmix + lean",
    "selective-backprop[per_batch=true]",
    "prune-train[threshold=0.5]",
    "prune-train[grow=true,threshold=0.3]",
    "infobatch + prune-train[threshold=0.5] + progressive-resizing",
]


def names() -> list[str]:
    pruning = {name for name, kind in METHODS.items() if "score_epochs" in [one.name for one in options_of(kind)]}
    often = {name for name, kind in METHODS.items() if issubclass(kind, Coreset)}
    return [name + (SHORT if name in pruning else "[every=2]" if name in often else "") for name in METHODS]


def cut(run: Run) -> None:
    """Train until its display stops it."""
    assert isinstance(run.display, StopAfter)
    run.display.run = run
    with pytest.raises(Interrupted):
        run.train()


@pytest.mark.parametrize("method", [*names(), *CHAINS])
def test_a_cut_run_goes_on_bit_for_bit(method: str, tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", method, examples=120)
    whole.write_config()
    whole.train()
    out = tmp_path / "cut"
    first = make_run(out, method, StopAfter(2), examples=120)
    first.write_config()
    cut(first)
    again = make_run(out, method, StopAfter(whole.steps - 3), examples=120)
    assert again.load_checkpoint()
    assert again.steps == 2
    cut(again)
    resumed = make_run(out, method, examples=120)
    assert resumed.load_checkpoint()
    assert resumed.steps == whole.steps - 1
    resumed.train()
    same_run(tmp_path / "whole", out)
    assert resumed.lean.cost == pytest.approx(whole.lean.cost)


def test_scores_made_before_a_cut_are_not_made_again(tmp_path: Path) -> None:
    method = "el2n[models=1,score_epochs=1]"
    display = StopAfter(1)
    display.run = make_run(tmp_path, method, display)
    display.run.write_config()
    with pytest.raises(Interrupted):
        display.run.train()
    made = (tmp_path / "scores.npz").stat().st_mtime_ns
    (tmp_path / "checkpoint.pt").unlink()  # as if it had been cut before the first checkpoint
    again = make_run(tmp_path, method)
    again.load_checkpoint()
    again.train()
    assert (tmp_path / "scores.npz").stat().st_mtime_ns == made
    kept = int((~again.lean.ledger["0.pruned"]).sum())
    assert again.lean.cost == pytest.approx(200 * (1 + 1 / 3) + 4 * kept)


@pytest.mark.timeout(120)
def test_a_signal_ends_the_making_of_scores(tmp_path: Path) -> None:
    class StopWhenScoring(Quiet):
        run: Run | None = None

        def note(self, text: str) -> None:
            if text.startswith("scoring") and self.run is not None:
                self.run.stop(signal.SIGTERM)

    display = StopWhenScoring()
    display.run = make_run(tmp_path, "el2n[models=3,score_epochs=1000]", display)
    with pytest.raises(Interrupted):  # and not an hour later
        display.run.train()


def test_scores_of_another_making_beside_the_run_are_not_taken_for_its_own(tmp_path: Path) -> None:
    first = make_run(tmp_path / "one", "el2n[models=1,score_epochs=1]")
    first.train()
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "scores.npz", tmp_path / "two" / "scores.npz")
    other = make_run(tmp_path / "two", "el2n[models=1,score_epochs=2]")
    other.train()
    assert other.lean.cost - other.lean.examples == pytest.approx(200 * (2 + 1 / 3))


def test_files_of_scores_among_methods_that_make_theirs(tmp_path: Path) -> None:
    first = make_run(tmp_path / "one", f"el2n{SHORT}")
    first.train()
    file = tmp_path / "one" / "scores.npz"
    mixed = make_run(tmp_path / "two", f"el2n{SHORT} + el2n[prune=0.1,scores={file}] + grand{SHORT}")
    mixed.check()
    mixed.train()
    summary = mixed.lean.scores_summary
    assert summary is not None and not summary["reused"]
    assert summary["cost"] - summary["paid"] == pytest.approx(200 * (1 + 1 / 3))  # of the file
    missing = make_run(tmp_path / "three", f"el2n{SHORT} + el2n[scores={tmp_path / 'nosuch.npz'}]")
    with pytest.raises(LeanError, match="there is no scores file"):  # before anything is trained
        missing.check()


def test_equal_scores_are_made_and_paid_for_once(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "el2n[models=1,score_epochs=1,prune=0.1] + el2n[models=1,score_epochs=1,prune=0,hardest=0.1]"
    )
    run.train()
    assert not (tmp_path / "scores-2.npz").exists()
    assert run.lean.cost - run.lean.examples == pytest.approx(200 * (1 + 1 / 3))

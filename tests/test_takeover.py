"""Taking over a script: its loop keeps the lines that unpack a batch, its schedule comes down, and it resumes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import leantrain
from leantrain.errors import LeanError, LeanWarning

EPOCHS, BATCH = 4, 8
METHODS = ("plain", "mixtrain-cutmix[select=all]", "selective-backprop", "infobatch[prune=0.9]")


def images(n: int = 90, side: int = 16) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, side, side, generator=rng)
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


class Script:
    """The parts of a script, as it has them before anything is taken over."""

    def __init__(self) -> None:
        self.model = network()
        self.loader: Any = DataLoader(images(), BATCH, shuffle=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler: Any = CosineAnnealingLR(self.optimizer, T_max=EPOCHS)
        self.losses: list[float] = []
        self.lengths: list[tuple[int, int]] = []  # of the loader at the start of an epoch, and batches it had

    def take_over(self, method: str | None = None, **options: Any) -> leantrain.Lean:
        lean, self.loader, self.scheduler = leantrain.take_over(
            self.model, self.loader, self.scheduler, method, epochs=EPOCHS, **options
        )
        return lean

    def train_epoch(self) -> None:
        """Its loop, with `loss` changed and nothing else; the meter is as in any script."""
        length, right, total, batches = len(self.loader), 0, 0, 0
        for batches, (pictures, target) in enumerate(self.loader, 1):  # noqa: B007 - counted for after the loop
            pictures, target = pictures.to("cpu", non_blocking=True), target.to("cpu")
            loss = self.loader.lean.loss(pictures)
            output = self.loader.lean.last.logits
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            assert output.shape == (pictures.size(0), 2) and pictures.shape[0] == len(target) == len(pictures)
            right, total = right + int((output.argmax(1) == target).sum()), total + target.size(0)
            self.losses.append(loss.item())
        self.lengths.append((length, batches))
        assert total == self.loader.lean.epoch_totals["examples"]
        if self.loader.lean.epoch_totals["examples"] == 90:  # each once, so the report knows them all
            assert right / total == pytest.approx(self.loader.lean.report()["train_accuracy"])


@pytest.mark.parametrize("method", METHODS)
def test_a_script_trains_what_a_loop_with_attach_does(method: str) -> None:
    script = Script()
    lean = script.take_over(method)
    for _ in lean.passes():
        script.train_epoch()
        script.scheduler.step()
    assert lean.finished and script.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)

    other = Script()
    attached = leantrain.attach(other.model, images(), method, epochs=EPOCHS)
    loader, scheduler, losses = attached.loader(BATCH), attached.drive(other.scheduler), []
    while not attached.finished:
        for batch in loader:
            loss = attached.loss(batch)
            other.optimizer.zero_grad()
            loss.backward()
            other.optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    assert script.losses == losses


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_has_no_more_batches_than_the_loader_said(method: str) -> None:
    """Scripts take the length for the end: timm's would take losses past it as none."""
    script = Script()
    for _ in script.take_over(method).passes():
        script.train_epoch()
    assert all(batches <= length for length, batches in script.lengths)
    if method != "selective-backprop":
        assert all(batches == length for length, batches in script.lengths)


def test_a_budget_is_spent_in_as_many_passes_as_it_takes() -> None:
    script = Script()
    script.loader = DataLoader(images(side=32), BATCH, shuffle=True)  # large enough to be shown smaller
    lean = script.take_over(budget=0.5)
    numbers = []
    for number in lean.passes(1):
        numbers.append(number)
        script.train_epoch()
        script.scheduler.step()
    assert len(numbers) > EPOCHS, "a loop over a fixed number of epochs would have ended before the run"
    assert numbers == list(range(1, len(numbers) + 1))
    assert lean.finished and lean.cost_share == pytest.approx(0.5, rel=0.05)
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_passes_in_which_nothing_is_trained_are_refused_instead_of_going_on_for_ever() -> None:
    lean = Script().take_over()
    with pytest.raises(LeanError, match="nothing was trained in pass 0"):
        for _ in lean.passes():
            pass


def test_passes_that_are_left_early_end_all_the_same() -> None:
    """As with `--dry-run`, which leaves after the first batch."""
    script = Script()
    lean = script.take_over()
    for _ in lean.passes():
        for pictures, _ in script.loader:
            lean.loss(pictures)
            break
    assert lean.epoch + 1 == EPOCHS


@pytest.mark.parametrize("loaded", ["before", "after"])
@pytest.mark.parametrize("method", METHODS)
def test_a_script_that_saves_its_optimiser_goes_on_to_the_bit(method: str, loaded: str, tmp_path: Path) -> None:
    """Whether its checkpoint is loaded before the take-over, as there the data come later, or after it."""
    whole = Script()
    for _ in whole.take_over(method).passes():
        whole.train_epoch()
        whole.scheduler.step()

    script, file = Script(), tmp_path / "checkpoint.pt"
    for number in script.take_over(method).passes():
        script.train_epoch()
        script.scheduler.step()
        if number == 1:
            parts = {"model": script.model, "optimizer": script.optimizer, "scheduler": script.scheduler}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            break

    other = Script()

    def load() -> None:
        saved = torch.load(file, weights_only=True)
        other.model.load_state_dict(saved["model"])
        other.optimizer.load_state_dict(saved["optimizer"])
        other.scheduler.load_state_dict(saved["scheduler"])

    if loaded == "before":
        load()
    lean = other.take_over(method)
    if loaded == "after":
        load()
    assert not any("leantrain" in group for group in other.optimizer.param_groups)
    for _ in lean.passes(2):
        other.train_epoch()
        other.scheduler.step()
    assert script.losses + other.losses == whole.losses
    assert other.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]


def test_a_scheduler_that_is_ahead_of_its_run_is_told_so() -> None:
    """A script that saves its scheduler and not its optimiser would train the whole run at the last rate."""
    script = Script()
    for _ in range(3):
        script.scheduler.step()
    script.take_over()
    with pytest.raises(LeanError, match="after 3 of its 4 steps, but the run is at progress 0.00; load"):
        script.scheduler.step()


def test_a_loop_that_goes_on_with_a_run_that_does_not_is_told_so() -> None:
    script = Script()
    lean = script.take_over()
    with pytest.warns(LeanWarning, match="goes on with epoch 3, but this run begins anew, with all of its 4 epochs"):
        next(lean.passes(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(Script().take_over().passes(1))  # of a loop that counts from 1


def test_a_criterion_that_takes_the_mean_is_taken_over_with_its_smoothing() -> None:
    losses = []
    for options in ({"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)}, {"label_smoothing": 0.1}):
        script = Script()
        script.take_over(**options)
        script.train_epoch()
        losses.append(script.losses)
    assert losses[0] == pytest.approx(losses[1]) and losses[0]
    mean = nn.CrossEntropyLoss()
    Script().take_over(criterion=mean)
    assert mean.reduction == "mean", "the script goes on to evaluate with it"


def test_a_mean_over_the_weights_of_classes_is_refused() -> None:
    script = Script()
    script.take_over(criterion=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])))
    with pytest.raises(LeanError, match="it must give one loss per example"):
        script.train_epoch()


def test_an_order_of_its_own_is_refused() -> None:
    script = Script()
    script.loader = DataLoader(images(), BATCH, sampler=WeightedRandomSampler([1.0] * 90, 90))
    with pytest.raises(LeanError, match="the loader comes from a WeightedRandomSampler"):
        script.take_over()


def test_a_scheduler_that_counts_epochs_is_taken_for_one() -> None:
    script = Script()
    script.scheduler = StepLR(script.optimizer, step_size=1, gamma=0.5)
    for _ in script.take_over("rs2[keep=0.5]").passes():
        script.train_epoch()
        script.scheduler.step()
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**EPOCHS)


def test_what_a_loop_does_to_images_beyond_moving_them_is_refused_with_a_remedy() -> None:
    script = Script()
    lean = script.take_over()
    pictures, _ = next(iter(script.loader))
    with pytest.raises(AttributeError, match=r"a batch has no flip; its images are the tensor batch.inputs"):
        pictures.flip(0)
    layout = pictures.contiguous(memory_format=torch.channels_last)
    assert layout.inputs.is_contiguous(memory_format=torch.channels_last)
    assert lean.loss(layout.with_inputs(layout.inputs.flip(3))).requires_grad


class Dicts(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = images(20)[index]
        return {"image": image, "label": int(label), "name": str(index)}


def test_dicts_keep_their_entries() -> None:
    script = Script()
    script.loader = DataLoader(Dicts(), BATCH, shuffle=True)
    lean = script.take_over()
    for batch in script.loader:
        assert batch.keys() == {"image", "label", "name"} and len(batch["name"]) == len(batch["label"])
        moved = {name: entry.to("cpu") for name, entry in batch.items() if name != "name"}
        lean.loss(moved["image"])
    assert lean.epoch_done

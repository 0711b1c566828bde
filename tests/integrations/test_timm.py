"""timm's own loader: what is trained on is what its prefetcher would have given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from integration_helpers import BATCH, LR
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import leantrain
from leantrain.errors import LeanError

data = pytest.importorskip("timm.data", reason="timm is not installed: pip install timm")
from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy  # noqa: E402

from leantrain.integrations import timm as ours  # noqa: E402


class Pictures(Dataset[Any]):
    """Pictures, each its own class, with the transform that `create_loader` gives it."""

    def __init__(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
        self.pictures = [Image.fromarray(one) for one in pixels]
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.transform(self.pictures[i]), i


def create(prefetcher: bool = True, **options: Any) -> Any:
    fixed = {"input_size": (3, 16, 16), "batch_size": BATCH, "is_training": True, "no_aug": True, "num_workers": 0}
    given = {**fixed, "persistent_workers": False, "device": torch.device("cpu"), "use_prefetcher": prefetcher}
    return data.create_loader(Pictures(), **{**given, **options})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 40))


def train(lean: leantrain.Lean, loader: Any) -> list[float]:
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=LR)
    losses = []
    while not lean.finished:
        for batch in loader:
            loss = lean.loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("prefetcher", [True, False])
@pytest.mark.parametrize("method", ["infobatch", "mixtrain-cutmix[select=all]", "selective-backprop"])
def test_losses_and_ledger_are_those_of_images_normalised_before(method: str, prefetcher: bool) -> None:
    batches = list(create(prefetcher))
    shown, labels = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    order = labels.argsort()
    lean, loader = ours.attach(network(), create(prefetcher), method, epochs=3)
    losses = train(lean, loader)
    same = leantrain.attach(network(), TensorDataset(shown[order], labels[order]), method, epochs=3)
    assert losses == pytest.approx(train(same, same.loader(BATCH)), abs=1e-5)
    torch.testing.assert_close(lean.ledger["loss"], same.ledger["loss"], equal_nan=True)


def test_random_erasing_still_erases() -> None:
    theirs = create()
    theirs.random_erasing = data.random_erasing.RandomErasing(
        probability=1.0, device="cpu"
    )  # as no_aug=False makes one
    lean, loader = ours.attach(network(), theirs, epochs=1)
    plain, whole = ours.attach(network(), create(), epochs=1)
    erased, shown = (torch.cat([batch.inputs for batch in one]) for one in (loader, whole))
    assert plain.plan.order.equal(lean.plan.order)
    assert 0.02 < (erased != shown).float().mean() < 0.5


def test_timm_s_mixup_is_told_apart_from_mixtrain() -> None:
    mixing = data.FastCollateMixup(mixup_alpha=0.8, num_classes=40)
    with pytest.raises(LeanError, match=r"timm's Mixup .* augments .* use method=\"mixtrain-cutmix\""):
        ours.attach(network(), create(collate_fn=mixing), "infobatch", epochs=1)


@pytest.mark.parametrize("on_updates", [False, True])
@pytest.mark.parametrize("method", ["plain", "rs2[keep=0.5]", "selective-backprop"])
def test_its_script_s_loop_and_scheduler_are_taken_over(method: str, on_updates: bool) -> None:
    from timm.scheduler import create_scheduler_v2

    model, loader = network(), create()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    plain = len(loader)
    theirs, epochs = create_scheduler_v2(
        optimizer, num_epochs=4, warmup_epochs=0, min_lr=0.0, updates_per_epoch=plain, step_on_epochs=not on_updates
    )
    smooth = LabelSmoothingCrossEntropy(0.1)
    lean, loader, scheduler = ours.take_over(model, loader, theirs, method, epochs=epochs, criterion=smooth)
    assert lean.label_smoothing == 0.1 and scheduler.t_in_epochs is not on_updates
    updates, rates = 0, []
    for epoch in lean.passes():
        for input, target in loader:
            loss = lean.loss(input)
            assert input.shape[0] == len(target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            scheduler.step_update(num_updates=updates)
            rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step(epoch + 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    assert sorted(rates, reverse=True) == rates and len(set(rates)) > 3


@pytest.mark.parametrize("criterion", [SoftTargetCrossEntropy(), BinaryCrossEntropy()])
def test_a_criterion_that_gives_no_loss_per_example_is_refused(criterion: nn.Module) -> None:
    from timm.scheduler import CosineLRScheduler

    model = network()
    scheduler = CosineLRScheduler(torch.optim.SGD(model.parameters(), lr=LR), t_initial=4)
    with pytest.raises(LeanError, match=f"timm's {type(criterion).__name__}, which gives no loss per example"):
        ours.take_over(model, create(), scheduler, epochs=4, criterion=criterion)


def test_accumulating_what_is_decided_inside_the_epoch_is_refused() -> None:
    """Which batch is the last, after which the optimiser must step, is not known there."""
    from timm.scheduler import CosineLRScheduler

    model, loader = network(), create()
    scheduler = CosineLRScheduler(torch.optim.SGD(model.parameters(), lr=LR), t_initial=4)
    half = -(-len(loader) // 2)
    with pytest.raises(LeanError, match="gradients accumulate over 2 batches; set --grad-accum-steps 1"):
        ours.take_over(model, loader, scheduler, "selective-backprop", epochs=4, updates=half)
    ours.take_over(model, loader, scheduler, "rs2", epochs=4, updates=half)

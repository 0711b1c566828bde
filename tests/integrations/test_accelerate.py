"""Accelerate's own Accelerator, on one process and on two: what it trains is what a plain loop trains."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from integration_helpers import (
    BATCH,
    EPOCHS,
    LR,
    METHODS,
    images,
    network,
    one_cycle,
    plain_loop,
    same_run,
    two_processes,
)

import leantrain
import leantrain.wrappers
from leantrain.errors import LeanWarning

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed: pip install accelerate")
from leantrain.integrations.accelerate import LeanLoader, take_over  # noqa: E402


def train(method: str, accumulate: int = 1, wrapped: bool = True) -> tuple[list[float], int, leantrain.Lean]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, optimizer = accelerator.prepare(model, optimizer)
    lean = leantrain.attach(model, images(), method, epochs=EPOCHS)
    loader: Any = lean.loader(BATCH)
    scheduler = lean.drive(one_cycle(optimizer.optimizer))
    loader, scheduler = accelerator.prepare(LeanLoader(loader) if wrapped else loader, scheduler)
    losses, steps = [], 0
    model.train()
    while not lean.finished:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = lean.loss(batch)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
                steps += accelerator.sync_gradients
    assert optimizer.param_groups[0]["lr"] < 1e-4 * LR
    return losses, steps, lean


@pytest.mark.parametrize(("method", "wrapped"), [(METHODS[0], False), *((method, True) for method in METHODS)])
def test_losses_ledger_and_steps_are_those_of_a_plain_loop(method: str, wrapped: bool) -> None:
    losses, steps, lean = train(method, wrapped=wrapped)
    plain = plain_loop(method, ahead=wrapped and "selective" in method)
    assert losses == pytest.approx(plain.losses, abs=1e-6)
    assert steps == len(plain.losses)
    assert same_run(lean, plain.lean)


@pytest.mark.parametrize("method", METHODS[1:])
def test_every_epoch_ends_with_a_step_where_gradients_accumulate(method: str) -> None:
    losses, steps, lean = train(method, accumulate=5)
    assert lean.finished
    assert steps > len(losses) / 5 + 1, "the last batches of an epoch are not left for the next"
    assert steps >= EPOCHS


def rank(folder: Path) -> None:
    """What each of two processes does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeanWarning)
        warnings.filterwarnings("ignore", "batch_size is", LeanWarning)  # so small a one for two processes is odd
        losses, steps, lean = train(METHODS[0])
    assert lean.model is not leantrain.wrappers.unwrapped(lean.model)
    bare = leantrain.attach(network(), images(), epochs=1)
    with pytest.warns(LeanWarning, match="2 processes train together, but .* is not wrapped"):
        bare.loss(next(iter(bare.loader(BATCH))))
    torch.save((losses, steps, lean.state_dict()), folder / f"{torch.distributed.get_rank()}.pt")
    # Gone before the group: a wrapper that lets go of it last may wait for ever, as it holds the GIL meanwhile.
    del lean, bare
    gc.collect()
    torch.distributed.destroy_process_group()


def test_two_processes_keep_one_ledger_and_plan_for_both(tmp_path: Path) -> None:
    two_processes(__file__, tmp_path)
    (first, steps, mine), (second, others, yours) = (torch.load(tmp_path / f"{n}.pt") for n in range(2))
    assert steps == others == len(first) == len(second)
    assert all(
        torch.equal(mine["ledger"][name].nan_to_num(), yours["ledger"][name].nan_to_num())
        for name in ("loss", "trained")
    )
    assert mine["cost"] == yours["cost"]
    assert (mine["ledger"]["trained"] > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_script_has_prepared_is_taken_over(method: str) -> None:
    """Its loader and its scheduler come from `prepare`, and its loop unpacks."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader: Any = torch.utils.data.DataLoader(images(), BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, one_cycle(optimizer))
    lean, loader, scheduler = take_over(model, loader, scheduler, method, epochs=EPOCHS)
    losses = []
    model.train()
    for _ in lean.passes():
        for pictures, _ in loader:
            loss = lean.loss(pictures.to(accelerator.device))
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    expected = plain_loop(method, ahead=lean.decides_inside)
    assert losses == expected.losses
    assert optimizer.param_groups[0]["lr"] < 1e-4 * LR


def test_a_loader_that_was_not_prepared_or_has_an_order_of_its_own_is_refused() -> None:
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 90, 90)
    weighed = torch.utils.data.DataLoader(images(), BATCH, sampler=sampler)
    for loader, words in ((weighed, "a DataLoader with a WeightedRandomSampler"), ([1, 2], "is a list with a list")):
        with pytest.raises(leantrain.LeanError, match=words):
            take_over(network(), loader, None, epochs=2)


if __name__ == "__main__":
    rank(Path(sys.argv[1]))

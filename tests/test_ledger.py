"""The ledger remembers every example's losses, whatever the order in which batches record them."""

from __future__ import annotations

import pytest
import torch

from leantrain.ledger import COMPOSITE, NEVER, WHOLE, Ledger


def test_it_knows_nothing_at_first() -> None:
    ledger = Ledger(5)
    assert ledger["loss"].isnan().all()
    assert ledger["form"].tolist() == [NEVER] * 5
    assert not ledger.seen_in(0).any()


def test_record_moves_the_last_loss_to_the_one_before() -> None:
    ledger = Ledger(4)
    ledger.record(torch.tensor([2, 0]), torch.tensor([1.5, 0.5]), torch.tensor([False, True]), WHOLE, epoch=0)
    ledger.record(torch.tensor([0]), torch.tensor([0.25]), torch.tensor([True]), COMPOSITE, epoch=1)
    assert ledger["loss"][[0, 2]].tolist() == [0.25, 1.5]
    assert ledger["previous"][0] == 0.5
    assert ledger["previous"][2].isnan()
    assert ledger["correct"].tolist() == [True, False, False, False]
    assert ledger["form"].tolist() == [COMPOSITE, NEVER, WHOLE, NEVER]
    assert ledger["trained"].tolist() == [2, 0, 1, 0]
    assert ledger.seen_in(1).tolist() == [True, False, False, False]


def test_large_indices_and_low_precision_losses_are_credited_to_the_right_example() -> None:
    ledger = Ledger(50_000)
    index = torch.arange(49_990, 50_000)
    ledger.record(index, torch.arange(10).to(torch.bfloat16), torch.ones(10, dtype=torch.bool), WHOLE, 0)
    assert ledger["loss"][49_990:].tolist() == list(range(10))
    assert ledger["loss"][:49_990].isnan().all()


def test_recording_keeps_no_graph() -> None:
    ledger = Ledger(2)
    loss = torch.ones(2, requires_grad=True) * 2
    ledger.record(torch.arange(2), loss, torch.ones(2, dtype=torch.bool), WHOLE, 0)
    assert not ledger["loss"].requires_grad


def test_a_method_registers_fields_of_its_own() -> None:
    ledger = Ledger(3)
    ledger.register("rises", torch.int8, 0)
    ledger["rises"][1] = 2
    again = Ledger(3)
    again.load_state_dict(ledger.state_dict())
    assert again["rises"].tolist() == [0, 2, 0]
    with pytest.raises(ValueError, match="already"):
        ledger.register("loss", torch.float32)


def test_state_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 3 examples"):
        Ledger(3).load_state_dict(Ledger(4).state_dict())

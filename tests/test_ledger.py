"""The ledger remembers every example's losses, whatever the order in which batches record them."""

from __future__ import annotations

import pytest
import torch

from leantrain import mixing, shrinking  # noqa: F401  the built-in forms
from leantrain.forms import WHOLE, Form
from leantrain.ledger import Ledger

SMALL_PAIR = Form.of(composite=2, shrunk=0.5)


def test_it_knows_nothing_at_first() -> None:
    ledger = Ledger(5)
    assert ledger["loss"].isnan().all()
    assert ledger["constituents"].tolist() == [0] * 5
    assert not ledger.seen_in(0).any()


def test_record_moves_the_last_loss_to_the_one_before() -> None:
    ledger = Ledger(4)
    ledger.record(torch.tensor([2, 0]), torch.tensor([1.5, 0.5]), torch.tensor([False, True]), WHOLE, epoch=0)
    ledger.record(torch.tensor([0]), torch.tensor([0.25]), torch.tensor([True]), SMALL_PAIR, epoch=1)
    assert ledger["loss"][[0, 2]].tolist() == [0.25, 1.5]
    assert ledger["previous"][0] == 0.5
    assert ledger["previous"][2].isnan()
    assert ledger["correct"].tolist() == [True, False, False, False]
    assert ledger["constituents"].tolist() == [2, 0, 1, 0]  # told apart from the size: a composite of small images
    assert ledger["size"].tolist() == [25, 0, 100, 0]
    assert ledger.unmixed().tolist() == [False, False, True, False]
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


def test_two_of_a_kind_have_fields_of_the_same_name_and_do_not_meet() -> None:
    ledger = Ledger(3)
    one, other = ledger.scoped("0"), ledger.scoped("1")
    one.register("rises", torch.int8, 1)
    other.register("rises", torch.int8, 2, history=True)
    ledger.record(torch.arange(3), torch.ones(3), torch.ones(3, dtype=torch.bool), WHOLE, 0)
    assert one["rises"].tolist() == [1, 1, 1] and other["rises"].tolist() == [2, 2, 2]
    assert one["loss"] is other["loss"] is ledger["loss"]
    assert sorted(set(ledger) - set(Ledger(1))) == ["0.rises", "1.rises"]
    assert ledger.kept == ("1.rises",)
    with pytest.raises(ValueError, match="already"):
        one.register("loss", torch.float32)


def test_state_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 3 examples"):
        Ledger(3).load_state_dict(Ledger(4).state_dict())

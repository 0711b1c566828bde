"""Methods that leave examples out: what they keep, what they weigh, and when they stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leantrain.ledger import WHOLE, Ledger
from leantrain.methods import METHODS, Moment, parse_method
from leantrain.plan import Plan
from leantrain.rng import generator


def plan(text: str, ledger: Ledger, epoch: int = 1, epochs: int = 8, state: dict | None = None) -> Plan:  # type: ignore[type-arg]
    method = parse_method(text)
    state = method.init(ledger) if state is None else state
    made, _ = method.plan(state, ledger, Moment(epoch, epoch / epochs, epochs, 4), generator(0, epoch))
    return made


def ledger_of(losses: list[float]) -> Ledger:
    ledger = Ledger(len(losses))
    values = torch.tensor(losses)
    ledger.record(torch.arange(len(losses)), values, values < 1, WHOLE, 0)
    return ledger


def test_infobatch_by_hand() -> None:
    ledger = ledger_of([0.1, 0.2, 0.3, 0.4, 3.0, 4.0, 5.0, 3.0])  # mean 2.0: the first four are easy
    made = plan("infobatch", ledger)
    easy = [i for i in made.order.tolist() if i < 4]
    assert sorted(i for i in made.order.tolist() if i >= 4) == [4, 5, 6, 7]
    draws = torch.rand(8, generator=generator(0, 1))
    assert sorted(easy) == [i for i in range(4) if draws[i] >= 0.5]
    assert made.weight is not None
    assert dict(zip(made.order.tolist(), made.weight.tolist(), strict=True)) == {
        i: 2.0 if i < 4 else 1.0 for i in made.order.tolist()
    }


def test_infobatch_is_unbiased_and_keeps_the_published_share() -> None:
    losses = torch.rand(4000, generator=torch.Generator().manual_seed(1))
    ledger = ledger_of(losses.tolist())
    made = plan("infobatch[prune=0.5]", ledger)
    easy = int((losses < losses.mean()).sum())
    assert made.examples == pytest.approx(4000 - easy / 2, rel=0.03)
    assert made.weight is not None
    assert float(made.weight.sum()) == pytest.approx(4000, rel=0.03)


@pytest.mark.parametrize("epochs", [1, 2, 5, 8, 16, 30])
def test_infobatch_is_full_at_first_and_in_its_last_eighth(epochs: int) -> None:
    ledger = ledger_of([0.1] * 30 + [3.0] * 10)
    full = [e for e in range(epochs) if plan("infobatch", ledger, e, epochs).examples == 40]
    assert full == [e for e in range(epochs) if e / epochs >= 0.875]
    assert plan("infobatch", Ledger(40), 0, epochs).examples == 40  # nothing is known yet
    assert plan("infobatch", ledger, epochs - 1, epochs).weight is None or epochs <= 5


def test_minibatch_skip_drops_whole_batches_at_random() -> None:
    plans = [plan("minibatch-skip[skip=0.3]", Ledger(400), epoch) for epoch in (0, 1)]
    assert [len(p) for p in plans] == [70, 70]
    assert set(plans[0].order.tolist()) != set(plans[1].order.tolist())
    assert len(plan("minibatch-skip[skip=0.99]", Ledger(8))) == 1


def test_rs2_repeats_no_example_before_all_were_seen() -> None:
    ledger, method = Ledger(100), parse_method("rs2[keep=0.3]")
    state = method.init(ledger)
    seen: list[int] = []
    for epoch in range(10):
        made, state = method.plan(state, ledger, Moment(epoch, epoch / 10, 10, 8), generator(0, epoch))
        assert made.examples == 30
        assert len(set(made.order.tolist())) == 30
        seen += made.order.tolist()
    assert sorted(seen) == sorted(list(range(100)) * 3)
    first_round = seen[:90]
    assert len(set(first_round)) == 90


def test_random_backprop_draws_anew_each_epoch() -> None:
    one, other = (set(plan("random-backprop[keep=0.25]", Ledger(100), e).order.tolist()) for e in (0, 1))
    assert len(one) == len(other) == 25
    assert one != other


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_card(name: str) -> None:
    cards = Path(__file__).parents[2] / "docs" / "methods"
    card = cards / f"{'mixtrain' if name.startswith('mixtrain') else name}.md"
    text = card.read_text()
    for heading in ("What it does", "When it helps", "What it costs", "Defaults", "Conflicts"):
        assert f"**{heading}.**" in text, heading

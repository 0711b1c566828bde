"""Methods that leave examples out: what they keep, what they weigh, and when they stop."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import leantrain
from drafting import Planner
from leantrain.errors import LeanError
from leantrain.forms import WHOLE
from leantrain.ledger import Ledger
from leantrain.methods import METHODS, Moment, chain, parse_method
from leantrain.methods.pruning import lowest
from leantrain.plan import Plan
from leantrain.rng import generator
from leantrain.scoring.scores import Scores


def plan(text: str, ledger: Ledger, epoch: int = 1, epochs: int = 8) -> Plan:
    return Planner(text, ledger).plan(Moment(epoch, epoch / epochs, epochs, 4), generator(0, epoch))


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


def test_infobatch_may_be_told_what_is_easy() -> None:
    ledger = ledger_of([0.05] * 300 + [0.2] * 100 + [9.0] * 10)
    made = plan("infobatch[below=0.1]", ledger)
    assert set(range(300, 410)) <= set(made.order.tolist())
    assert made.examples == pytest.approx(410 - 150, rel=0.1)
    assert plan("infobatch[below=10,prune=0.999]", ledger_of([1.0, 1.0])).examples > 0  # never nothing


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
    assert full == [e for e in range(epochs) if (e + 1) / epochs > 0.875]
    assert epochs - 1 in full
    assert plan("infobatch", Ledger(40), 0, epochs).examples == 40  # nothing is known yet
    assert (plan("infobatch", ledger, epochs - 1, epochs).weight is None) == (epochs - 1 in full)


def test_minibatch_skip_drops_whole_batches_at_random() -> None:
    plans = [plan("minibatch-skip[skip=0.3]", Ledger(400), epoch) for epoch in (0, 1)]
    assert [len(p) for p in plans] == [70, 70]
    assert set(plans[0].order.tolist()) != set(plans[1].order.tolist())
    assert len(plan("minibatch-skip[skip=0.99]", Ledger(8))) == 1


def test_rs2_repeats_no_example_before_all_were_seen() -> None:
    planner = Planner("rs2[keep=0.3]", Ledger(100))
    seen: list[int] = []
    for epoch in range(10):
        made = planner.plan(Moment(epoch, epoch / 10, 10, 8), generator(0, epoch))
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
    for heading in ("What it does", "When it helps", "What it costs", "Defaults", "Conflicts", "Who invented it"):
        assert f"**{heading}.**" in text, heading


# -- pruning by scores -------------------------------------------------------------------------------------------------


def test_the_lowest_scores_go_and_no_class_vanishes() -> None:
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    targets = torch.tensor([0, 1, 2, 0, 1, 0, 0, 1])
    gone, saved = lowest(scores, targets, 0.5)
    assert gone.tolist() == [True, True, False, True, False, False, False, False]  # class 2 keeps its only one
    assert saved == 1
    gone, saved = lowest(scores, torch.tensor([5, 5, 5, 7, 7, 7, 7, 7]), 0.5)
    assert gone.nonzero().squeeze(1).tolist() == [0, 1, 3]  # class 5 keeps its highest
    assert saved == 1
    gone, _ = lowest(scores, torch.zeros(8, dtype=torch.int64), 0.25, hardest=0.25)
    assert gone.nonzero().squeeze(1).tolist() == [0, 1, 6, 7]
    assert not lowest(scores, targets, 0.0)[0].any()


def blobs(n: int = 120) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    return TensorDataset(torch.randn(n, 5, generator=rng) + labels.unsqueeze(1), labels)


def scores_of(data: TensorDataset, values: torch.Tensor, cost: float = 60.0) -> Scores:
    ids = tuple(str(i) for i in range(len(data)))
    return Scores(values, ids, data.tensors[1], ("a", "b", "c"), "el2n", cost, 1.5, {})


def train(lean: leantrain.Lean) -> None:
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.1)
    while not lean.finished:
        for batch in lean.loader(16):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "trained", "looked"),
    [
        ("el2n", 4 * 90, 0),
        ("grand[prune=0.5]", 4 * 60, 0),
        ("diet-random[keep=0.5]", 4 * 45, 0),
        ("diet-sb[keep=0.5]", None, 4 * 90 / 3),
    ],
)
def test_only_what_is_left_is_trained_and_everything_is_paid_for(
    name: str, trained: int | None, looked: float, tmp_path: Path
) -> None:
    data = blobs()
    values = torch.rand(120, generator=torch.Generator().manual_seed(1))
    scores_of(data, values).save(tmp_path / "scores.npz")
    inside = name[:-1] + "," if name.endswith("]") else name + "["
    reused = leantrain.attach(nn.Linear(5, 3), data, f"{inside}scores={tmp_path / 'scores.npz'}]", epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so short a run does not pay for its scores
        paid = leantrain.attach(nn.Linear(5, 3), data, name, epochs=4)
    paid.use_scores(scores_of(data, values))
    for lean in (reused, paid):
        train(lean)
        pruned = lean.ledger["0.pruned"]
        assert torch.equal(pruned, values <= values.sort().values[int(pruned.sum()) - 1])
        assert int(lean.ledger["trained"][pruned].sum()) == 0
        assert lean.examples == (trained or lean.examples)
    assert reused.cost == pytest.approx(reused.examples + looked)
    assert paid.cost == pytest.approx(60 + paid.examples + looked)


def test_the_first_report_says_what_the_scores_cost_and_who_paid(tmp_path: Path) -> None:
    data = blobs()
    scores_of(data, torch.rand(120), cost=240.0).save(tmp_path / "s.npz")
    lean = leantrain.attach(nn.Linear(5, 3), data, f"el2n[scores={tmp_path / 's.npz'}]", epochs=2)
    for batch in lean.loader(16):
        lean.loss(batch)
    assert "30 of 120 examples pruned" in lean.report()["note"]
    assert "cost 2.0 epochs, paid elsewhere" in lean.report()["note"]


def test_scores_are_found_by_id_and_missing_ones_are_told(tmp_path: Path) -> None:
    data = blobs(6)
    shuffled = Scores(torch.tensor([5.0, 0, 1, 2, 3, 4]), ("5", "0", "1", "2", "3", "4"),
                      data.tensors[1][[5, 0, 1, 2, 3, 4]], ("a", "b", "c"), "el2n", 0.0, 0.0, {})  # fmt: skip
    shuffled.save(tmp_path / "s.npz")
    lean = leantrain.attach(nn.Linear(5, 3), data, f"el2n[prune=0.5,scores={tmp_path / 's.npz'}]", epochs=1)
    assert lean.ledger["0.pruned"].nonzero().squeeze(1).tolist() == [0, 1, 2]
    with pytest.raises(LeanError, match="3 of 9 examples have no score"):
        leantrain.attach(nn.Linear(5, 3), blobs(9), f"el2n[scores={tmp_path / 's.npz'}]", epochs=1)


def test_a_method_without_its_scores_says_how_to_make_them() -> None:
    with pytest.warns(UserWarning, match=r"3 × \(2 \+ 0\.33\) = 7\.0 epochs for the scores and 2 × 0\.75 = 1\.5 for"):
        lean = leantrain.attach(nn.Linear(5, 3), blobs(), "el2n", epochs=2)
    with pytest.raises(LeanError, match=r"prunes by el2n scores and has none.*leantrain score.*scores=FILE"):
        next(iter(lean.loader(8)))
    with pytest.raises(LeanError, match="prunes by no scores"):
        leantrain.attach(nn.Linear(5, 3), blobs(), epochs=2).use_scores(scores_of(blobs(), torch.rand(120)))


def test_a_budget_that_the_scores_use_up_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lean = leantrain.attach(nn.Linear(5, 3), blobs(), "el2n", epochs=4, budget=0.1)
    with pytest.raises(LeanError, match="costs 60 examples, and the budget of 0.1 is 48; raise the budget"):
        lean.use_scores(scores_of(blobs(), torch.rand(120)))


def test_progress_starts_after_the_scores_are_paid_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lean = leantrain.attach(nn.Linear(5, 3), blobs(), "el2n", epochs=10, budget=1.0)
    lean.use_scores(scores_of(blobs(), torch.rand(120), cost=7 * 120.0))
    ends = []
    while not lean.finished:
        for batch in lean.loader(16):
            lean.loss(batch)
        ends.append(lean.progress)
    assert ends == pytest.approx([0.25, 0.5, 0.75, 1.0])  # three epochs are left, of three quarters each
    assert lean.cost == pytest.approx(1200, abs=16)


def test_scores_are_given_once_and_before_the_first_epoch(tmp_path: Path) -> None:
    scores_of(blobs(), torch.rand(120)).save(tmp_path / "s.npz")
    lean = leantrain.attach(nn.Linear(5, 3), blobs(), f"el2n[scores={tmp_path / 's.npz'}]", epochs=2)
    with pytest.raises(LeanError, match="has its scores already"):
        lean.use_scores(scores_of(blobs(), torch.rand(120)))


def test_scores_of_another_data_set_are_refused(tmp_path: Path) -> None:
    class Told(TensorDataset):
        """One that makes whole batches and tells its labels, as the sets of `leantrain train` do."""

        @property
        def targets(self) -> torch.Tensor:
            return self.tensors[1]

        def batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, ...]:
            return self[indices]

    data = Told(*blobs().tensors)
    other = dataclasses.replace(scores_of(data, torch.rand(120)), targets=data.tensors[1].roll(1))
    other.save(tmp_path / "s.npz")
    with pytest.raises(LeanError, match="120 of 120 examples have another label than their scores say"):
        leantrain.attach(nn.Linear(5, 3), data, f"el2n[scores={tmp_path / 's.npz'}]", epochs=1)


def test_a_resumed_run_needs_its_scores_file_no_more(tmp_path: Path) -> None:
    file = tmp_path / "s.npz"
    scores_of(blobs(), torch.rand(120)).save(file)
    cut = leantrain.attach(nn.Linear(5, 3), blobs(), f"el2n[scores={file}]", epochs=2)
    lean = cut.loader(16)
    cut.loss(next(iter(lean)))
    file.unlink()
    resumed = leantrain.attach(nn.Linear(5, 3), blobs(), f"el2n[scores={file}]", epochs=2)
    resumed.load_state_dict(cut.state_dict())
    assert next(iter(resumed.loader(16))).position == 1
    fresh = leantrain.attach(nn.Linear(5, 3), blobs(), f"el2n[scores={file}]", epochs=2)
    with pytest.raises(LeanError, match="there is no scores file"):
        iter(fresh.loader(16))


@pytest.mark.parametrize(
    ("name", "epochs", "pays"),
    [
        ("el2n", 27, False), ("el2n", 28, True), ("diet-sb", 18, False), ("diet-sb", 19, True),
        ("diet-random", 11, False), ("diet-random", 12, True), ("diet-sb[keep=0.7,scores=x.npz]", 5, True),
        ("diet-sb[keep=0.9,prune=0.1,scores=x.npz]", 5, False), ("grand", 35, False), ("grand", 36, True),
    ],
)  # fmt: skip
def test_a_run_too_short_to_pay_for_its_scores_is_warned_of(name: str, epochs: int, pays: bool) -> None:
    assert (chain(parse_method(name)).warning(epochs) is None) == pays


# -- oracle skipping ---------------------------------------------------------------------------------------------------


def test_oracle_skips_what_lies_below_the_mean_loss_of_the_correct() -> None:
    ledger = Ledger(6)
    losses = torch.tensor([0.1, 0.3, 0.8, 1.2, 2.0, 3.0])
    ledger.record(torch.arange(6), losses, torch.tensor([1, 1, 1, 0, 0, 0]).bool(), WHOLE, 0)
    planner = Planner("oracle-skip", ledger)
    made = planner.plan(Moment(1, 0.2, 5, 4), generator(0))
    assert made.examples == 6  # as MixTrain's: a threshold is applied to the epoch after those that it comes from
    made = planner.plan(Moment(2, 0.4, 5, 4), generator(0))
    assert sorted(made.order.tolist()) == [2, 3, 4, 5]  # L_corr is 0.4
    report = planner.chain.report_all(planner.states, ledger, made)
    assert report == {"skipped": pytest.approx(1 / 3), "loss_correct": pytest.approx(0.4)}


def test_oracle_measures_the_skipped_anew_and_counts_nothing_for_it() -> None:
    lean = leantrain.attach(nn.Linear(5, 3), blobs(), "oracle-skip", epochs=5)
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05)
    skipped = []
    for epoch in range(5):
        known = lean.ledger["loss"].clone()
        loader = iter(lean.loader(16))
        first = next(loader)
        if epoch:  # measured with the model as it is now, before the epoch's first step
            before = (lean.ledger["epoch"] != epoch - 1).nonzero().squeeze(1)
            exact = F.cross_entropy(lean.model(blobs().tensors[0]), blobs().tensors[1], reduction="none")
            torch.testing.assert_close(lean.ledger["loss"][before], exact[before])
            if len(before):
                assert not torch.equal(lean.ledger["loss"][before], known[before])
        for batch in (first, *loader):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        skipped.append(lean.report()["skipped"])
    assert skipped[0] == 0 and max(skipped) > 0.05
    assert lean.cost == lean.examples == int(lean.ledger["trained"].sum()) < 600


def test_oracle_always_trains_on_something() -> None:
    ledger = ledger_of([0.1, 0.1, 0.1])
    planner = Planner("oracle-skip", ledger)
    planner.states = [{"sums": torch.tensor([100.0, 1.0], dtype=torch.float64), "report": {}}]
    assert planner.plan(Moment(1, 0.2, 5, 4), generator(0)).examples == 1

"""Selective mixing follows the rules of the paper, transition by transition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import leantrain
from drafting import Planner
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.methods import METHODS, Moment, parse_method
from leantrain.methods.mixtrain import NOT_MIXED, REGION_1, REGION_3, MixTrainMethod
from leantrain.plan import Plan
from leantrain.rng import generator

WHOLE, COMPOSITE = Form(), Form.of(composite=2)


class Walk:
    """A method fed with hand-made epochs: losses and correctness go in, regions come out.

    With `copies` every example stands for four that fare alike, so that no set has an odd one out.
    """

    def __init__(self, text: str, examples: int, epochs: int = 20, batch_size: int = 4, copies: int = 1) -> None:
        self.copies = copies
        self.size = Form()
        examples *= copies
        method = parse_method(text)
        assert isinstance(method, MixTrainMethod)
        self.method = method
        self.ledger = Ledger(examples)
        self.planner = Planner(method, self.ledger)
        self.epochs, self.batch_size = epochs, batch_size
        self.epoch = -1
        self.plan = self._plan()

    def _plan(self) -> Plan:
        self.epoch += 1
        moment = Moment(self.epoch, self.epoch / self.epochs, self.epochs, self.batch_size)
        return self.planner.plan(moment, generator(0, "plan", self.epoch))

    def forms(self) -> dict[int, Form]:
        """How each planned example is shown."""
        shown = {}
        for b in range(len(self.plan)):
            batch = self.plan[b]
            shown.update(dict.fromkeys(batch.index.tolist(), COMPOSITE if batch.form.constituents > 1 else WHOLE))
        return shown

    def train(self, losses: Sequence[float], correct: Sequence[bool]) -> list[int]:
        """Record the planned epoch with these outcomes, plan the next and say every example's region in it."""
        loss, right = (torch.tensor(x).repeat_interleave(self.copies) for x in (losses, correct))
        for form in (WHOLE, COMPOSITE):
            seen_as = form if not self.size.parts else form.also(*self.size.parts[0])
            index = torch.tensor([i for i, f in sorted(self.forms().items()) if f == form], dtype=torch.int64)
            if len(index):
                self.ledger.record(index, loss[index], right[index], seen_as, self.epoch)
        self.plan = self._plan()
        return self.regions()

    def regions(self) -> list[int]:
        regions = self.planner.view["reason"].view(-1, self.copies)
        assert (regions == regions[:, :1]).all()
        return [int(r) for r in regions[:, 0]]

    @property
    def report(self) -> dict[str, Any]:
        return self.planner.chain.report_all(self.planner.states, self.ledger, self.plan)


RIGHT, WRONG = True, False

# Six examples: 0-3 right, 4-5 wrong. L_corr, L_incorr and L_mid of the epochs before are computed by hand.
FIRST = ([0.2, 0.4, 0.6, 0.8, 3.0, 5.0], [RIGHT] * 4 + [WRONG] * 2)  # L_corr 0.5, L_incorr 4, L_mid 2.25


def test_nothing_is_mixed_before_thresholds_exist_and_are_applied() -> None:
    walk = Walk("mixtrain-cutmix", 6)
    assert set(walk.forms().values()) == {WHOLE}  # epoch 0
    assert walk.train(*FIRST) == [NOT_MIXED] * 6  # epoch 1: thresholds of epochs 0 … -1 do not exist
    assert walk.train(*FIRST)[:4] == [REGION_1] * 4  # epoch 2: thresholds of epoch 0 on the losses of epoch 1
    assert (walk.report["L_corr"], walk.report["L_incorr"], walk.report["L_mid"]) == pytest.approx((0.5, 4.0, 2.25))


def test_including_the_epoch_just_ended_starts_one_epoch_earlier() -> None:
    walk = Walk("mixtrain-cutmix[include_last=true]", 6)
    assert walk.train(*FIRST)[:4] == [REGION_1] * 4


def test_every_transition_of_section_1_4() -> None:
    walk = Walk("mixtrain-cutmix", 8, copies=4)
    right = [RIGHT] * 4 + [WRONG] * 4
    # epoch 0: L_corr 0.5, L_incorr (3+5+4+4)/4 = 4, L_mid 2.25
    assert walk.train([0.2, 0.4, 0.6, 0.8, 3.0, 5.0, 4.0, 4.0], right) == [NOT_MIXED] * 8
    # epoch 1, unmixed: 0-3 below L_mid → region 1; 4 between → region 2; 5 above L_incorr and risen → region 3;
    # 6 above L_incorr but fallen? no: 4.0 → 4.5 risen → region 3; 7 risen but not above L_incorr → region 2.
    regions = walk.train([0.1, 0.3, 2.2, 2.2, 3.5, 6.0, 4.5, 4.0], right)
    assert regions == [1, 1, 1, 1, 0, 3, 3, 0]
    # sums of unmixed: right 2.0 + 4.8 over 8 → 0.85; wrong 16 + 18 over 8 → 4.25; L_mid 2.55
    # epoch 2: 0-3, 5, 6 mixed. 0-1 stay below; 2 exceeds L_mid → back; 3 stays. 5 and 6 come back whatever they do.
    # 4 unmixed: 4.3 > 4.25 and risen from 3.5 → region 3. 7: 5.0 > 4.25 and risen → region 3.
    regions = walk.train([0.1, 0.3, 2.6, 2.5, 4.3, 0.1, 9.0, 5.0], right)
    assert walk.report["L_mid"] == pytest.approx(2.55)
    assert regions == [1, 1, 0, 1, 3, 0, 0, 3]
    # epoch 3: unmixed in epoch 2 were 4 and 7 (both wrong): L_incorr (34 + 9.3) / 10 = 4.33, L_mid 2.59.
    # 2 unmixed and low again → region 1. 5: unmixed and high, risen against a *mixed* loss: not comparable → region 2.
    # 6: low → region 1. 4 and 7 were region 3 for one epoch → back, even with a low mixed loss.
    regions = walk.train([0.1, 0.3, 1.0, 2.5, 0.1, 8.0, 0.2, 0.1], right)
    assert walk.report["L_incorr"] == pytest.approx(4.33)
    assert regions == [1, 1, 1, 1, 0, 0, 1, 0]
    # epoch 4: 5 unmixed twice now, risen from 8 to 8.5 → region 3.
    regions = walk.train([0.1, 0.3, 1.0, 1.0, 3.0, 8.5, 0.2, 3.0], right)
    assert regions == [1, 1, 1, 1, 0, 3, 1, 0]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_region_3_needs_k_rises_in_a_row_and_then_lasts_k_epochs(k: int) -> None:
    walk = Walk(f"mixtrain-cutmix[select=region3,k={k}]", 8, copies=4)

    def train(loss: float) -> int:
        return walk.train([0.5, 0.5, 3.0, 3.0, 3.0, 3.0, 3.0, loss], [RIGHT] * 2 + [WRONG] * 6)[7]

    assert train(10.0) == NOT_MIXED  # nothing to compare with yet
    for rise in range(1, k):
        assert train(10.0 + rise) == NOT_MIXED
    assert train(20.0) == REGION_3  # the k-th rise
    for epoch in range(1, k):
        assert train(30.0 + epoch) == REGION_3
    assert train(50.0) == NOT_MIXED  # back after k epochs
    assert train(60.0) == NOT_MIXED  # its loss before was a mixed one
    for rise in range(1, k):
        assert train(60.0 + rise) == NOT_MIXED
    assert train(90.0) == REGION_3


def test_an_odd_one_out_is_trained_whole_and_judged_as_such() -> None:
    walk = Walk("mixtrain-cutmix[select=region1]", 11)
    losses, right = [0.1] * 5 + [5.0] * 6, [RIGHT] * 5 + [WRONG] * 6
    walk.train(losses, right)
    walk.train(losses, right)
    forms = walk.forms()
    assert [forms[i] for i in range(5)].count(COMPOSITE) == 4
    odd = next(i for i in range(5) if forms[i] == WHOLE)
    walk.train(losses, right)
    assert walk.ledger["constituents"][odd] == 1
    assert walk.regions()[:5] == [REGION_1] * 5


def test_a_loss_that_falls_in_between_starts_the_count_again() -> None:
    walk = Walk("mixtrain-cutmix[select=region3,k=2]", 4)
    regions = [walk.train([0.5, 3.0, x, x], [RIGHT, WRONG, WRONG, WRONG])[2] for x in (10, 11, 10, 11, 12)]
    assert regions == [0, 0, 0, 0, 3]


def test_selection_variants() -> None:
    losses, right = [0.2, 3.9, 0.3, 2.4, 6.0, 5.0], [RIGHT, RIGHT, WRONG, WRONG, WRONG, WRONG]

    def after_two(select: str, second: Sequence[float] = losses) -> list[int]:
        walk = Walk(f"mixtrain-cutmix[select={select}]", 6)
        walk.train(losses, right)
        return walk.train(second, right)

    # epoch 0: L_corr 2.05, L_incorr 3.425, L_mid 2.7375; mean of all 17.8 / 6 = 2.9667
    assert after_two("region1") == [1, 0, 1, 1, 0, 0]
    assert after_two("correct") == [1, 1, 0, 0, 0, 0]
    assert after_two("mean-loss", [0.2, 3.9, 0.3, 2.9, 6.0, 5.0]) == [1, 0, 1, 1, 0, 0]
    assert after_two("region1", [0.2, 3.9, 0.3, 2.9, 6.0, 5.0]) == [1, 0, 1, 0, 0, 0]
    assert after_two("all-region3") == [1, 3, 1, 1, 3, 3]
    assert after_two("region13") == [1, 0, 1, 1, 0, 0]  # high, but not risen
    assert after_two("region13", [0.2, 4.0, 0.3, 2.4, 6.1, 4.9]) == [1, 3, 1, 1, 3, 0]
    assert after_two("region3", [0.2, 4.0, 0.3, 2.4, 6.1, 4.9]) == [0, 3, 0, 0, 3, 0]


def test_all_above_l_incorr_are_mixed_in_every_epoch_and_do_not_alternate() -> None:
    walk = Walk("mixtrain-cutmix[select=all-region3]", 6)
    right = [RIGHT, RIGHT, WRONG, WRONG, WRONG, WRONG]
    regions = [walk.train([0.2, 0.3, 2.0, 2.1, 8.0, 9.0], right)[4:] for _ in range(5)]
    assert regions == [[0, 0]] + [[3, 3]] * 4
    assert walk.train([0.2, 0.3, 2.0, 2.1, 1.9, 9.0], right)[4:] == [0, 3]  # until a loss falls
    other = Walk("mixtrain-cutmix[select=region13]", 6)
    rising = [other.train([0.2, 0.3, 2.0, 2.1, 8.0 + e, 9.0 + e], right)[4:] for e in range(5)]
    assert rising == [[0, 0], [3, 3], [0, 0], [0, 0], [3, 3]]  # the papers' own rule: one epoch, then back


def test_select_all_is_naive_mixing_from_the_first_epoch() -> None:
    walk = Walk("mixtrain-cutmix[select=all,split=false]", 12)
    assert set(walk.forms().values()) == {COMPOSITE}
    assert walk.plan.cost == 6


def test_region_3_can_be_skipped_instead() -> None:
    walk = Walk("mixtrain-cutmix[select=region3,region3=skip]", 6)
    walk.train([0.5, 0.5, 3.0, 3.0, 5.0, 5.0], [RIGHT] * 2 + [WRONG] * 4)
    walk.train([0.5, 0.5, 3.0, 3.0, 6.0, 6.0], [RIGHT] * 2 + [WRONG] * 4)
    assert sorted(walk.forms()) == [0, 1, 2, 3]
    assert walk.report["skipped"] == pytest.approx(2 / 6)
    walk.train([0.5, 0.5, 3.0, 3.0, 9.0, 9.0], [RIGHT] * 2 + [WRONG] * 4)
    assert sorted(walk.forms()) == [0, 1, 2, 3, 4, 5]


def test_skipping_never_leaves_nothing() -> None:
    walk = Walk("mixtrain-cutmix[select=all-region3,region3=skip]", 4)
    walk.train([1.0] * 4, [WRONG] * 4)
    walk.train([9.0] * 4, [WRONG] * 4)
    assert len(walk.forms()) == 4


@pytest.mark.parametrize(("right", "regions"), [(RIGHT, [1, 1, 0, 0]), (WRONG, [0, 0, 0, 0])])
def test_no_nan_when_none_is_wrong_or_none_is_right(right: bool, regions: list[int]) -> None:
    walk = Walk("mixtrain-cutmix[select=region1]", 4)
    walk.train([0.1, 0.2, 0.9, 0.8], [right] * 4)
    assert walk.train([0.1, 0.2, 0.9, 0.8], [right] * 4) == regions
    assert "yet" in walk.report["note"]
    assert walk.report["L_mid"] is None
    assert not any(isinstance(v, float) and math.isnan(v) for v in walk.report.values())


def test_a_loss_that_is_not_finite_spoils_no_threshold() -> None:
    walk = Walk("mixtrain-cutmix", 6)
    walk.train([0.2, 0.4, 0.6, 0.8, float("inf"), 4.0], [RIGHT] * 4 + [WRONG] * 2)
    walk.train(*FIRST)
    assert walk.report["L_incorr"] == pytest.approx(4.0)


def test_exponential_average_forgets() -> None:
    losses = [([2.0, 2.0, 6.0, 6.0], [RIGHT, RIGHT, WRONG, WRONG])] + [
        ([1.0, 1.0, 3.0, 3.0], [RIGHT, RIGHT, WRONG, WRONG])
    ] * 2
    walks = {a: Walk(f"mixtrain-cutmix[select=region3,average={a}]", 4) for a in ("cumulative", "ema")}
    for walk in walks.values():
        for epoch in losses:
            walk.train(*epoch)
    assert walks["cumulative"].report["L_corr"] == pytest.approx(1.5)
    assert walks["ema"].report["L_corr"] == pytest.approx(0.5 * 2.0 + 0.5 * 1.0)
    assert walks["ema"].report["L_incorr"] == pytest.approx(4.5)


def test_after_until_nothing_is_mixed() -> None:
    walk = Walk("mixtrain-cutmix[until=0.75]", 6, epochs=8)
    shares = []
    for _ in range(8):
        shares.append(walk.report["mixed"])
        walk.train(*FIRST)
    assert shares[2:6] == [pytest.approx(4 / 6)] * 4
    assert shares[6:] == [0, 0]


def test_keep_steps_keeps_the_number_of_optimiser_steps() -> None:
    plain = Walk("mixtrain-cutmix[select=all,keep_steps=true]", 64, batch_size=8)
    assert len(plain.plan) == 8
    assert plain.plan[0].inputs == 4
    assert len(Walk("mixtrain-cutmix[select=all]", 64, batch_size=8).plan) == 4


def test_correct_only_leaves_what_was_wrong_out_of_region_1() -> None:
    losses, correct = [1.0, 1.1, 1.2, 3.0], [RIGHT, RIGHT, WRONG, WRONG]
    regions = {}
    for option in ("", "[correct_only=true]"):
        walk = Walk(f"mixtrain-cutmix{option}", 4, copies=4)
        walk.train(losses, correct)
        regions[option] = walk.train(losses, correct)
    assert regions[""] == [REGION_1, REGION_1, REGION_1, NOT_MIXED]  # the third is wrong with a loss below L_mid
    assert regions["[correct_only=true]"] == [REGION_1, REGION_1, NOT_MIXED, NOT_MIXED]


@pytest.mark.parametrize("method", ["mixtrain-cutmix", "mixtrain-mixup"])
@pytest.mark.parametrize("counted", [True, False])
def test_composites_count_in_the_running_statistics_unless_asked_not_to(method: str, counted: bool) -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), norm, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    data = torch.utils.data.TensorDataset(torch.randn(8, 3, 8, 8), torch.arange(8) % 4)
    lean = leantrain.attach(model, data, f"{method}[select=all,statistics={str(counted).lower()}]", epochs=2)
    (batch,) = lean.loader(4)
    before = norm.running_mean.clone()
    lean.loss(batch).backward()
    assert batch.form.constituents == 2
    assert (not torch.equal(norm.running_mean, before)) == counted
    assert int(norm.num_batches_tracked) == counted
    assert norm.track_running_stats
    assert norm.weight.grad.isfinite().all()  # normalised by the batch itself, either way


def test_before_start_nothing_is_mixed_but_thresholds_are_learnt() -> None:
    walk = Walk("mixtrain-cutmix[start=0.5]", 6, epochs=8)
    shares = []
    for _ in range(8):
        shares.append(walk.report["mixed"])
        walk.train(*FIRST)
    assert shares[:4] == [0] * 4
    assert shares[4:] == [pytest.approx(4 / 6)] * 4
    assert walk.report["L_mid"] == pytest.approx(2.25)


def test_the_rules_hold_when_examples_are_shrunk() -> None:
    sizes = (Form.of(shrunk=0.5), Form.of(shrunk=0.75), Form())
    whole, shrunk = Walk("mixtrain-cutmix", 8, copies=4), Walk("mixtrain-cutmix", 8, copies=4)
    right = [RIGHT] * 4 + [WRONG] * 4
    for epoch, losses in enumerate(
        [[0.2, 0.4, 0.6, 0.8, 3.0, 5.0, 4.0, 4.0], [0.1, 0.3, 2.2, 2.2, 3.5, 6.0, 4.5, 4.0]]
    ):
        shrunk.size = sizes[epoch]
        assert whole.train(losses, right) == shrunk.train(losses, right)
    assert shrunk.regions() == [1, 1, 1, 1, 0, 3, 3, 0]  # after two shrunk epochs
    assert shrunk.report["L_mid"] == whole.report["L_mid"] is not None


def random_ledger(walk: Walk, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(3):
        n = len(walk.ledger)
        loss = torch.rand(n, generator=rng) * 6
        walk.train(loss.tolist(), (torch.rand(n, generator=rng) < 0.7).tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 90), st.integers(2, 16), st.integers(2, 4), st.integers(0, 10_000))
def test_every_example_appears_exactly_once_plain_or_in_one_composite(n: int, batch: int, k: int, seed: int) -> None:
    walk = Walk(f"mixtrain-mixup[constituents={k}]", n, batch_size=batch)
    random_ledger(walk, seed)
    plan = walk.plan
    assert plan.order.sort().values.tolist() == list(range(n))
    batches = [plan[b] for b in range(len(plan))]
    plain = sum(b.inputs for b in batches if b.form.constituents == 1)
    composites = sum(b.inputs for b in batches if b.form.constituents == k)
    assert plain + k * composites == n
    assert len(plan) == math.ceil(plain / batch) + math.ceil(composites / batch)
    if batch > 2:
        assert all(b.inputs > 1 for b in batches)
    regions = walk.planner.view["reason"]
    for b in batches:
        if b.form.constituents > 1:
            assert (regions[b.index] != NOT_MIXED).all()


def test_pairs_are_formed_anew_every_epoch_and_by_the_seed() -> None:
    def pairs(epochs: int) -> set[frozenset[int]]:
        walk = Walk("mixtrain-mixup[select=all]", 40)
        for _ in range(epochs):
            walk.train([0.1] * 40, [RIGHT] * 40)
        batches = [walk.plan[b] for b in range(len(walk.plan))]
        return {frozenset(p.tolist()) for b in batches for p in b.index.view(2, -1).T}

    assert pairs(0) == pairs(0)
    assert pairs(0) != pairs(1)


def test_the_report_adds_up() -> None:
    walk = Walk("mixtrain-cutmix", 60, batch_size=8)
    random_ledger(walk, 3)
    report = walk.report
    assert report["mixed"] == pytest.approx(report["mixed_region1"] + report["mixed_region3"])
    assert report["cost_saved"] == pytest.approx(60 * report["mixed"] / 2)
    assert report["batches_saved"] == math.ceil(60 / 8) - len(walk.plan)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mixtrain-cutmix[ratio=2]", "ratio is '2', but must be equal, beta or a number between 0 and 1"),
        ("mixtrain-mixup[split=true]", "has no option 'split'"),
        ("mixtrain-cutmix[select=region2]", "Did you mean 'region"),
        ("mixtrain-cutmix[k=0]", "k is 0, but must be at least 1"),
        ("mixtrain-cutmix[constituents=1]", "constituents is 1, but must be at least 2"),
        ("mixtrain-cutmix[whole_ending=0.2]", "no option 'whole_ending' any more; write until=0.8 instead"),
        ("mixtrain-cutmx", "Did you mean 'mixtrain-cutmix'"),
    ],
)
def test_mistakes_are_told(text: str, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        parse_method(text)


def test_names_and_aliases() -> None:
    assert str(parse_method("intertrain-randpatch")) == "mixtrain-cutmix"
    assert str(parse_method("intertrain-linavg[k=2]")) == "mixtrain-mixup[k=2]"
    assert leantrain.MixTrain("cutmix") == leantrain.MixTrain("randpatch") == parse_method("mixtrain-cutmix")
    assert str(leantrain.MixTrain("mixup", ratio=0.3, k=2)) == "mixtrain-mixup[k=2,ratio=0.3]"
    with pytest.raises(LeanError, match="no option 'kk'"):
        leantrain.MixTrain("cutmix", kk=2)
    with pytest.raises(LeanError, match="'cutmax'"):
        leantrain.MixTrain("cutmax")


@pytest.mark.parametrize("name", [n for n in METHODS if n.startswith("mixtrain")])
def test_every_option_s_help_says_what_the_paper_used(name: str) -> None:
    import dataclasses

    for field in dataclasses.fields(METHODS[name]):
        assert "paper" in field.metadata["help"] or field.name in ("start", "until"), field.name


def test_options_survive_their_own_spelling() -> None:
    text = "mixtrain-cutmix[select=correct,k=3,keep_steps=true,split=false,ratio=0.25,until=0.8]"
    assert str(parse_method(text)) == text

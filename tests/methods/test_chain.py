"""Chains: methods put together do what each of them does, and nothing else; what cannot be put together is refused."""

from __future__ import annotations

import copy
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from drafting import Planner
from leantrain.errors import LeanError
from leantrain.estimate import expected_cost
from leantrain.ledger import Ledger
from leantrain.methods import METHODS, Chain, Mixes, Moment, NeedsScores, Thins, chain, parse_method, parts_of
from leantrain.methods.base import ScoresGiven
from leantrain.models.nets import SmallResNet
from leantrain.plan import Plan
from leantrain.rng import generator
from leantrain.scoring.scores import Scores

SIDE = 16


def images(n: int = 64, side: int = SIDE) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 4
    return TensorDataset(torch.randn(n, 1, side, side, generator=rng) + labels.view(-1, 1, 1, 1), labels)


class Block(nn.Module):
    """As timm writes one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attn, self.mlp = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)
        self.drop_path1, self.drop_path2 = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.drop_path1(self.attn(y, y, y, need_weights=False)[0])
        z: Tensor = x + self.drop_path2(self.mlp(self.norm2(x)).relu())
        return z


class Transformer(nn.Module):
    """Patches of four pixels as tokens, without positions, so that it takes any size; after a convolution or not."""

    def __init__(self, stem: bool = False) -> None:
        super().__init__()
        patches = nn.Conv2d(5 if stem else 1, 8, 4, 4)
        self.embed = nn.Sequential(nn.Conv2d(1, 5, 3, 1, 1), nn.ReLU(), patches) if stem else patches
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.embed(x).flatten(2).transpose(1, 2)).mean(1))
        return y


def network(method: str = "") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if "token-dropping" in method:
            return Transformer(stem="prune-train" in method)
        if "stochastic-depth" in method:
            return SmallResNet(1, classes=4, channels=1, width=4, dropout=0.0)
        body = [nn.Conv2d(1, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU()]
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


def scored(data: TensorDataset) -> Scores:
    values = torch.rand(len(data), generator=torch.Generator().manual_seed(3))
    ids = tuple(map(str, range(len(data))))
    return Scores(values, ids, data.tensors[1], ("a", "b", "c", "d"), "el2n", 10.0, 1.0, {})


def attached(
    method: str, epochs: int = 6, budget: float | None = None, n: int = 64, seed: int = 1, side: int = SIDE
) -> leantrain.Lean:
    data, model = images(n, side), network(method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lean = leantrain.attach(model, data, method, epochs=epochs, budget=budget, seed=seed, optimizer=optimizer)
    while lean.score_request is not None:
        lean.use_scores(scored(data))
    return lean


def train(lean: leantrain.Lean, epochs: int | None = None, stop_after: int | None = None) -> None:
    optimizer = lean.optimizer or torch.optim.SGD(lean.model.parameters(), lr=0.05)
    steps = 0
    while not lean.finished and (epochs is None or lean.epoch < epochs):
        for batch in lean.loader(16):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == stop_after:
                return


# -- how a chain is written --------------------------------------------------------------------------------------------


def test_text_and_python_mean_the_same() -> None:
    text = "el2n[prune=0.3] + mixtrain-cutmix[until=0.8] + progressive-resizing"
    method = parse_method(" el2n[prune=0.3]+mixtrain-cutmix[until=0.8]  + progressive-resizing ")
    assert str(method) == text
    one, two, three = (parse_method(part) for part in text.split(" + "))
    assert method == leantrain.chain(one, two, three) == one + two + three == one + (two + three)
    assert parts_of(method) == (one, two, three)
    assert parts_of(one) == (one,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rs2 + ", "has nothing on one side of a '\\+'"),
        ("+ rs2", "has nothing on one side"),
        ("rs2 + nosuch", "method 'nosuch' is not known"),
        ("rs2[until=0]", "until is 0.0, but must be above 0"),
        ("rs2[start=0.5,until=0.4]", "start=0.5 is not before until=0.4"),
        ("rs2[keep=0.5,keep=0.6]", "gives 'keep' twice"),
        ("infobatch[full=0.25]", "no option 'full' any more; write until=0.75"),
        ("mixtrain-cutmix + mixtrain-mixup", "both mix examples"),
        ("selective-backprop + autoassist", "both decide inside the epoch"),
        ("mixtrain-cutmix + selective-backprop", "selective-backprop decides inside the epoch on single examples"),
        ("autoassist + mixtrain-mixup", "autoassist decides inside the epoch on single examples"),
        ("mixtrain-cutmix + infobatch", "infobatch works on single examples.*write infobatch first"),
        ("mixtrain-cutmix + progressive-resizing + el2n", "mixtrain-cutmix \\+ el2n cannot be combined"),
        ("diet-sb + autoassist", "both decide inside the epoch"),
    ],
)
def test_what_cannot_be_combined_is_refused_when_it_is_built(text: str, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        parse_method(text)


def test_a_chain_without_methods_is_refused() -> None:
    with pytest.raises(LeanError, match="at least one method"):
        chain()


def test_diet_is_the_chain_of_what_it_is_made_of_under_its_name() -> None:
    method = parse_method("diet-sb[prune=0.4,keep=0.6,history=256,until=0.9]")
    assert str(method) == "diet-sb[prune=0.4,keep=0.6,history=256,until=0.9]"
    assert isinstance(method, Chain)
    assert [str(part) for part in method.methods] == [
        "el2n[prune=0.4,until=0.9]",
        "selective-backprop[keep=0.6,history=256,until=0.9]",
    ]
    with pytest.raises(LeanError, match="prune is 1.5"):
        parse_method("diet-random[prune=1.5]")
    assert parse_method("diet-random").expected_share == pytest.approx(0.75 * 0.5)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_inherits_from_two_others(name: str) -> None:
    others = [base for base in METHODS[name].__mro__[1:] if base in METHODS.values()]
    assert len(others) <= 1, others


# -- what a chain does -------------------------------------------------------------------------------------------------


def share_mixed(plan: Plan) -> float:
    composites = [plan[b] for b in range(len(plan)) if plan[b].form.constituents > 1]
    return sum(len(b.index) for b in composites) / plan.examples


@pytest.mark.filterwarnings("ignore:.*cannot save anything")
def test_pruning_mixing_and_resizing_each_do_their_part() -> None:
    lean = attached("el2n[prune=0.25] + mixtrain-cutmix + progressive-resizing", epochs=10)
    gone = lean.ledger["0.pruned"]
    assert int(gone.sum()) == 16
    sizes, mixed = [], []
    while not lean.finished:
        train(lean, lean.epoch + 1)
        assert int(lean.ledger["trained"][gone].sum()) == 0
        sizes.append(int(lean.ledger["size"][~gone].unique()))
        mixed.append(share_mixed(lean.plan))
        assert lean.plan.cost == pytest.approx(48 * (1 - mixed[-1] / 2) * lean.plan.forms[0].size)
    assert sizes == sorted(sizes) and sizes[0] == 25 and sizes[-1] == 100
    assert mixed[:2] == [0.0, 0.0] and max(mixed) > 0.3  # MixTrain's rules hold at every size
    assert lean.report()["el2n/pruned"] == 0.25 and "mixtrain-cutmix/L_mid" in lean.report()


def test_every_method_works_between_start_and_until_only() -> None:
    planner = Planner("random-backprop[keep=0.5,start=0.25,until=0.75]", Ledger(40))
    kept = [planner.plan(Moment(e, e / 8, 8, 8), generator(0, e)).examples for e in range(8)]
    assert kept == [40, 40, 20, 20, 20, 20, 40, 40]


@pytest.mark.filterwarnings("ignore:.*cannot save anything")
def test_pruned_examples_come_back_after_until() -> None:
    lean = attached("el2n[until=0.5]", epochs=4)
    train(lean)
    assert lean.ledger["trained"][lean.ledger["0.pruned"]].unique().tolist() == [2]
    assert lean.ledger["trained"][~lean.ledger["0.pruned"]].unique().tolist() == [4]


def test_two_of_a_kind_keep_their_own_state() -> None:
    ledger = Ledger(100)
    planner = Planner("rs2[keep=0.6] + rs2[keep=0.5]", ledger)
    for epoch in range(8):
        plan = planner.plan(Moment(epoch, epoch / 8, 8, 10), generator(0, epoch))
        assert plan.examples == 30 and plan.order.unique().numel() == 30
    assert not torch.equal(planner.states[0]["queue"], planner.states[1]["queue"])
    planner = Planner("infobatch[until=1] + infobatch[until=1]", Ledger(4000))
    loss = torch.linspace(0.0, 1.0, 4000)
    planner.ledger.record(torch.arange(4000), loss, loss < 0.5, leantrain.Form(), 0)
    plan = planner.plan(Moment(1, 0.1, 10, 20), generator(0, 1))
    assert plan.weight is not None
    assert set(plan.weight.tolist()) == {1.0, 2.0, 4.0}  # the second one's mean is of what the first one left
    assert float(plan.weight.sum()) == pytest.approx(4000, rel=0.1)


def test_sizes_of_two_that_resize_multiply() -> None:
    lean = attached("input-scaling[size=12] + progressive-resizing", epochs=6)
    train(lean, 0)
    assert lean.plan.forms[0].size == pytest.approx((6 / SIDE) ** 2)
    train(lean)
    assert lean.plan.forms[0].size == pytest.approx((12 / SIDE) ** 2)


def test_sizes_of_methods_that_never_meet_are_not_tried_together() -> None:
    method = chain("input-scaling[size=8,until=0.5] + input-scaling[size=12,start=0.5]")
    assert {form.size for form in method.forms(SIDE)} == {(8 / SIDE) ** 2, (12 / SIDE) ** 2}
    lean = attached(str(method), epochs=4)
    sizes = []
    while not lean.finished:
        train(lean, lean.epoch + 1)
        sizes.append(lean.plan.forms[0].size)
    assert sizes == [(8 / SIDE) ** 2] * 2 + [(12 / SIDE) ** 2] * 2


def test_weights_stay_with_their_examples_inside_composites() -> None:
    planner = Planner("infobatch + mixtrain-mixup[select=all]", Ledger(40))
    ledger = planner.ledger
    loss = torch.where(torch.arange(40) < 20, 0.1, 2.0)
    ledger.record(torch.arange(40), loss, loss < 1, leantrain.Form(), 0)
    plan = planner.plan(Moment(1, 0.1, 10, 8), generator(0, 1))
    assert plan.weight is not None and share_mixed(plan) > 0.8
    assert torch.equal(plan.weight, torch.where(plan.order < 20, 2.0, 1.0))


def test_metrics_of_the_same_name_are_told_apart() -> None:
    lean = attached("oracle-skip + mixtrain-cutmix", epochs=4)
    train(lean)
    names = lean.report().keys()
    assert {"oracle-skip/skipped", "mixtrain-cutmix/skipped", "mixtrain-cutmix/L_mid"} <= names
    twice = attached("oracle-skip[until=0.5] + oracle-skip", epochs=4)
    train(twice)
    assert "oracle-skip-2/skipped" in twice.report() and "oracle-skip/skipped" not in twice.report()


def test_a_method_that_measures_looks_at_what_the_others_left_only() -> None:
    lean = attached("rs2[keep=0.25] + oracle-skip", epochs=6)
    asked: list[int] = []
    lean.model.register_forward_hook(lambda module, given, out: asked.append(0 if module.training else len(given[0])))
    train(lean)
    assert 0 < sum(asked) <= 5 * 16  # of the quarter that an epoch may train on, and never more


def test_mixing_goes_on_behind_a_method_that_draws_anew_each_epoch() -> None:
    planner = Planner("rs2[keep=0.5] + mixtrain-cutmix[select=region1]", Ledger(200))
    loss = torch.where(torch.arange(200) < 160, 0.1, 3.0)
    shares = []
    for epoch in range(10):
        plan = planner.plan(Moment(epoch, epoch / 10, 10, 10), generator(0, epoch))
        for batch in map(plan.__getitem__, range(len(plan))):
            planner.ledger.record(batch.index, loss[batch.index], loss[batch.index] < 1, batch.form, epoch)
        shares.append(share_mixed(plan))
    # An example that had no turn stays as it was judged the last time; so four of five are mixed in every later epoch.
    assert all(share > 0.7 for share in shares[4:])


def test_the_random_control_mixes_as_many_as_the_rule_behind_pruning_too() -> None:
    counts = []
    for select in ("region1", "random"):
        planner = Planner(f"random-backprop[keep=0.5] + mixtrain-cutmix[select={select}]", Ledger(200))
        loss = torch.where(torch.arange(200) < 100, 0.1, 3.0)
        for epoch in range(3):
            planner.ledger.record(torch.arange(200), loss, loss < 1, leantrain.Form(), epoch - 1)
            plan = planner.plan(Moment(epoch, epoch / 10, 10, 10), generator(7, epoch))
        counts.append(share_mixed(plan))
    assert counts[0] == pytest.approx(counts[1], abs=0.02) and counts[0] > 0.3


def test_stale_choices_hold_their_share_where_some_losses_are_unknown() -> None:
    planner = Planner("selective-backprop[keep=0.25,stale=1]", Ledger(2000))
    planner.ledger.observe(torch.arange(1000), torch.rand(1000), torch.zeros(1000, dtype=torch.bool))
    plan = planner.plan(Moment(1, 0.1, 10, 50), generator(0))
    assert plan.examples == pytest.approx(500, abs=70)


def test_forms_that_combine_are_shown_and_paid_for_as_they_are() -> None:
    class Middle(leantrain.FormKind):
        """The middle half."""

        name = "middle-half"

        @classmethod
        def size(cls, value: float) -> float:
            return value * value

        def show(self, inputs: Any, value: float, batch: Any, ask: Any) -> leantrain.Answer:
            return ask(inputs[..., 4:12, 4:12])

    @dataclass(frozen=True)
    class Halves(leantrain.Method):
        name: ClassVar[str] = "halves"
        after_mixing: ClassVar[bool] = True

        def forms(self, side: int) -> tuple[leantrain.Form, ...]:
            return (leantrain.Form().also("middle-half", 0.5),)

        def draft(self, draft: Any, state: Any, ledger: Any, moment: Any, rng: Any) -> Any:
            return draft.show("middle-half", 0.5), state

    leantrain.register_form(Middle)
    lean = leantrain.attach(network(), images(), Halves() + "input-scaling[size=12]", epochs=1)
    seen: list[tuple[int, ...]] = []
    lean.model.register_forward_pre_hook(lambda module, given: seen.append(tuple(given[0].shape[-2:])))
    train(lean)
    assert set(seen) == {(6, 6)}  # three quarters of the half that is left
    assert lean.cost == pytest.approx(64 * (6 / 16) ** 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: chain(leantrain.RS2), "method is the class RS2"),
        (lambda: chain([leantrain.RS2()]), "method is of the type list"),
        (lambda: leantrain.RS2() + None, "method is of the type NoneType"),
        (lambda: leantrain.RS2(keep="0.5"), "keep is '0.5', but must be a number"),
        (lambda: leantrain.RS2(until=None), "until is None"),
        (lambda: Chain(methods=(leantrain.RS2(),), until=0.5), "give them to its methods"),
        (lambda: leantrain.preset("mine", "Two.", leantrain.EL2N, leantrain.InfoBatch), "with an option 'prune'"),
        (lambda: leantrain.attach(network(), images(), 3, epochs=1), "method is 3, but must be a method or its text"),
    ],
)  # fmt: skip
def test_wrong_types_get_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        call()


def test_text_is_taken_wherever_a_method_is() -> None:
    assert str(leantrain.RS2() + "infobatch") == str(chain("rs2", "infobatch")) == "rs2 + infobatch"
    assert leantrain.SGD is leantrain.Plain


def test_a_preset_keeps_its_methods_own_windows() -> None:
    kind = leantrain.preset("mine", "Prunes and grows.", leantrain.InfoBatch, leantrain.ProgressiveResizing)
    assert [part.until for part in kind().methods] == [0.875, 1.0]
    assert [part.until for part in kind(until=0.5).methods] == [0.5, 0.5]


def test_warnings_say_what_is_not_worth_it_and_nothing_that_only_the_data_can_tell() -> None:
    assert "does nothing in 3 epochs" in chain("rs2[start=0.9]").warnings(3)[0]
    assert chain("el2n + infobatch + mixtrain-cutmix").warning(16) is None  # may well save
    assert "7.0 epochs for the scores" in (chain("el2n + random-backprop[keep=0.9]").warning(16) or "")
    assert chain("random-backprop[until=0.5]").expected_share == pytest.approx(0.75)


@pytest.mark.filterwarnings("ignore:.*cannot save anything")
def test_pruned_is_reported_only_while_it_is() -> None:
    lean = attached("prune[start=0.5]", epochs=8)
    shares = []
    while not lean.finished:
        train(lean, lean.epoch + 1)
        shares.append(lean.report()["pruned"])
    assert shares == [0.0] * 4 + [0.25] * 4


def test_the_expected_cost_of_a_chain_is_what_it_costs() -> None:
    for text, share in (
        ("random-backprop[keep=0.5] + input-scaling", 0.5 / 1.4**2),
        ("minibatch-skip[skip=0.25] + random-backprop[keep=0.8]", 0.6),
        ("random-backprop[keep=0.5,until=0.5]", 0.75),
    ):
        method = parse_method(text)
        assert chain(method).expected_share == pytest.approx(share)
        cost = expected_cost(method, examples=10_000, epochs=20, batch_size=50, side=140)
        assert cost == pytest.approx(20 * share, rel=0.05)
    el2n = parse_method("el2n + progressive-resizing")
    assert expected_cost(el2n, examples=10_000, epochs=40, batch_size=50, side=32) == pytest.approx(
        7 + 40 * 0.75 * 0.523, rel=0.05
    )
    assert expected_cost(el2n, examples=100, epochs=40, batch_size=50, side=32, budget=0.5) == 20


@pytest.mark.parametrize(
    "method",
    [
        "infobatch + progressive-resizing",
        "random-backprop[keep=0.7] + mixtrain-cutmix[until=0.8] + progressive-resizing",
        "rs2 + input-scaling[size=12]",
        "minibatch-skip + mixtrain-mixup",
    ],
)
def test_a_budget_is_met_and_progress_grows_to_one(method: str) -> None:
    lean = attached(method, epochs=8, budget=0.5, n=128)
    progress = [0.0]
    optimizer = torch.optim.SGD(lean.model.parameters(), lr=0.05)
    while not lean.finished:
        for batch in lean.loader(8):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            progress.append(lean.progress)
    assert progress == sorted(progress) and progress[-1] == 1.0
    assert lean.cost == pytest.approx(0.5 * 8 * 128, abs=5)


CUT = [
    "infobatch + progressive-resizing",
    "el2n[prune=0.25] + mixtrain-cutmix[until=0.8] + progressive-resizing",
    "selective-backprop[keep=0.4] + progressive-resizing",
    "rs2[keep=0.6] + rs2[keep=0.7] + mixtrain-mixup",
    "diet-sb[keep=0.5] + input-scaling[size=12]",
]


@pytest.mark.filterwarnings("ignore:.*cannot save anything")
@pytest.mark.parametrize("method", CUT)
@pytest.mark.parametrize("stop", [2, 9])
def test_a_chain_cut_inside_an_epoch_goes_on_bit_for_bit(method: str, stop: int) -> None:
    whole, cut, resumed = (attached(method) for _ in range(3))
    train(whole)
    train(cut, stop_after=stop)
    file = io.BytesIO()
    torch.save({"model": cut.model.state_dict(), "lean": cut.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["lean"])
    train(resumed)
    for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert resumed.cost == pytest.approx(whole.cost, abs=1e-6)
    for field in whole.ledger:
        assert torch.equal(resumed.ledger[field].nan_to_num(-1), whole.ledger[field].nan_to_num(-1)), field


@pytest.mark.parametrize("method", ["mixtrain-cutmix", "infobatch", "rs2", "selective-backprop", "input-scaling"])
def test_plain_in_a_chain_changes_nothing(method: str) -> None:
    weights = []
    for text in (method, f"plain + {method}"):
        lean = attached(text, epochs=4)
        train(lean)
        weights.append(copy.deepcopy(lean.model.state_dict()))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# -- any chain, any ledger ---------------------------------------------------------------------------------------------

OPTIONS = {
    "plain": [""],
    "mixtrain-cutmix": ["", "select=all", "select=random", "constituents=3", "keep_steps=true", "region3=skip,k=2"],
    "mixtrain-mixup": ["", "select=all-region3", "include_last=true,average=ema"],
    "progressive-resizing": ["", "first=0.25,small=0.5"],
    "input-scaling": ["", "size=8"],
    "random-backprop": ["", "keep=0.01", "keep=0.3,per_batch=true"],
    "rs2": ["", "keep=0.9"],
    "infobatch": ["", "prune=0.9"],
    "selective-backprop": ["", "stale=1", "stale=1,per_batch=true"],
    "autoassist": [""],
    "el2n": ["", "prune=0.9"],
    "grand": ["hardest=0.3"],
    "prune": [""],
    "diet-sb": [""],
    "diet-random": [""],
    "minibatch-skip": ["", "skip=0.9"],
    "cutmix": ["", "chance=0.5"],
    "fixres": ["", "tune=0.5"],
    "freezing": ["", "share=0.7"],
    "facility-location": ["", "keep=0.1"],
    "oracle-skip": [""],
    "prune-train": ["", "grow=true"],
}


def built(text: str) -> Chain | str:
    """The chain, or why it is refused."""
    try:
        return chain(parse_method(text))
    except LeanError as refused:
        if "cannot be combined" not in str(refused):
            raise
        return str(refused)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """A chain of one to four methods, each with some options and a window; such that are refused are drawn again."""
    texts = []
    for name in draw(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=4)):
        options = [draw(st.sampled_from(OPTIONS[name]))]
        if draw(st.booleans()):
            start = draw(st.sampled_from((0.0, 0.2, 0.5)))
            options.append(f"start={start},until={draw(st.sampled_from((0.6, 0.9, 1.0)))}")
        texts.append(f"{name}[{','.join(filter(None, options))}]")
    made = built(" + ".join(texts))
    return made if isinstance(made, Chain) else draw(chains())


def make_planner(method: Chain, n: int, seed: int) -> Planner:
    planner = Planner(method, Ledger(n))
    scores = torch.rand(n, generator=generator(seed, "scores"))
    for place, one in method.having(NeedsScores):
        view, given_scores = method.views(planner.ledger)[place], ScoresGiven(0.0, 0.0, reused=True)
        planner.states[place], _ = one.use_scores(
            planner.states[place], view, scores, torch.arange(n) % 3, given_scores
        )
    return planner


def record_randomly(ledger: Ledger, plan: Plan, seed: int) -> None:
    rng = generator(seed, "losses", plan.epoch)
    for batch in map(plan.__getitem__, range(len(plan))):
        loss = torch.rand(len(batch.index), generator=rng) * 5
        loss[torch.rand(len(loss), generator=rng) < 0.02] = math.inf  # a model may go wrong for a moment
        ledger.record(batch.index, loss, torch.rand(len(loss), generator=rng) < 0.6, batch.form, plan.epoch)


@settings(max_examples=100, deadline=None)
@given(chains(), st.integers(2, 70), st.integers(1, 16), st.integers(0, 10_000))
def test_any_chain_on_any_ledger(method: Chain, n: int, batch_size: int, seed: int) -> None:
    epochs = 6
    planner, twin = (make_planner(method, n, seed) for _ in range(2))
    never = torch.zeros(n, dtype=torch.bool)
    for place, _ in method.having(NeedsScores):
        if (method.methods[place].start, method.methods[place].until) == (0.0, 1.0):
            never |= method.views(planner.ledger)[place]["pruned"]
    left = n if bool(never.all()) else int((~never).sum())
    for epoch in range(epochs):
        moment = Moment(epoch, epoch / epochs, epochs, batch_size, 32)
        plan = planner.plan(moment, generator(seed, "plan", epoch))
        check_plan(plan, n)
        if left == int((~never).sum()):
            assert not never[plan.order.long()].any() or plan.examples == 1  # what is pruned is not trained on
        if not any(one.active(moment) for one in method.methods):
            assert plan.examples == n and plan.cost == pytest.approx(n) and plan.weight is None
        assert (plan.thinning is not None) <= any(isinstance(one, Thins) for one in method.methods)
        assert any(f.constituents > 1 for f in plan.forms) <= any(isinstance(one, Mixes) for one in method.methods)
        # A twin that is saved and loaded before every epoch plans the same.
        twin = reloaded(twin, method, n, seed)
        again = twin.plan(moment, generator(seed, "plan", epoch))
        assert torch.equal(plan.order, again.order) and plan.forms == again.forms
        assert (plan.weight is None) == (again.weight is None)
        if plan.weight is not None and again.weight is not None:
            assert torch.equal(plan.weight, again.weight)
        for one in (planner, twin):
            record_randomly(one.ledger, plan, seed)


def check_plan(plan: Plan, n: int) -> None:
    assert 1 <= plan.examples <= n
    assert plan.order.unique().numel() == plan.examples, "an example twice in an epoch"
    assert int(plan.order.min()) >= 0 and int(plan.order.max()) < n
    batches = [plan[b] for b in range(len(plan))]
    assert all(len(b.index) % b.form.constituents == 0 for b in batches)
    if plan.thinning is None:
        assert sum(b.cost for b in batches) == pytest.approx(plan.cost)
        assert plan.cost <= n * (1 + 1e-9)
    if plan.weight is not None:
        assert plan.weight.isfinite().all() and (plan.weight > 0).all() and len(plan.weight) == plan.examples


def reloaded(planner: Planner, method: Chain, n: int, seed: int) -> Planner:
    file = io.BytesIO()
    torch.save({"states": planner.states, "ledger": planner.ledger.state_dict()}, file)
    file.seek(0)
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    fresh = make_planner(method, n, seed)
    fresh.states = saved["states"]
    fresh.ledger.load_state_dict(saved["ledger"])
    return fresh


# -- all pairs ---------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "combining.md"
WITH = {
    "prune": "prune[by=loss]",
    "input-scaling": "input-scaling[size=12]",
    "prune-train": "prune-train[threshold=0.2]",
}
REASONS = {
    "both mix": "a", "both decide": "b", "decides inside": "c", "works on single": "d", "parts of single": "e",
    "both remove": "f",
}  # fmt: skip
"""The letter under which docs/combining.md explains a refusal, by the words in it."""


def pair(first: str, second: str) -> str:
    return f"{WITH.get(first, first)} + {WITH.get(second, second)}"


def cell(first: str, second: str) -> str:
    made = built(pair(first, second))
    return "✓" if isinstance(made, Chain) else next(mark for words, mark in REASONS.items() if words in made)


def test_the_table_of_all_pairs_in_the_docs_is_right() -> None:
    names = [name for name in METHODS if METHODS[name].__module__.startswith("leantrain.")]
    lines = [f"| first ↓, then → | {' | '.join(f'`{name}`' for name in names)} |", "| --- |" + " :-: |" * len(names)]
    lines += [f"| `{first}` | {' | '.join(cell(first, second) for second in names)} |" for first in names]
    before, mark, rest = PAGE.read_text().partition("<!-- pairs -->\n")
    _, end, after = rest.partition("<!-- end -->")
    page = before + mark + "\n".join(lines) + "\n" + end + after
    if os.environ.get("LEANTRAIN_WRITE_DOCS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run `make combining` to write the table anew"


LIKE = {"mixtrain-mixup": "mixtrain-cutmix", "mixup": "cutmix", "prune": "el2n", "grand": "el2n"}
LIKE |= {"glister": "facility-location", "grand-coreset": "facility-location"}
"""Methods that differ from another one in an operator or a score only, and so meet others as that one does."""
MET = [name for name in METHODS if name not in LIKE]


@pytest.mark.filterwarnings("ignore:.*cannot save anything")
@pytest.mark.parametrize("first", MET)
def test_every_pair_that_is_not_refused_trains(first: str) -> None:
    for second in MET:
        if isinstance(built(pair(first, second)), Chain):
            lean = attached(pair(first, second), epochs=3, n=32, side=24)  # of which lean shows two thirds
            train(lean)
            assert lean.finished and lean.progress == (1.0 if lean._chain.end == 1.0 else pytest.approx(1.0, abs=0.4))
            assert all(p.isfinite().all() for p in lean.model.parameters())

"""Two and four processes that train together: real ones, under DistributedDataParallel with gloo."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset

import leantrain
from leantrain.errors import LeanError, LeanWarning

RANKS = 2
PATIENCE = 120  # seconds; ranks that are out of step wait for each other for ever
CUTMIX, MIXUP = "mixtrain-cutmix[select=all]", "mixtrain-mixup[select=all]"
INSIDE = ("selective-backprop[history=64]", "autoassist", "infobatch + autoassist + progressive-resizing")
"""Those that decide inside the epoch, and a chain with one."""
CHAIN = "rs2[keep=0.8] + infobatch + mixtrain-cutmix[select=all] + progressive-resizing"
"""Composites from the first epoch on."""


# -- the ranks ---------------------------------------------------------------------------------------------------------


class Ranks:
    """Processes in one group, each of which runs what it is given and hands back what that returns."""

    def __init__(self, folder: Path, number: int = RANKS) -> None:
        self.folder = folder
        self.number = number
        self.groups = 0
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            worked, answer = pipe.recv() if pipe.poll(PATIENCE) else (False, f"no answer in {PATIENCE} s")
            if not worked:
                self.stop()  # the ranks may be out of step now
                pytest.fail(f"rank {rank}: {answer}")
            answers.append(copy.deepcopy(answer))
        return answers

    def start(self) -> None:
        import torch._dynamo  # noqa: F401 - DistributedDataParallel's first step does, in every process

        context = multiprocessing.get_context("fork")  # torch is imported already
        self.groups += 1
        for rank in range(self.number):
            ours, theirs = context.Pipe()
            store = str(self.folder / f"store{self.groups}")
            process = context.Process(target=serve, args=(rank, self.number, store, theirs))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.pipes = [], []


def serve(rank: int, ranks: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    with contextlib.suppress(EOFError):  # the tests are gone
        while True:
            function, arguments = pipe.recv()
            try:
                pipe.send((True, function(*copy.deepcopy(arguments))))  # what comes through a pipe is shared memory
            except Exception:
                pipe.send((False, traceback.format_exc()))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(tmp_path_factory.mktemp("group"))
    yield group
    group.stop()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(tmp_path_factory.mktemp("four"), 4)
    yield group
    group.stop()


# -- what they run, and a single process too ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A small run."""

    method: str = "plain"
    examples: int = 50
    batch_size: int = 7
    epochs: int = 2
    parts: int = 1
    workers: int = 0
    normalised: bool = False


def images(n: int) -> TensorDataset:
    """Three classes of noisy images, told apart by where they are bright; some labels are wrong."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = 0.7 * torch.randn(n, 1, 8, 8, generator=rng)
    x += torch.eye(3)[y].repeat_interleave(3, 1)[:, :8].view(n, 1, 1, 8)
    wrong = torch.rand(n, generator=rng) < 0.15
    return TensorDataset(x, torch.where(wrong, (y + 1) % 3, y))


def network(normalised: bool) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6) if normalised else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


class Training:
    """A loop as a user writes it: on several ranks with DistributedDataParallel, else without."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.module = network(setting.normalised)
        model = self.module
        if distributed.is_initialized():
            model = DistributedDataParallel(
                model, find_unused_parameters=setting.method.startswith(("fixres", "freezing"))
            )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = self.optimizer if "prune-train" in setting.method else None
        self.lean = leantrain.attach(
            model, images(setting.examples), setting.method, epochs=setting.epochs, optimizer=optimizer
        )
        self.seen: dict[str, list[Any]] = {"gradients": [], "plans": [], "progress": [], "parts": [], "recorded": []}

    def run(self, stop: int | None = None) -> Training:
        """To the end, or for `stop` steps."""
        lean, setting = self.lean, self.setting
        workers = {"num_workers": setting.workers, "multiprocessing_context": "fork"} if setting.workers else {}
        loader = lean.loader(setting.batch_size, **workers)
        steps = 0
        while not lean.finished:
            for batch in loader:
                self.step(batch)
                steps += 1
                if steps == stop:
                    return self
            lean.report()
            self.seen["plans"].append(lean.plan.state_dict())
            self.seen["recorded"].append(lean.ledger.state_dict())
        return self

    def step(self, batch: leantrain.Batch) -> None:
        parts = list(batch.chunks(self.setting.parts))
        for part in parts:
            self.lean.loss(part).backward()
        self.seen["parts"].append([0 if part.padding else len(part.index) for part in parts])
        self.seen["progress"].append(self.lean.progress)
        self.seen["gradients"].append([None if p.grad is None else p.grad.clone() for p in self.module.parameters()])
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * (1 - self.lean.progress)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def outcome(self) -> dict[str, Any]:
        return {**self.seen, **self.state()}

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: value.clone() for name, value in self.module.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "lean": self.lean.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> Training:
        self.lean.load_state_dict(state["lean"])  # first, as the model may have lost channels
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return self


def train(setting: Setting) -> dict[str, Any]:
    return Training(setting).run().outcome()


def train_until(setting: Setting, stop: int) -> dict[str, Any]:
    return Training(setting).run(stop).state()


def go_on(setting: Setting, state: dict[str, Any]) -> dict[str, Any]:
    return Training(setting).load(state).run().outcome()


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes are equal to the bit; not-a-number equals itself."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(*(torch.nan_to_num(t, nan=-1.0) for t in (one, other)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# -- the promises ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["cutmix", "mixup"])
def test_all_ranks_hold_the_same_ledger_and_the_same_plan_in_every_epoch(ranks: Ranks, operator: str) -> None:
    one, other = ranks(train, Setting(f"mixtrain-{operator}", 61, epochs=5, normalised=True))
    assert same(one["plans"], other["plans"])
    assert same(one["recorded"], other["recorded"])
    assert same(one["lean"], other["lean"])
    assert one["progress"] == other["progress"]
    assert one["progress"][-1] == 1.0
    assert len(one["plans"]) == 5
    assert any("composite" in dict(parts) for parts in one["plans"][-1]["forms"])  # it did come to composites
    parameters = [name for name, _ in network(True).named_parameters()]
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in parameters)


@pytest.mark.parametrize("method", ["plain", "random-backprop[keep=0.7]", CUTMIX, MIXUP, "progressive-resizing", CHAIN])
def test_unequal_parts_give_the_gradient_of_the_whole_batch(ranks: Ranks, method: str) -> None:
    setting = Setting(method)
    both = ranks(train, setting)
    alone = train(setting)
    counts = [[sum(parts) for parts in rank["parts"]] for rank in both]
    assert counts[0] != counts[1]
    assert [a + b for a, b in zip(*counts, strict=True)] == [sum(parts) for parts in alone["parts"]]
    for rank in both:
        torch.testing.assert_close(rank["gradients"], alone["gradients"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(rank["model"], alone["model"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            rank["lean"]["ledger"], alone["lean"]["ledger"], rtol=1e-4, atol=1e-6, equal_nan=True
        )
        assert rank["lean"]["cost"] == alone["lean"]["cost"]
        assert rank["lean"]["examples"] == alone["lean"]["examples"]
        assert rank["progress"] == alone["progress"]


def test_what_the_oracle_measures_is_shared_out_over_the_ranks(ranks: Ranks) -> None:
    one, other = ranks(train, Setting("oracle-skip", 61, epochs=6, normalised=True))
    assert same(one["plans"], other["plans"])
    assert same(one["lean"], other["lean"])
    assert min(len(plan["order"]) for plan in one["plans"]) < 61  # it did come to skipping
    assert one["lean"]["ledger"]["loss"].isfinite().all()


CORESETS = ["facility-location[every=2]", "glister[every=2,held=0.2]"]
SLIMMING = ["prune-train[threshold=0.3]", "prune-train[grow=true,begin=0.4,most=1.0]"]


@pytest.mark.parametrize(
    "method", [INSIDE[0], INSIDE[2], "mixtrain-cutmix", "fixres[tune=0.4]", "freezing + lean", *CORESETS, *SLIMMING]
)
def test_one_two_and_four_processes_train_the_same_to_rounding(ranks: Ranks, four: Ranks, method: str) -> None:
    setting = Setting(method, 61, 12, epochs=4)
    alone = train(setting)
    for group in (ranks, four):
        first, *others = group(train, setting)
        assert all(same(first["lean"], other["lean"]) for other in others)
        assert [plan["order"].tolist() for plan in first["plans"]] == [p["order"].tolist() for p in alone["plans"]]
        ledgers = [one["lean"]["ledger"] for one in (first, alone)]
        torch.testing.assert_close(*ledgers, rtol=1e-4, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(first["model"], alone["model"], rtol=1e-4, atol=1e-5)
        assert first["progress"] == alone["progress"]
        assert (first["lean"]["cost"], first["lean"]["examples"]) == (alone["lean"]["cost"], alone["lean"]["examples"])
    if method in SLIMMING:
        shapes = {tuple(gradient.shape for gradient in step) for step in alone["gradients"]}
        assert len(shapes) > 1  # the model has changed on the way


def test_what_is_kept_inside_the_epoch_is_trained_once_over_all_ranks(ranks: Ranks) -> None:
    one, other = ranks(train, Setting("selective-backprop", 61, 12, epochs=3, parts=2))
    steps = [sum(map(sum, rank["parts"])) for rank in (one, other)]
    assert sum(steps) == one["lean"]["examples"] == int(one["lean"]["ledger"]["trained"].sum())
    assert sum(steps) < 3 * 61


@pytest.mark.parametrize("method", [*INSIDE[:2], SLIMMING[0]])
def test_four_processes_go_on_as_two_and_two_as_four(ranks: Ranks, four: Ranks, method: str) -> None:
    setting = Setting(method, 60, 12, epochs=4)
    whole = train(setting)
    for before, after in ((four, ranks), (ranks, four)):
        cut, *others = before(train_until, setting, 8)
        assert all(same(cut, other) for other in others)
        for resumed in after(go_on, setting, cut):
            torch.testing.assert_close(resumed["model"], whole["model"], rtol=1e-4, atol=1e-5)
            assert resumed["lean"]["examples"] == whole["lean"]["examples"]


@pytest.mark.parametrize("method", INSIDE[:2])
def test_a_run_that_decides_inside_goes_on_to_the_bit_with_as_many_processes(ranks: Ranks, method: str) -> None:
    setting = Setting(method, 60, 12, epochs=3, normalised=True)
    whole, _ = ranks(train, setting)
    cut, _ = ranks(train_until, setting, 5)
    assert cut["lean"]["leftover"] is not None
    resumed, _ = ranks(go_on, setting, cut)
    assert same(resumed["lean"], whole["lean"])
    assert same(resumed["model"], whole["model"])


def sayings() -> dict[str, list[str]]:
    """What a loop is told that gets several processes wrong."""
    told: dict[str, list[str]] = {}

    def listen(name: str, function: Callable[[], Any]) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                function()
            except LeanError as error:
                told[name] = [str(error)]
                return
        told[name] = [str(one.message) for one in caught if issubclass(one.category, LeanWarning)]

    def loop(model: nn.Module, wrapped: nn.Module | None = None, method: str = "plain", **size: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if method == "prune-train" else None
        lean = leantrain.attach(model, images(64), method, epochs=1, optimizer=optimizer)
        lean.model = wrapped or model
        next(iter(lean.loader(**size)))

    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.fsdp import fully_shard

    listen("bare", lambda: loop(network(False), batch_size=32))
    listen("wrapped", lambda: loop(DistributedDataParallel(network(False)), batch_size=32))
    later = network(False)
    listen("wrapped after", lambda: loop(later, DistributedDataParallel(later), batch_size=32))
    listen("divided twice", lambda: loop(DistributedDataParallel(network(False)), batch_size=8))
    listen("per rank", lambda: loop(DistributedDataParallel(network(False)), batch_size_per_rank=8))
    listen("waits", lambda: loop(DistributedDataParallel(network(False)), method="fixres", batch_size=32))
    listen("changes a bare one", lambda: loop(network(False), method="prune-train", batch_size=32))
    hooked = DistributedDataParallel(network(False))
    hooked.register_comm_hook(None, allreduce_hook)
    listen("changes a hooked one", lambda: loop(hooked, method="prune-train", batch_size=32))
    listen("sharded", lambda: loop(fully_shard(network(False)), batch_size=32))
    listen("sharded after", lambda: loop(later, fully_shard(network(False)), batch_size=32))
    return told


def test_a_loop_that_gets_several_processes_wrong_is_told(ranks: Ranks) -> None:
    for told in ranks(sayings):
        assert "not wrapped in DistributedDataParallel" in told["bare"][0]
        assert "say batch_size_per_rank=8" in told["divided twice"][0]
        assert "wrap the model with find_unused_parameters=True" in told["waits"][0]
        assert "no such wrapper is in sight; wrap the model before attach" in told["changes a bare one"][0]
        assert "has a hook for its communication" in told["changes a hooked one"][0]
        assert all("does not support; wrap it in Distr" in told[name][0] for name in ("sharded", "sharded after"))
        assert not any(told[name] for name in ("wrapped", "wrapped after", "per rank"))


@pytest.mark.parametrize("method", ["plain", CUTMIX])
def test_a_rank_without_inputs_keeps_step_and_counts_for_nothing(ranks: Ranks, method: str) -> None:
    setting = Setting(method, examples=6, batch_size=1)
    one, other = ranks(train, setting)
    alone = train(setting)
    assert all(parts == [0] for parts in other["parts"])
    assert same(one["lean"], other["lean"])
    torch.testing.assert_close(one["model"], alone["model"])
    torch.testing.assert_close(one["lean"]["ledger"], alone["lean"]["ledger"], equal_nan=True)
    assert one["lean"]["examples"] == 12


@pytest.mark.parametrize("method", ["plain", CUTMIX, "mixtrain-mixup", "mixtrain-mixup + progressive-resizing"])
def test_every_example_is_recorded_once_an_epoch(ranks: Ranks, method: str) -> None:
    one, _ = ranks(train, Setting(method, 37, 5, epochs=4))
    for epoch, ledger in enumerate(one["recorded"]):
        assert (ledger["trained"] == epoch + 1).all()
        assert (ledger["epoch"] == epoch).all()
        assert ledger["loss"].isfinite().all()


@pytest.mark.parametrize("method", ["plain", CUTMIX])
@pytest.mark.parametrize("parts", [2, 3])
def test_accumulated_parts_stay_in_step_where_a_rank_has_fewer_inputs(ranks: Ranks, method: str, parts: int) -> None:
    setting = Setting(method, examples=22, batch_size=3, parts=parts)  # 2 inputs on one rank, 1 on the other
    one, other = ranks(train, setting)
    alone = train(setting)
    assert [len(p) for p in one["parts"]] == [len(p) for p in other["parts"]]
    assert any(0 in p for p in other["parts"])
    assert one["progress"] == other["progress"]
    torch.testing.assert_close(one["model"], alone["model"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(one["lean"]["ledger"], alone["lean"]["ledger"], rtol=1e-4, atol=1e-6, equal_nan=True)
    assert one["lean"]["cost"] == pytest.approx(alone["lean"]["cost"])


@pytest.mark.parametrize("operator", ["cutmix", "mixup"])
def test_a_run_saved_in_mid_epoch_goes_on_to_the_bit(ranks: Ranks, operator: str) -> None:
    setting = Setting(f"mixtrain-{operator}", 60, epochs=4)
    whole, _ = ranks(train, setting)
    cut, of_the_other = ranks(train_until, setting, 21)
    assert same(cut, of_the_other)
    assert cut["lean"]["plan"]["epoch"] == 2
    assert 0 < cut["lean"]["done"] < len(cut["lean"]["plan"]["form_of"])
    for resumed in ranks(go_on, setting, cut):
        assert same(resumed["lean"], whole["lean"])
        assert same(resumed["model"], whole["model"])


def test_a_run_of_two_ranks_can_go_on_in_one_process(ranks: Ranks) -> None:
    setting = Setting(CUTMIX, 60, epochs=2)
    whole, _ = ranks(train, setting)
    cut, _ = ranks(train_until, setting, 6)
    alone = go_on(setting, cut)
    torch.testing.assert_close(alone["model"], whole["model"], rtol=1e-4, atol=1e-6)
    assert same(alone["plans"][-1], whole["plans"][-1])


def test_workers_change_nothing(ranks: Ranks) -> None:
    without = ranks(train, Setting("mixtrain-cutmix", epochs=4))
    assert same(ranks(train, Setting("mixtrain-cutmix", epochs=4, workers=2)), without)


class Drawn(Dataset[tuple[Tensor, int]]):
    """Augments at random."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(4), index % 2


def draw() -> Tensor:
    lean = leantrain.attach(nn.Linear(4, 2), Drawn(), epochs=1)
    return torch.cat([batch.inputs for batch in lean.loader(8, num_workers=1)]).flatten()


def test_workers_of_different_ranks_augment_differently(ranks: Ranks) -> None:
    numbers = torch.cat(ranks(draw))
    assert len(numbers) == 64
    assert len(numbers.unique()) == 64


def script() -> list[dict[str, Any] | None]:
    """A script that saves on its first rank alone: between two epochs, and in the middle of one."""
    model = DistributedDataParallel(network(False)) if distributed.is_initialized() else network(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    first = not distributed.is_initialized() or distributed.get_rank() == 0
    loader: Any = torch.utils.data.DataLoader(images(22), 4, shuffle=True)
    lean, loader, scheduler = leantrain.take_over(model, loader, scheduler, epochs=3)
    saved: list[dict[str, Any] | None] = []
    for _ in lean.passes():
        for number, (pictures, _) in enumerate(loader):
            lean.loss(pictures).backward()
            optimizer.step()
            if first and number == 0:
                saved.append(optimizer.state_dict()["param_groups"][0].get("leantrain"))
        scheduler.step()
        if first:
            saved.append(optimizer.state_dict()["param_groups"][0].get("leantrain"))
    return saved


def test_one_rank_alone_saves_the_whole_run_with_its_optimiser(ranks: Ranks) -> None:
    saved, nothing = ranks(script)
    assert nothing == []
    assert saved[::2] == [None] * 3, "in mid-epoch it would wait for the others"
    for epoch, state in enumerate(saved[1::2]):
        assert (state["ledger"]["epoch"] == epoch).all(), "what the other rank recorded is there too"


def watch(setting: Setting) -> list[int]:
    """A loop in which one rank shows how far it is."""
    training = Training(setting)
    loader = training.lean.loader(setting.batch_size)
    shown = []
    while not training.lean.finished:
        for batch in loader:
            loss = training.lean.loss(batch)
            if distributed.get_rank() == 0:
                shown.append(len(loader))
            loss.backward()
    return shown


def test_one_rank_alone_may_ask_for_the_loader_s_length_at_any_step(ranks: Ranks) -> None:
    shown, _ = ranks(watch, Setting(examples=50, batch_size=7, epochs=3))
    assert shown == [8] * 24


def test_attaching_before_the_processes_know_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lean = leantrain.attach(network(False), images(10), epochs=1)
    monkeypatch.setattr("leantrain.lean.world_size", lambda: 2)
    with pytest.raises(LeanError, match="after torch.distributed.init_process_group"):
        iter(lean.loader(5))

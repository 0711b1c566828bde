"""The loop itself: what a person sees, what a slow disk or loader does to it, and that its speed-ups change nothing."""

from __future__ import annotations

import dataclasses
import gc
import os
import pty
import resource
import subprocess
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leantrain.data import ImageSet, augment
from leantrain.forms import Form
from leantrain.run import processes
from leantrain.run.config import TrainConfig
from leantrain.run.display import Quiet
from leantrain.run.estimate import Pace, budget_for_time, expected_time
from leantrain.run.finite import NotFinite, not_finite_in
from leantrain.run.loop import Run
from leantrain.run.setup import default_epochs, load_images, resolve
from program import SMALL, command


def make_run(**settings: Any) -> Run:
    config = TrainConfig(**{"width": 4, "train_limit": 120, "batch_size": 32, "epochs": 2, **settings})
    images = load_images(config)
    return Run(resolve(config, images), images)


def trained(run: Run) -> dict[str, Tensor]:
    run.train()
    return run.module.state_dict()


class Notes(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Slow:
    """A part of a set whose loader takes its time."""

    def __init__(self, part: Any) -> None:
        self.part, self.targets = part, part.targets

    def __len__(self) -> int:
        return len(self.part)

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.4 if epoch >= 0 else 0.0)
        pair: tuple[Tensor, Tensor] = self.part.batch(indices, epoch)
        return pair


def test_waiting_for_data_more_than_for_compute_is_reported() -> None:
    plain = make_run()
    slow: ImageSet = dataclasses.replace(plain.images, train=Slow(plain.images.train))  # type: ignore[arg-type]
    notes = Notes()
    Run(plain.config, slow, display=notes).train_epoch()
    assert any("waiting for data" in text and "--workers" in text for text in notes.said)


def test_a_terminal_gets_bars_with_throughput_and_time_left(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    words = command("train", *SMALL, "--epochs", 3, "--out", tmp_path / "o")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    assert process.wait() == 0
    text = seen.decode(errors="replace")
    for word in ("epoch 3/3", "examples/s", "run, %", "0:00:0"):
        assert word in text


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))  # less than a checkpoint

    words = command("train", *SMALL, "--epochs", 2, "--out", tmp_path / "o")
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "checkpoint.pt' cannot be written" in last
    assert "--out" in last
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["config.yaml", "history", "metrics.jsonl"]


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(precision: str) -> None:
    first, again, other = (trained(make_run(seed=seed, dropout=0.2, precision=precision)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def alike(pace: Pace, forms: Sequence[Form]) -> dict[Form, float]:
    return dict.fromkeys(forms, 0.1)  # whatever its size, an image takes as long


def by_cost(pace: Pace, forms: Sequence[Form]) -> dict[Form, float]:
    return {form: 0.1 * form.size for form in forms}


def test_the_expected_time_knows_how_long_each_size_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(budget=0.5, epochs=40)
    by_scale = {form.value("shrunk"): cost for form, cost in run.lean.expected_costs(run.batch_size).items()}
    assert sorted(by_scale) == [12 / 32, 16 / 32, 24 / 32, 1.0] and sum(by_scale.values()) == pytest.approx(
        20, rel=0.02
    )
    monkeypatch.setattr(Pace, "_tried", alike)
    passes = sum(cost / scale**2 for scale, cost in by_scale.items())
    expected = expected_time(run)
    assert expected.seconds == pytest.approx(120 * passes * 0.1, rel=0.02)
    assert expected.share == pytest.approx(passes / 40, rel=0.02)  # of as many whole images in every epoch


def test_the_expected_share_of_the_time_is_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "_tried", by_cost)
    run = make_run(budget=0.5, epochs=4)
    shares = []
    while not run.finished:
        shares.append(expected_time(run).share)
        run.train_epoch()
    assert len(shares) > 1 and shares == pytest.approx([0.5] * len(shares), rel=0.02)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_share_of_the_time_is_the_budget_that_takes_it(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(budget=share, epochs=40)
    monkeypatch.setattr(Pace, "_tried", by_cost)
    assert budget_for_time(share, Pace(run)) == pytest.approx(share, rel=0.02)  # where time is cost
    monkeypatch.setattr(Pace, "_tried", alike)
    found = budget_for_time(share, Pace(run))
    assert found < 0.8 * share
    assert expected_time(make_run(budget=found, epochs=40)).share == pytest.approx(share, rel=0.02)


def with_gradient(optimizer: torch.optim.Optimizer) -> int:
    return sum(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def test_freezing_is_timed_with_layers_that_do_not_learn() -> None:
    run = make_run(method="freezing[share=0.6]", budget=0.5)
    pace = Pace(run)
    (form,) = run.lean.expected_costs(run.batch_size)
    assert form.value("learning") < 0.5
    learns = []
    pace.optimizer.register_step_pre_hook(lambda one, *_: learns.append(with_gradient(one)))
    for one in (form, Form()):
        pace.seconds(one)
    assert 0 < min(learns) < max(learns) == len(list(run.module.parameters()))


@pytest.mark.parametrize("share", [1e-9, 1e-4])
def test_next_to_no_time_is_next_to_no_budget(share: float) -> None:
    run = make_run(budget=share, epochs=2)
    assert 0 < budget_for_time(share, Pace(run)) < 2 * share


def test_a_network_that_was_tried_is_gone_at_once() -> None:
    run = make_run(budget=0.5)
    pace = Pace(run)
    budget_for_time(0.5, pace)
    held = [weakref.ref(run), weakref.ref(run.module), weakref.ref(pace._model)]
    gc.disable()
    try:
        del run, pace
        assert [one() for one in held] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["infobatch", "mixtrain-cutmix", "selective-backprop", "plain"])
@pytest.mark.parametrize("epochs", [2, 40])
def test_a_method_that_shows_images_whole_takes_as_much_of_the_time_as_of_the_cost(method: str, epochs: int) -> None:
    run = make_run(method=method, budget=0.5, epochs=epochs)
    assert budget_for_time(0.5, Pace(run)) == pytest.approx(0.5, rel=0.02)


def test_trying_how_long_a_step_takes_changes_nothing() -> None:
    tried, untried = make_run(budget=0.5), make_run(budget=0.5)
    before = torch.get_rng_state()
    budget_for_time(0.5, Pace(tried))
    assert torch.get_rng_state().equal(before)
    untouched = trained(untried)
    assert all(torch.equal(untouched[name], tensor) for name, tensor in trained(tried).items())


@pytest.mark.parametrize("method", ["lean", "mixtrain-cutmix", "infobatch + token-dropping", "el2n"])
def test_every_kind_of_method_is_given_a_time(method: str) -> None:
    model = {"model": "test_vit", "optimizer": "adamw", "width": None} if "token" in method else {}
    seconds = expected_time(make_run(method=method, **model)).seconds
    assert 0 < seconds < 600


def test_steps_are_tried_with_as_many_images_as_are_computed_at_once() -> None:
    run = make_run(batch_size=30, accumulate=3, accumulate_batches=2)
    tried = set[int]()
    pace = Pace(run)
    pace._model.register_forward_pre_hook(lambda model, inputs: tried.add(len(inputs[0])))
    pace.seconds()
    assert tried == {10}


def test_trying_steps_does_not_wait_for_other_processes() -> None:
    run = make_run()
    run.module = nn.SyncBatchNorm.convert_sync_batchnorm(run.module)
    pace = Pace(run)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in pace._model.modules())
    assert any(isinstance(module, nn.SyncBatchNorm) for module in run.module.modules())
    assert pace.seconds() > 0


@pytest.mark.parametrize(("name", "chosen"), [("cpu", None), ("cuda", None), ("cuda:1", torch.device("cuda:1"))])
def test_a_single_process_chooses_the_gpu_that_was_named(
    name: str, chosen: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", set_to.append)
    processes.connect(torch.device(name))
    assert set_to == ([] if chosen is None else [chosen])


def test_crops_shift_more_and_more_as_a_run_goes_on() -> None:
    run = make_run(epochs=4)
    strengths = []
    while not run.finished:
        run.train_epoch()
        strengths.append(run.augment.strength)
    assert strengths == [0.0, 0.25, 0.5, 0.75]


def test_a_budget_is_what_crops_grow_over() -> None:
    run = make_run(epochs=4, budget=0.5)
    strengths = []
    while not run.finished:
        run.train_epoch()
        strengths.append(run.augment.strength)
    assert strengths[0] == 0.0 and strengths == sorted(strengths) and 0.4 < strengths[-1] < 1.0


@pytest.mark.slow
def test_nothing_but_our_own_lines_is_said_of_the_precision(tmp_path: Path) -> None:
    words = command("train", *SMALL, "--precision", "bf16", "--epochs", "1", "--out", tmp_path / "o")
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 0 and "bf16 on cpu" in ran.stdout + ran.stderr
    assert "Automatic Mixed Precision" not in ran.stdout + ran.stderr


def test_training_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state()
    trained(make_run(dropout=0.2, method="mixtrain-cutmix", epochs=4))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    "method", ["lean", "mixtrain-cutmix", "infobatch + progressive-resizing", "selective-backprop", "plain"]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_are_loaded_together_train_as_if_they_came_one_by_one(
    method: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"method": method, "epochs": 4, "batch_size": 7, "flip": True, "workers": workers}
    several = make_run(**settings)
    assert several.augment.at_once == 512  # four epochs of all 120 images
    monkeypatch.setattr(augment, "AT_ONCE", 1)
    one_by_one = make_run(**settings)
    assert one_by_one.augment.at_once == 1
    for epoch in range(3):
        assert several.train_epoch()["train_loss"] == one_by_one.train_epoch()["train_loss"], epoch
        assert several.steps == one_by_one.steps
    weights = one_by_one.module.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in several.module.state_dict().items())


def test_the_larger_images_are_the_fewer_are_prepared_together() -> None:
    assert [make_run(model="resnet8", image_size=side).augment.at_once for side in (32, 64, 96)] == [512, 128, 56]


def test_runs_that_take_turns_do_not_disturb_each_other() -> None:
    alone = trained(make_run(dropout=0.2))
    one, other = make_run(dropout=0.2), make_run(dropout=0.2, seed=5)
    while not one.finished:
        one.train_epoch()
        other.train_epoch()
    assert all(torch.equal(alone[name], tensor) for name, tensor in one.module.state_dict().items())


def test_accumulation_differs_from_the_large_batch_by_batch_norm_alone() -> None:
    settings = {"precision": "fp32", "model": "test_vit", "width": None, "train_limit": 12, "batch_size": 6}
    whole, parts = (make_run(accumulate=n, **settings) for n in (1, 4))
    for run in (whole, parts):  # a transformer has no BatchNorm
        run.train_epoch()
    assert whole.steps == parts.steps
    for name, tensor in whole.module.state_dict().items():
        torch.testing.assert_close(tensor, parts.module.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_statistics_that_are_not_finite_are_not_saved_as_a_good_checkpoint(tmp_path: Path) -> None:
    config = TrainConfig(width=4, train_limit=64, batch_size=32, epochs=2)
    images = load_images(config)
    run = Run(resolve(config, images), images, tmp_path)
    run.train_epoch()
    saved = (tmp_path / "checkpoint.pt").read_bytes()
    next(b for b in run.module.buffers() if b.is_floating_point())[0] = torch.nan
    with pytest.raises(NotFinite, match="last good checkpoint is kept"):
        run.save_checkpoint()
    assert (tmp_path / "checkpoint.pt").read_bytes() == saved


@pytest.mark.parametrize("step", [3, 50, 51, 115])
def test_the_first_step_whose_loss_was_not_finite_is_named(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(batch_size=1, epochs=1)
    made = run._step

    def spoiled(batch: Any) -> None:
        if run.steps == step - 1:
            next(run.module.parameters()).data[0] = torch.nan
        made(batch)

    monkeypatch.setattr(run, "_step", spoiled)
    with pytest.raises(NotFinite, match=rf"not finite at step {step} \("):
        run.train_epoch()
    assert run.steps == min(120, 50 * -(-step // 50))  # the next look at the losses, or the end of the epoch


def test_a_buffer_that_starts_with_infinities_stops_no_run(tmp_path: Path) -> None:
    run = make_run()
    run.module.register_buffer("mask", torch.full((2,), -torch.inf))
    assert not_finite_in(run.module) == {"mask"}
    run._never_finite = not_finite_in(run.module)
    run._check_finite(weights=True)


@pytest.mark.parametrize(("examples", "epochs"), [(1_437, 40), (30_000, 27), (50_000, 16), (1_200_000, 16)])
def test_small_sets_get_more_epochs(examples: int, epochs: int) -> None:
    assert default_epochs(examples) == epochs


def test_weight_decay_spares_biases_and_normalisation() -> None:
    run = make_run()
    for group in run._optimizer.param_groups:
        assert all((p.ndim > 1) == (group["weight_decay"] > 0) for p in group["params"])


@pytest.mark.parametrize("method", ["sgd", "selective-backprop", "progressive-resizing"])
def test_a_run_that_is_let_go_takes_its_loader_along(method: str) -> None:
    # Else the workers of every finished run of a comparison would live on, and fail noisily at its end.
    run = make_run(method=method)
    run.train()
    loader = weakref.ref(run._loader)
    gc.disable()
    try:
        del run
        assert loader() is None
    finally:
        gc.enable()

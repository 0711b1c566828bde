"""The command as a user meets it: what it writes, what it says, and what it answers to mistakes."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from PIL import Image

from leantrain.cli import cli, main
from leantrain.errors import LeanError
from leantrain.report.collect import collect
from leantrain.run.config import from_mapping, read_yaml
from program import SMALL, rows, run

LOGS = "tensorboard,csv,mlflow" if importlib.util.find_spec("mlflow") else "tensorboard,csv"


def call(*arguments: object) -> None:
    """The command inside this process: faster than a new one; raises what `main` would print."""
    cli.main(args=[str(a) for a in arguments], standalone_mode=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    done = run("train", *SMALL, "--epochs", 4, "--out", out, "--log", LOGS, "--method", "random-backprop[keep=0.75]")
    assert done.returncode == 0, done.stderr
    (out / "stdout").write_text(done.stdout)
    (out / "stderr").write_text(done.stderr)
    return out


def test_result_says_what_the_run_did(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert 0 <= result["worst_class_accuracy"] <= result["test_accuracy"] <= result["best_test_accuracy"] <= 1
    assert result["cost"] == pytest.approx(4 * 120)
    assert result["cost_epochs"] == pytest.approx(3.0)
    assert result["method"] == "random-backprop[keep=0.75]"
    assert result["seed"] == 0
    assert result["train_seconds"] > 0
    assert result["peak_memory_mb"] > 50
    assert {"macro_f1", "calibration_error", "evaluated_on"} <= result.keys()


def test_metrics_have_one_row_per_epoch(finished: Path) -> None:
    table = rows(finished)
    assert [row["epoch"] for row in table] == [0, 1, 2, 3]
    assert [row["progress"] for row in table] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert [row["cost"] for row in table] == [120] * 4
    assert table[-1]["lr"] == pytest.approx(0.0)
    assert table[-1]["test_accuracy"] == json.loads((finished / "result.json").read_text())["test_accuracy"]


def test_history_holds_each_example_s_loss(finished: Path) -> None:
    with np.load(finished / "history" / "epoch-0002.npz") as saved:
        assert saved["loss"].dtype == np.float16
        assert saved["loss"].shape == (160,)
        assert (~np.isnan(saved["loss"])).sum() == 120
        assert ((saved["constituents"] == 1) == ~np.isnan(saved["loss"])).all()


def test_config_makes_the_same_run_again(finished: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load((finished / "config.yaml").read_text())
    assert settings["made_with"]["versions"]["torch"]
    assert settings["precision"] in ("bf16", "fp32")
    done = run("train", "--config", finished / "config.yaml", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "again") == rows(finished)


def test_flags_win_over_the_config_file(finished: Path, tmp_path: Path) -> None:
    call("train", "--config", finished / "config.yaml", "--out", tmp_path / "o", "--epochs", 1, "--no-history")
    assert len(rows(tmp_path / "o")) == 1
    assert not (tmp_path / "o" / "history").exists()


def test_before_it_starts_one_line_says_what_at_what_cost_for_how_long(finished: Path) -> None:
    first = (finished / "stderr").read_text().splitlines()[0]
    assert "resnet8" in first
    assert "digits" in first
    assert "cost at most 3.0 epochs" in first
    assert re.search(r", about \d+ s, \d+% of plain training's time$", first)


def test_piped_output_is_plain_lines_and_a_table(finished: Path) -> None:
    errors, table = (finished / "stderr").read_text(), (finished / "stdout").read_text()
    assert "\x1b" not in errors + table
    assert sum(line.startswith("epoch ") for line in errors.splitlines()) == 4
    assert "test accuracy" in table


def test_epochs_are_logged_for_other_tools_when_asked(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    table = list(csv.DictReader((finished / "metrics.csv").open()))
    assert [float(row["train_loss"]) for row in table] == [row["train_loss"] for row in rows]


@pytest.mark.skipif("mlflow" not in LOGS, reason="MLflow is not installed: pip install mlflow-skinny")
def test_mlflow_finds_the_run_in_its_own_store(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient((finished / "mlruns").as_uri())
    (made,) = client.search_runs([client.get_experiment_by_name("leantrain").experiment_id])
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    logged = client.get_metric_history(made.info.run_id, "test_accuracy")
    assert [(one.step, one.value) for one in logged] == [(row["epoch"], row["test_accuracy"]) for row in rows]
    assert made.data.params["method"] == "random-backprop[keep=0.75]"
    assert made.info.run_name == finished.name


def test_a_logger_that_is_not_known_is_refused_and_an_older_setting_is_understood(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match=r"--log is 'mlfow', but must be of tensorboard, csv, mlflow\. Did you mean"):
        call("train", *SMALL, "--log", "csv,mlfow", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert from_mapping({"tensorboard": True}, "config.yaml") == {"log": "tensorboard"}


def test_tensorboard_logs_when_asked(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("test_accuracy")] == [0, 1, 2, 3]


def test_eval_gives_the_accuracy_of_the_run(finished: Path) -> None:
    done = run("eval", finished, "--json")
    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)["test_accuracy"] == json.loads((finished / "result.json").read_text())["test_accuracy"]
    )


def test_resuming_a_finished_run_shows_its_result(finished: Path) -> None:
    before = (finished / "result.json").read_bytes()
    done = run("train", "--out", finished, "--resume")
    assert done.returncode == 0
    assert "finished" in done.stderr
    assert (finished / "result.json").read_bytes() == before


def test_a_validation_share_is_evaluated_on_instead_of_the_test_set(tmp_path: Path) -> None:
    call("train", *SMALL, "--epochs", 1, "--validation", 0.2, "--out", tmp_path / "v")
    assert json.loads((tmp_path / "v" / "result.json").read_text())["evaluated_on"] == "validation"


def test_a_budget_ends_the_run_with_the_schedule_fully_decayed(tmp_path: Path) -> None:
    call("train", *SMALL, "--epochs", 4, "--budget", 0.4, "--out", tmp_path / "b")
    last = rows(tmp_path / "b")[-1]
    assert last["total_cost"] == pytest.approx(0.4 * 4 * 160, abs=32)
    assert last["progress"] == 1.0
    assert last["lr"] == pytest.approx(0.0)


def test_a_time_budget_is_a_budget_that_was_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leantrain.run.estimate import Pace

    # A half of the side: half of the time.
    monkeypatch.setattr(Pace, "_tried", lambda pace, forms: {form: 0.1 * form.size**0.5 for form in forms})
    (tmp_path / "other.yaml").write_text("budget: 0.9\n")  # over which a flag wins
    words = ("train", *SMALL, "--epochs", 40, "--time-budget", 0.5, "--out", tmp_path / "t")
    call(*words, "--config", tmp_path / "other.yaml")
    settings = read_yaml(tmp_path / "t" / "config.yaml")
    assert settings["method"] == "lean" and settings["budget"] == pytest.approx(0.305, abs=0.005)
    last = rows(tmp_path / "t")[-1]
    assert last["total_cost"] == pytest.approx(settings["budget"] * 40 * 160, abs=32) and last["progress"] == 1.0

    capsys.readouterr()
    monkeypatch.setattr(Pace, "_tried", None)
    call(*words, "--resume")  # which tries nothing, as the run has its budget
    assert f"this one keeps its budget of {settings['budget']:g}" in capsys.readouterr().err
    assert read_yaml(tmp_path / "t" / "config.yaml") == settings


def test_a_run_without_a_budget_is_not_resumed_with_one_of_time(finished: Path) -> None:
    with pytest.raises(LeanError, match=r"--time-budget is 0\.5, but the run to resume was started with no budget"):
        call("train", "--resume", "--out", finished, "--time-budget", 0.5)
    with pytest.raises(LeanError, match=r"--time-budget is -7\.0, but must be greater than 0"):
        call("train", "--resume", "--out", finished, "--time-budget", -7)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--time-budget", 0.5, "--budget", 0.5), r"--budget is 0\.5 and --time-budget 0\.5; give one of them"),
        (("--time-budget", 0), r"--time-budget is 0\.0, but must be greater than 0"),
        (("--time-budget", "nan"), r"--time-budget is nan, but"),
    ],
)
def test_impossible_time_budgets_are_refused(tmp_path: Path, flags: tuple[object, ...], said: str) -> None:
    with pytest.raises(LeanError, match=said):
        call("train", *SMALL, *flags, "--out", tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimizer", "adamw", "--schedule", "cosine"),
        ("--optimizer", "adam", "--schedule", "onecycle", "--clip", "1.0"),
        ("--schedule", "step[every=1,factor=0.5]", "--label-smoothing", "0.1", "--no-channels-last"),
        ("--schedule", "constant", "--precision", "fp32", "--momentum", "0"),
        ("--accumulate", "3", "--eval-every", "2", "--model", "resnet20"),
    ],
)
def test_every_setting_trains(tmp_path: Path, flags: tuple[str, ...]) -> None:
    call("train", *SMALL, "--epochs", 3, "--out", tmp_path / "o", *flags)
    table = rows(tmp_path / "o")
    assert math.isfinite(table[-1]["train_loss"])
    assert table[-1]["test_accuracy"] is not None


def test_compiled_training_works_with_the_other_accelerators(tmp_path: Path) -> None:
    others = ("--accumulate", 2, "--accumulate-batches", 2, "--pin-memory", "--channels-last")
    call("train", *SMALL, "--epochs", 1, "--compile", *others, "--out", tmp_path / "o")
    assert (tmp_path / "o" / "model.safetensors").exists()
    call("eval", tmp_path / "o")


def test_methods_are_listed_with_their_options() -> None:
    listing = CliRunner().invoke(cli, ["methods"]).output
    assert "random-backprop" in listing
    options = CliRunner().invoke(cli, ["methods", "random-backprop"]).output
    assert "keep = 0.5" in options
    assert "share of the examples" in options


def test_help_has_every_setting_under_its_heading() -> None:
    text = CliRunner().invoke(cli, ["train", "--help"]).output
    for word in (
        "Data:",
        "Model:",
        "Training:",
        "Speed:",
        "Output:",
        "--train-limit",
        "--no-channels-last",
        "--resume",
    ):
        assert word in text


MISTAKES: list[tuple[list[str], str]] = [
    (["--batch-size", "0"], "--batch-size is 0, but must be at least 1"),
    (["--lr", "-0.1"], "--lr is -0.1, but must be above 0"),
    (["--lr", "nan"], "--lr is nan, but must be a finite number"),
    (["--epochs", "0"], "--epochs is 0"),
    (["--epochs", "three"], "'three' is not a valid int"),
    (["--dropout", "1"], "--dropout is 1.0, but must be below 1"),
    (["--validation", "1.5"], "--validation is 1.5"),
    (["--optimizer", "adma"], "Did you mean 'adam'?"),
    (["--data", "cifar11"], "Did you mean 'cifar10'?"),
    (["--data", "./nowhere"], "nowhere"),
    (["--model", "resnet81"], "resnet81"),
    (["--method", "sgdd"], "Did you mean 'sgd'?"),
    (["--method", "random-backprop[keep=0]"], "keep is 0.0, but must be above 0"),
    (["--schedule", "linaer"], "Did you mean 'linear'?"),
    (["--precision", "fp16"], "needs CUDA"),
    (["--device", "cuda:7"], "no such device"),
    (["--device", "abacus"], "'abacus'"),
    (["--train-limit", "99999"], "99999"),
    (["--weights", "nofile.pt"], "nofile.pt"),
    (["--config", "nofile.yaml"], "nofile.yaml"),
    (["--epohcs", "3"], "--epochs"),
]


@pytest.mark.parametrize(("flags", "words"), MISTAKES, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_written(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as exit_:
        main(["train", *SMALL, "--out", str(out), *flags])
    said = capsys.readouterr().err.strip()
    assert exit_.value.code == 2
    assert words in said
    assert said.startswith("leantrain: ")
    assert len(said.splitlines()) == 1
    assert not out.exists()


def test_resuming_where_no_run_is(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="no run to resume in .*drop --resume"):
        call("train", "--out", tmp_path / "none", "--resume")
    with pytest.raises(LeanError, match="needs --out"):
        call("train", "--resume")


def test_a_folder_with_a_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(LeanError, match="holds a run already"):
        call("train", *SMALL, "--out", finished)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lr", "0.5"), "--lr is 0.5"),
        (("--data", "cifar10"), "--data is cifar10"),
        (("--model", "resnet20"), "--model"),
    ],
)
def test_what_decides_the_run_may_not_change_on_resume(finished: Path, flags: tuple[str, str], words: str) -> None:
    with pytest.raises(LeanError, match=words):
        call("train", "--out", finished, "--resume", *flags)


def test_a_checkpoint_of_another_model_or_data_set_is_refused(finished: Path, tmp_path: Path) -> None:
    def cut_with_another_s_checkpoint(name: str, *flags: object) -> Path:
        out = tmp_path / name
        call("train", *SMALL, "--epochs", 2, "--out", out, *flags)
        (out / "result.json").unlink()
        (out / "checkpoint.pt").write_bytes((finished / "checkpoint.pt").read_bytes())
        return out

    with pytest.raises(LeanError, match="model resnet8, not resnet20"):
        call("train", "--out", cut_with_another_s_checkpoint("model", "--model", "resnet20"), "--resume")
    with pytest.raises(LeanError, match="belongs to a run with data"):
        call("train", "--out", cut_with_another_s_checkpoint("data", "--validation", 0.5), "--resume")
    out = cut_with_another_s_checkpoint("width", "--width", 8, "--method", "random-backprop[keep=0.75]")
    with pytest.raises(LeanError, match="belongs to a run with width 4, not 8"):
        call("train", "--out", out, "--resume")


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    precision: str, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    flags = [*SMALL, "--precision", precision, "--epochs", 6, "--lr", "1e8", "--checkpoint-every", 1]
    with pytest.raises(LeanError, match=r"not finite at step \d+ .*--lr 1e\+08"):
        call("train", *flags, "--out", out)
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in saved["model"].values())
    assert not (out / "result.json").exists()


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_model_that_breaks_in_its_last_step_is_reported_too(precision: str, tmp_path: Path) -> None:
    flags = ["--width", 4, "--train-limit", 32, "--batch-size", 32, "--threads", 1, "--epochs", 1]
    flags += ["--precision", precision]
    with pytest.raises(LeanError, match="not finite"):
        call("train", *flags, "--lr", "1e38", "--schedule", "constant", "--out", tmp_path / "o")
    assert not (tmp_path / "o" / "checkpoint.pt").exists()


def test_an_empty_setting_in_a_config_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("momentum:\n")
    with pytest.raises(LeanError, match="momentum has no value"):
        call("train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "o")


def test_a_model_is_not_evaluated_on_other_classes(finished: Path, tmp_path: Path) -> None:
    data = folder_of_images(tmp_path / "images", corrupt=False)
    with pytest.raises(LeanError, match="same classes"):
        call("eval", finished, "--data", data)


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeanError, match="which is a file"):
        call("train", *SMALL, "--out", tmp_path / "file")
    with pytest.raises(LeanError, match="cannot be written"):
        call("train", *SMALL, "--out", tmp_path / "file" / "sub")


def folder_of_images(root: Path, corrupt: bool) -> Path:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("<script>alert(1)</script>", "ünï cødé"):
            folder = root / part / name.replace("/", "_")
            folder.mkdir(parents=True)
            for i in range(12):
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")
    if corrupt:
        (next((root / "train").iterdir()) / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    return root


def test_a_corrupt_image_is_named_or_counted(tmp_path: Path) -> None:
    data = folder_of_images(tmp_path / "images", corrupt=True)
    flags: list[Any] = ["--data", data, "--width", 4, "--batch-size", 8, "--epochs", 1, "--workers", 1, "--threads", 1]
    done = run("train", *flags, "--out", tmp_path / "a")
    assert done.returncode == 2
    assert "bad.jpg" in done.stderr
    assert "--skip-bad-images" in done.stderr
    assert "Traceback" not in done.stderr
    call("train", *flags, "--out", tmp_path / "b", "--skip-bad-images")
    assert json.loads((tmp_path / "b" / "result.json").read_text())["bad_images"] == 1


def test_without_out_each_run_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        call("train", *SMALL, "--epochs", 1)
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert names == ["digits-resnet8-plain-seed0", "digits-resnet8-plain-seed0-2"]


def test_import_is_lazy_and_fast() -> None:
    import subprocess
    import sys

    code = "import sys, leantrain; assert 'torch' not in sys.modules; leantrain.attach; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    seconds = []
    for _ in range(3):  # of the processor, as the clock would also count what else the machine does
        before = os.times()
        subprocess.run([sys.executable, "-c", "import leantrain"], check=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.3


def test_a_method_that_does_not_fit_the_data_leaves_no_run_behind(tmp_path: Path) -> None:
    for method, said in (
        ("input-scaling[size=99]", "images have 32"),
        ("el2n[scores=gone.npz]", "no scores file"),
        ("el2n", "costs 1,120 examples, and the budget of 0.5 is 160"),
    ):
        with pytest.raises(LeanError, match=said):
            call("train", *SMALL, "--epochs", 2, "--budget", 0.5, "--method", method, "--out", tmp_path / "run")
        assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_comparison_says_what_its_costs_leave_out(tmp_path: Path) -> None:
    scores = tmp_path / "scores.npz"
    call("score", *SMALL, "--models", 1, "--score-epochs", 1, "--out", scores)
    method = f"el2n[scores={scores}]"
    out = tmp_path / "compare"
    call("compare", *SMALL, "--epochs", 1, "--seeds", 1, "--no-controls", "--methods", method, "--out", out)
    note = json.loads((out / "compare.json").read_text())["notes"][method]
    assert "cost 1.3 epochs, paid elsewhere and not counted here" in note
    assert collect([out])[0]["about"] == [{"name": method, "reason": note}]
    assert "making scores" not in collect([out])[0]["overhead"][1]["parts"]  # not this run's time

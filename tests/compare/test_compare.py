"""A comparison trains each method beside plain training of the same cost, survives, and sums up what is there."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from leantrain.cli import cli
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import Entry, Settings, split_methods
from leantrain.compare.summary import Summary
from leantrain.compare.table import comparison_table, verdict_lines
from leantrain.compare.verdict import Difference
from leantrain.errors import LeanError
from leantrain.run.config import TrainConfig
from program import SMALL, command, rows, run

METHODS = "mixtrain-cutmix,random-backprop[keep=0.5]"


def compare(out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    return run("compare", *SMALL, "--epochs", 4, "--seeds", 2, "--out", out, *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "c"
    done = compare(out, "--methods", METHODS)
    assert done.returncode == 0, done.stderr
    (out / "stdout").write_text(done.stdout)
    return out


def summary(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "compare.json").read_text())
    return content


def row(out: Path, label: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in summary(out)["rows"] if r["label"] == label)
    return found


def test_every_method_gets_its_controls_at_what_it_really_cost(finished: Path) -> None:
    labels = [r["label"] for r in summary(finished)["rows"]]
    assert labels == [
        "plain",
        "mixtrain-cutmix",
        "plain, equal budget (mixtrain-cutmix)",
        "RS2, equal budget (mixtrain-cutmix)",
        "random-backprop",
        "plain, equal budget (random-backprop)",
        "RS2, equal budget (random-backprop)",
    ]
    for method in ("mixtrain-cutmix", "random-backprop"):
        own = row(finished, method)
        for kind in ("plain", "RS2"):
            control = row(finished, f"{kind}, equal budget ({method})")
            for seed, result in own["seeds"].items():
                assert control["seeds"][seed]["cost"] == pytest.approx(result["cost"], abs=32)
        budget = finished / "runs" / f"{method}--equal-budget" / "seed-0"
        assert rows(budget)[-1]["lr"] == pytest.approx(0.0)
        assert rows(budget)[-1]["progress"] == 1.0


def test_all_rows_of_a_seed_start_from_the_same_model(finished: Path) -> None:
    mix, plain = (rows(finished / "runs" / name / "seed-1")[0] for name in ("mixtrain-cutmix", "plain"))
    assert mix["test_loss"] == plain["test_loss"]  # the first epoch mixes nothing


def test_the_table_says_accuracy_difference_cost_time_and_verdict(finished: Path) -> None:
    table = (finished / "stdout").read_text()
    for word in ("accuracy", "Δ to full", "Δ to equal budget", "cost", "time", "overhead", "verdict", "mixtrain"):
        assert word in table
    own = row(finished, "mixtrain-cutmix")
    base = row(finished, "plain")
    accuracies = [100 * (own["seeds"][s]["test_accuracy"] - base["seeds"][s]["test_accuracy"]) for s in ("0", "1")]
    assert own["difference_to_full"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert own["cost_ratio"] < 1
    assert own["time_ratio"] > 0
    assert own["overhead"] == pytest.approx(own["time_ratio"] / own["cost_ratio"] - 1)
    assert own["verdict"]
    assert own["standing"] in ("good", "bad", "open")
    assert base["standing"] is None
    assert (finished / "report.html").stat().st_size > 10_000
    assert row(finished, "plain, equal budget (mixtrain-cutmix)")["time_ratio"] is None


def test_methods_take_turns_an_epoch_each(finished: Path) -> None:
    turns = [json.loads(line) for line in (finished / "turns.jsonl").read_text().splitlines()]
    first = [(t["row"], t["epoch"]) for t in turns if t["seed"] == 0][:6]
    assert first == [(m, e) for e in (0, 1) for m in ("plain", "mixtrain-cutmix", "random-backprop")]


def test_runs_that_share_a_process_claim_no_memory_of_their_own(finished: Path) -> None:
    results = [json.loads(file.read_text()) for file in finished.glob("runs/*/*/result.json")]
    assert results
    assert all(result["peak_memory_mb"] is None for result in results)


def test_a_compared_run_is_the_run_that_train_makes(finished: Path, tmp_path: Path) -> None:
    done = run("train", *SMALL, "--epochs", 4, "--seed", 1, "--method", "mixtrain-cutmix", "--out", tmp_path / "t")
    assert done.returncode == 0
    assert rows(tmp_path / "t") == rows(finished / "runs" / "mixtrain-cutmix" / "seed-1")


def test_printing_again_trains_nothing(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (finished / "runs").rglob("*")}
    done = run("compare", "--from", finished)
    assert done.returncode == 0
    assert done.stdout == (finished / "stdout").read_text()
    assert {p: p.stat().st_mtime_ns for p in (finished / "runs").rglob("*")} == before


def test_adding_a_method_and_a_seed_re_uses_the_rest_and_gives_no_stale_times(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "more"
    shutil.copytree(finished, out)
    before = (out / "runs" / "plain" / "seed-0" / "result.json").stat().st_mtime_ns
    done = run("compare", "--out", out, "--resume", "--methods", "rs2[keep=0.25]", "--seeds", 3)
    assert done.returncode == 0, done.stderr
    assert (out / "runs" / "plain" / "seed-0" / "result.json").stat().st_mtime_ns == before
    added = row(out, "rs2[keep=0.25]")
    assert sorted(added["seeds"]) == ["0", "1", "2"]
    assert len(row(out, "mixtrain-cutmix")["seeds"]) == 3
    # Seeds 0 and 1 were trained without the baseline beside them; seed 2 took turns with it.
    ratios = Summary(ComparisonFolder(out), ComparisonFolder(out).settings()).time_ratios()
    assert sorted(ratios["rs2[keep=0.25]"]) == [2]
    assert sorted(ratios["mixtrain-cutmix"]) == [0, 1, 2]


def test_one_method_failing_is_reported_in_its_row_and_the_rest_go_on(tmp_path: Path) -> None:
    flags = ["--train-limit", 20, "--batch-size", 10, "--threads", 1, "--epochs", 2, "--seeds", 1, "--no-controls"]
    flags += ["--model", "xcit_nano_12_p8_224", "--methods", "mixtrain-cutmix,random-backprop"]  # no split point there
    done = run("compare", *flags, "--out", tmp_path / "f")
    assert done.returncode == 0, done.stderr
    content = summary(tmp_path / "f")
    assert "mixtrain-cutmix, seed 0" in content["failures"]
    assert len(row(tmp_path / "f", "random-backprop")["seeds"]) == 1
    assert len(row(tmp_path / "f", "mixtrain-cutmix")["seeds"]) == 0
    assert "mixtrain-cutmix, seed 0" in done.stderr


def test_every_method_failing_is_a_failure(tmp_path: Path) -> None:
    flags = ["--epochs", 1, "--seeds", 1, "--no-controls", "--methods", "el2n[scores=nowhere.npz]"]
    done = run("compare", *SMALL, *flags, "--out", tmp_path / "f")
    assert done.returncode == 1
    assert "failed: el2n[scores=nowhere.npz], seed 0: there is no scores file 'nowhere.npz'" in done.stderr


def test_ctrl_c_leaves_a_usable_table_and_resume_ends_in_the_same_bits(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["compare", *SMALL, "--epochs", 4, "--seeds", 2, "--out", out, "--methods", METHODS]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command(*words), env=environment, **pipes)
    while not (out / "runs" / "plain" / "seed-0" / "result.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    table, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    assert "plain" in table
    assert 1 <= len(row(out, "plain")["seeds"]) <= 2
    done = run("compare", "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    for folder in sorted((finished / "runs").glob("*/seed-*")):
        assert rows(out / folder.relative_to(finished)) == rows(folder), folder


def test_methods_are_split_outside_brackets() -> None:
    expected = ("plain", "mixtrain-cutmix[k=2,split=false]", "rs2")
    assert split_methods("sgd, mixtrain-cutmix[k=2,split=false] ,rs2") == expected
    with pytest.raises(LeanError, match="at least one method"):
        split_methods(" ,")
    with pytest.raises(LeanError, match="Did you mean"):
        split_methods("sgd,mixtrain-cutmx")


def test_settings_list_rows_in_order_and_without_repeats() -> None:
    entries = Settings(TrainConfig(), ("plain", "rs2"), 1).entries()
    assert entries == [Entry("plain", "baseline"), Entry("rs2", "method"), Entry("plain", "equal-budget", "rs2")]
    assert len(Settings(TrainConfig(), ("rs2", "random-backprop"), 1, controls=False).entries()) == 3
    chain = "rs2[keep=0.5] + progressive-resizing"  # is not RS2, so RS2 is its control
    assert [entry.label for entry in Settings(TrainConfig(), ("lean", "rs2"), 1, budgets=(0.5,)).entries()] == [
        "plain",
        "lean @ 0.5",
        "rs2 @ 0.5",
        "plain, equal budget (0.5)",
    ]
    assert [entry.role for entry in Settings(TrainConfig(), (chain,), 1).entries()][1:] == [
        "method",
        "equal-budget",
        "rs2",
    ]


def test_budgets_train_every_method_at_each_and_share_a_control(tmp_path: Path) -> None:
    out = tmp_path / "c"
    done = run("compare", *SMALL, "--epochs", 6, "--seeds", 2, "--budgets", "0.6,0.3", "--out", out)
    assert done.returncode == 0, done.stderr
    assert [r["label"] for r in summary(out)["rows"]] == [
        "plain",
        "lean @ 0.3",
        "plain, equal budget (0.3)",
        "lean @ 0.6",
        "plain, equal budget (0.6)",
    ]
    for budget in (0.3, 0.6):
        for label in (f"lean @ {budget}", f"plain, equal budget ({budget})"):
            assert row(out, label)["cost_ratio"] == pytest.approx(budget, rel=0.01)
            assert row(out, label)["time_ratio"] is not None  # they took turns, as no control waited for a method
        own, control = (row(out, f"lean @ {budget}"), row(out, f"plain, equal budget ({budget})"))
        assert own["difference_to_control"]["mean"] == pytest.approx(100 * (own["accuracy"] - control["accuracy"]))
    turns = [json.loads(line) for line in (out / "turns.jsonl").read_text().splitlines()]
    order = [turn["row"] for turn in turns if turn["seed"] == 0]
    last = max(place for place, label in enumerate(order) if label == "plain, equal budget (0.3)")
    assert order[:last].count("plain") > 3  # a short run is spread over the whole of the others'
    lean, plain = summary(out)["curves"]
    assert [point["cost"] for point in lean["points"]] == pytest.approx([0.3, 0.6, 1.0], rel=0.01)
    assert f"lean: {lean['answer']}" in done.stdout and f"plain: {plain['answer']}" in done.stdout
    page = (out / "report.html").read_text()
    assert lean["answer"] in page and "--budgets 0.3,0.6" in page
    added = run("compare", "--out", out, "--resume", "--budgets", "0.5")
    assert added.returncode == 0, added.stderr
    half_a_batch = 16 / (6 * 160)  # what a run of so few steps may leave
    assert [point["cost"] for point in summary(out)["curves"][0]["points"]] == pytest.approx(
        [0.3, 0.5, 0.6, 1.0], abs=half_a_batch
    )


def budget_of(run: Path) -> float:
    budget: float = yaml.safe_load((run / "config.yaml").read_text())["budget"]
    return budget


def test_time_budgets_train_at_the_cost_that_takes_as_long_and_keep_it_for_every_seed(tmp_path: Path) -> None:
    """On a network as small as this, small images take longer than they cost."""
    out, label = tmp_path / "c", "lean @ 0.5 of the time"
    network = ("--data", "digits", "--train-limit", 320, "--model", "resnet8", "--width", 16, "--batch-size", 64)
    words = ("compare", *network, "--epochs", 3, "--threads", 1, "--out", out)
    done = run(*words, "--seeds", 2, "--time-budgets", "0.5")
    assert done.returncode == 0, done.stderr
    assert [r["label"] for r in summary(out)["rows"]] == ["plain", label, "plain, equal budget (0.5 of the time)"]
    found, again = (budget_of(out / "runs" / "lean@0.5-time" / f"seed-{number}") for number in (0, 1))
    assert found == again < 0.48
    own, control = row(out, label), row(out, "plain, equal budget (0.5 of the time)")
    half_a_batch = 32 / (3 * 320)
    assert own["cost_ratio"] == pytest.approx(found, abs=half_a_batch)
    assert control["cost_ratio"] == pytest.approx(0.5, abs=half_a_batch)  # plain training's time follows its cost
    for taken in (own, control):
        assert taken["time_ratio"] == pytest.approx(0.5, abs=0.12)  # in runs of seconds, beside other tests
    assert summary(out)["curves"][0]["kept"]["unit"] == "time"
    assert "--time-budgets 0.5" in (out / "report.html").read_text()

    added = run("compare", "--out", out, "--resume", "--time-budgets", "0.3", "--seeds", 3)
    assert added.returncode == 0, added.stderr
    assert budget_of(out / "runs" / "lean@0.5-time" / "seed-2") == found  # not timed anew
    assert 0 < budget_of(out / "runs" / "lean@0.3-time" / "seed-0") < found


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--budgets", "0.3"), "--budgets cannot be added to a comparison by --time-budgets"),
        (("--jobs", 2), "--time-budgets does not go with --jobs and --engine ray"),
        (
            ("--control-batch-size", 8),
            "--control-batch-size is 8, but the comparison was started with that of its runs",
        ),
    ],
)
def test_a_comparison_at_equal_time_stays_one(tmp_path: Path, flags: tuple[object, ...], words: str) -> None:
    settings = Settings(TrainConfig(data="digits"), ("lean",), 2, budgets=(0.5,), unit="time")
    ComparisonFolder(tmp_path).write_settings(settings)
    assert ComparisonFolder(tmp_path).settings() == settings
    with pytest.raises(LeanError, match=words):
        cli.main(args=["compare", "--out", str(tmp_path), "--resume", *map(str, flags)], standalone_mode=False)


def test_controls_can_have_a_batch_size_of_their_own(tmp_path: Path) -> None:
    out, label = tmp_path / "c", "plain, equal budget (0.5)"
    words = ("compare", *SMALL, "--epochs", 2, "--seeds", 1, "--budgets", "0.5", "--out", out)
    done = run(*words, "--control-batch-size", 8)
    assert done.returncode == 0, done.stderr
    assert f"{label}: trained with batch size 8, the others with 32." in done.stdout
    own, control = (rows(out / "runs" / name / "seed-0") for name in ("lean@0.5", "plain@0.5"))
    settings = {
        name: yaml.safe_load((out / "runs" / name / "seed-0" / "config.yaml").read_text())
        for name in ("plain", "lean@0.5", "plain@0.5")
    }
    assert [one["batch_size"] for one in settings.values()] == [32, 32, 8]
    assert settings["plain@0.5"]["lr"] == pytest.approx(settings["plain"]["lr"] / 4)  # as the default goes with it
    assert control[-1]["total_cost"] == pytest.approx(own[-1]["total_cost"], abs=16)
    assert sum(epoch["steps"] for epoch in control) == 20  # 160 examples by eight
    refused = run("compare", "--out", out, "--resume", "--control-batch-size", 16)
    assert refused.returncode == 2
    assert "--control-batch-size is 16, but the comparison was started with 8" in refused.stderr
    assert run("compare", "--out", out, "--resume", "--seeds", 2).returncode == 0
    assert sum(epoch["steps"] for epoch in rows(out / "runs" / "plain@0.5" / "seed-1")) == 20


CHAIN = "el2n[prune=0.25] + mixtrain-cutmix[until=0.8] + progressive-resizing"


def test_chains_of_methods_get_folders_that_are_legal_and_unlike_each_other() -> None:
    names = [CHAIN, CHAIN.replace(" + ", "+"), CHAIN.replace("0.8", "0.7"), f"el2n[scores={'long/' * 60}] + rs2"]
    entries = [Entry(name, "method") for name in names]
    entries += [Entry("plain", "equal-budget", name) for name in names] + [Entry("rs2", "rs2", name) for name in names]
    folders = [entry.folder for entry in entries]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert len(folder) < 150
        assert not set(folder) & set(' /\\:*?"<>|')


def test_the_table_shows_a_chain_whole() -> None:
    unknown = dict.fromkeys(
        ("accuracy", "accuracy_spread", "difference_to_full", "difference_to_control", "cost_ratio", "time_ratio",
         "time_ratio_spread", "overhead", "time_to_accuracy", "control_of")
    )  # fmt: skip
    row = {**unknown, "label": CHAIN, "seeds": {}, "verdict": ""}
    console = Console(width=100, file=io.StringIO())
    console.print(comparison_table({"seeds": [0], "rows": [row]}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    column = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert column.replace(" ", "") == CHAIN.replace(" ", "")


def test_the_table_is_readable_at_80_columns() -> None:
    points = Difference(-1.23, 12.34, 3).as_json()
    row = dict.fromkeys(("accuracy_spread", "cost_ratio", "time_ratio", "time_ratio_spread", "overhead"), 0.5)
    row |= {"accuracy": 0.98, "difference_to_full": points, "difference_to_control": points, "time_to_accuracy": None}
    row |= {"seeds": {"0": 1}, "label": "lean @ 0.5", "control_of": None, "role": "method", "verdict": "keeps it"}
    control = {**row, "label": "plain, equal budget (0.5)", "control_of": "lean", "role": "equal-budget"}
    summary = {"seeds": [0, 1, 2], "rows": [row, control]}
    console = Console(width=80, file=io.StringIO())
    console.print(comparison_table(summary, console.width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    heading = next(line for line in lines if "Δ to full" in line)
    assert [word for word in ("accuracy", "cost", "time") if word in heading] == ["accuracy", "cost", "time"]
    whole = next(line for line in lines if line.strip().startswith("lean @ 0.5"))
    assert "98.00 ± 50.00" in whole and whole.count("-1.23") == 2 and whole.count("0.50×") == 2
    assert verdict_lines(summary, 80) == ["lean @ 0.5: keeps it"]
    assert verdict_lines(summary, 200) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seeds", "0"], "--seeds is 0"),
        (["--jobs", "0"], "--jobs is 0"),
        (["--control-batch-size", "0"], "--control-batch-size is 0"),
        (["--control-batch-size", "8", "--no-controls"], "--no-controls trains none"),
        (["--address", "auto"], "--address is auto, but only --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is 2, but with --engine ray"),
        (["--budgets", "0.5", "--time-budgets", "0.3"], "--budgets is '0.5' and --time-budgets '0.3'; give one"),
        (["--time-budgets", "half"], "--time-budgets is 'half', but must be shares of full training's time"),
        (["--time-budgets", "0.5", "--jobs", "2"], "--time-budgets does not go with --jobs and --engine ray"),
        (["--time-budgets", "0.5", "--compile"], "--time-budgets does not go with --compile"),
        (["--time-budgets", "0.5", "--control-batch-size", "8"], "does not go with --control-batch-size"),
        (["--margin", "-1"], "--margin is -1"),
        (["--methods", "mixtran-cutmix"], "Did you mean 'mixtrain-cutmix'"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--margin", "nan"], "--margin is nan"),
        (["--model", "nosuchmodel"], "nosuchmodel"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(flags: list[str], words: str, tmp_path: Path) -> None:
    done = run("compare", *SMALL, "--out", tmp_path / "o", *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_jobs_saved_by_a_signal_and_resumed_in_another_number_give_the_same_bits_and_no_times(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    flags = ["--epochs", 4, "--seeds", 1, "--methods", "mixtrain-cutmix", "--no-controls", "--jobs", 2, "--out", out]
    process = subprocess.Popen(command("compare", *SMALL, *flags), **pipes)
    while not (out / "runs" / "plain" / "seed-0" / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "--resume" in errors
    done = run("compare", "--out", out, "--resume", "--jobs", 3)
    assert done.returncode == 0, done.stderr
    assert summary(out)["failures"] == {}
    assert all(r["time_ratio"] is None for r in summary(out)["rows"])
    folders = sorted((out / "runs").glob("*/seed-*"))
    assert len(folders) == 2
    for folder in folders:
        assert rows(folder) == rows(finished / folder.relative_to(out)), folder


def test_a_comparison_of_another_machine_can_be_shown_and_keeps_its_origin(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    shutil.copytree(finished, out)
    (out / "compare.yaml").write_text((out / "compare.yaml").read_text().replace("device: cpu", "device: cuda"))
    before = (out / "compare.json").read_bytes()
    assert run("compare", "--from", out).returncode == 0
    assert (out / "compare.json").read_bytes() == before


def test_a_config_file_gives_what_all_rows_share(finished: Path, tmp_path: Path) -> None:
    file = finished / "runs" / "mixtrain-cutmix" / "seed-0" / "config.yaml"
    done = run("compare", "--config", file, "--seeds", 1, "--no-controls", "--epochs", 1, "--out", tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "c")["settings"]["train_limit"] == 160


def test_a_folder_in_use_or_empty_is_reported(finished: Path, tmp_path: Path) -> None:
    assert "holds a comparison already" in compare(finished).stderr
    assert "no comparison to resume" in compare(tmp_path / "none", "--resume").stderr
    assert "no comparison in" in run("compare", "--from", tmp_path / "none").stderr
    assert "--epochs is 9" in run("compare", "--out", finished, "--resume", "--epochs", 9).stderr

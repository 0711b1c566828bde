"""The papers' tables can be run by name, go on where they stopped, and stand beside the papers' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leantrain.bench import accelerators
from leantrain.bench.accelerators import DATA, MODELS, PAPER, loss_scale, paper_config, quantisation_error
from leantrain.bench.markdown import UNKNOWN
from leantrain.bench.papers import SCALES, TABLES
from leantrain.bench.results import UNTRAINED_ROW, Page, sections_of
from leantrain.bench.tables import grouped, registered
from leantrain.errors import LeanError
from leantrain.run import memory
from leantrain.run.config import TrainConfig
from leantrain.schedule import parse_schedule
from program import run

TINY = ("--data", "digits", "--model", "resnet8", "--width", 2, "--train-limit", 40, "--validation", 0.05)


# --- what the papers say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_tables_rows_settings_and_numbers_fit_together(name: str) -> None:
    table = TABLES[name]
    for part in table.parts:
        assert part.rows[0].method == "plain"
        assert set(part.settings) <= set(SCALES)
        assert {"tiny", "full"} <= set(part.settings)
        assert "cpu" in part.settings or part.note  # else it says why not
        for settings in part.settings.values():
            parse_schedule(TrainConfig(**settings).schedule)
        for row in part.rows:
            assert len(row.paper) in (0, len(table.columns)), row.label
        there, missing = registered(part.rows)
        assert len(there) + len(missing) == len(part.rows)


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_compared_has_the_same_settings_in_every_table_and_each_row_once(scale: str) -> None:
    groups = grouped(TABLES.values(), scale)
    for group in groups:
        assert all(part.settings[scale] == group.settings for part in group.parts)
        methods = group.methods(Path("scores.npz"))
        assert len(set(methods)) == len(methods)
    rows = sum(len(part.rows) for table in TABLES.values() for part in table.parts if scale in part.settings)
    assert sum(len(group.methods(Path("scores.npz"))) for group in groups) < rows * 0.8


def test_a_row_whose_method_is_not_there_is_left_out_with_a_sentence() -> None:
    from leantrain.bench.papers import Row

    there, missing = registered((Row("Baseline", "plain"), Row("Future", "no-such-method[keep=0.5]")))
    assert [row.label for row in there] == ["Baseline"]
    assert missing == ["Future (`no-such-method[keep=0.5]`) is left out: method 'no-such-method' is not known"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", DATA)
def test_the_accelerators_settings_are_shipped(model: str, data: str) -> None:
    config = TrainConfig(**paper_config(model, data))
    assert (config.model, config.data) == (model, data)
    assert config.accumulate_batches >= 2
    assert config.pin_memory
    assert set(PAPER[model, data]) == {"without", "with"}


# --- running them ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    done = run("bench", "tables", "--table", "002-table5", "--scale", "tiny", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "scale tiny" in done.stdout.splitlines()[0]
    return out


def test_the_papers_numbers_stand_beside_ours_and_the_control(trained: Path) -> None:
    text = (trained / "tiny" / "002-table5" / "table.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    header, _, baseline, mixing, skipping = lines
    assert header[1:3] == ["paper: top-1 error", "paper: speed-up"]
    assert baseline[1:3] == ["24.3%", "1x"]
    assert mixing[1:3] == ["24.45%", "1.56x"]
    assert skipping[1:3] == ["25.12%", "1.44x"]
    control = header.index("plain at that cost: error, %")
    assert baseline[control] == ""
    assert 0 < float(mixing[control]) < 100
    assert mixing[header.index("cost")].endswith("×")
    resumed = run("compare", "--out", trained / "tiny" / "digits-resnet8-2", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "RS2, equal budget" not in resumed.stdout  # plain training is the only control, also when it goes on


def test_a_table_goes_on_where_it_stopped_and_refuses_other_settings(trained: Path) -> None:
    again = ("bench", "tables", "--table", "002-table5", "--scale", "tiny", "--out", trained)
    done = run(*again)
    assert done.returncode == 0
    assert "seed 0:" not in done.stderr  # nothing was trained
    changed = run(*again, "--weights", "other.pt")
    assert changed.returncode == 2
    assert "was started with weights None" in changed.stderr


def test_tables_share_their_runs_and_a_row_added_later_says_why_it_has_no_speed_up(trained: Path) -> None:
    done = run("bench", "tables", "--table", "002-fig9", "--scale", "tiny", "--out", trained)
    assert done.returncode == 0, done.stderr
    assert "fixres, seed 0:" in done.stderr
    assert "\nmixtrain-cutmix, seed 0:" not in done.stderr  # 002-table5 has trained it
    rows = {cells[1].strip(): cells for line in done.stdout.splitlines() if len(cells := line.split("|")) > 8}
    speed = [cell.strip() for cell in rows[""]].index("speed-up")
    assert rows["MixTrain-CutMix"][speed].strip().endswith("x")
    assert rows["FixRes"][speed].strip() == UNKNOWN
    assert "not trained in turns with the baseline" in done.stdout
    assert "oracle-skip" in (trained / "tiny" / "digits-resnet8-2" / "compare.yaml").read_text()  # of the other table


def test_results_are_one_page_with_a_picture(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "results.md"
    assert run("bench", "results", "--from", trained, "--out", page).returncode == 0
    assert "## 002-table5" in page.read_text()
    assert "![fig14](images/results-002-table5-fig14.png)" in page.read_text()
    assert (page.parent / "images" / "results-002-table5-fig14.png").stat().st_size > 1000
    assert (page.parent / "images" / "results-tiny-digits-resnet8-2.png").stat().st_size > 1000
    empty = run("bench", "results", "--from", tmp_path / "none", "--out", page)
    assert (empty.returncode, "nothing has been trained" in empty.stderr) == (2, True)


def test_what_was_not_trained_here_stays_on_the_page_as_it_was(trained: Path, tmp_path: Path) -> None:
    page, other = tmp_path / "results.md", tmp_path / "other"
    assert run("bench", "results", "--from", trained, "--out", page).returncode == 0
    first = page.read_text()
    of_one = ("bench", "tables", "--network", "vit-swin", "--scale", "tiny", "--seeds", 1, "--out", other)
    done = run(*of_one, "--table", "000-table2", "--table", "002-table5")
    assert done.returncode == 0, done.stderr
    assert "ViT-SWIN" in done.stdout and "ViT-small" not in done.stdout and "002-table5" not in done.stdout
    assert run("bench", "results", "--from", other, "--out", page).returncode == 0
    second = page.read_text()
    assert second.index("## 000-table2") < second.index("## 002-table5")
    table5 = first[first.index("## 002-table5") : first.index("## 002-fig9")].strip()
    assert "oracle" not in done.stderr
    assert table5 in second  # the same comparison was begun anew without its rows
    assert second.count("results-tiny-digits-resnet8-2.png") == 1
    assert run("bench", "results", "--from", other, "--out", page).returncode == 0
    assert page.read_text() == second


def test_of_each_network_the_page_keeps_what_has_more_rows() -> None:
    heading, untrained = "## 000-table1: CNNs — scale cpu", f"| a | {UNTRAINED_ROW} |"

    def page(one: str, other: str) -> Page:
        return Page([], sections_of(f"{heading}\n\n**One**; ours\n{one}\n\n**Other**{other}\n"))

    before = page("| old |", f"; ours\n{untrained}\n{untrained}")
    half = page("| new |", f"; ours\n{untrained}\n| b |").over(before).sections[heading]
    assert "| new |" in half and "| old |" not in half
    assert half.count(untrained) == 1 and "| b |" in half
    none = page("| new |", ": not trained yet.").over(before).sections[heading]
    assert none.count(untrained) == 2 and "not trained yet" not in none
    kept = page(untrained, ": not trained yet.").over(before).sections[heading]
    assert "| old |" in kept
    other = Page([], sections_of("## 000-table2: ViTs — scale cpu\n\n**One**; ours\n")).over(before)
    assert list(other.sections) == [heading, "## 000-table2: ViTs — scale cpu"]


@pytest.mark.parametrize(("scale", "time"), [("tiny", "digits | seconds |"), ("cpu", " min |"), ("full", " epochs |")])
def test_the_list_names_every_table_with_its_data_and_time(scale: str, time: str) -> None:
    said = run("bench", "tables", "--list", "--scale", scale).stdout
    for name in (*TABLES, "all", "003-table1"):
        assert f"| {name} |" in said
    assert time in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tables", "--table", "002-table6"), "no table '002-table6'. Did you mean '002-table"),
        (("tables", "--table", "003-table1"), "leantrain bench accelerators"),
        (("tables",), "--table NAME is missing"),
        (
            ("tables", "--table", "002-table2", "--network", "VGG"),
            "called 'VGG'; they have: ResNet18, Cifar10; ResNet34",
        ),
        (("tables", "--table", "002-table5", "--scale", "huge"), "--scale is 'huge', but must be one of tiny, cpu,"),
        (("accelerators", "--model", "resnet18", "--full"), "the paper has no resnet18 on cifar10"),
        (("accelerators", "--seeds", "0"), "--seeds is 0"),
    ],
)
def test_wrong_names_are_answered_with_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = run("bench", *words)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_accelerators_are_measured_in_turns_with_the_equations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators.machine, "_cpu_has_bf16", lambda: True)  # so that there is a row of it
    monkeypatch.setattr(accelerators, "peak_alone_mb", lambda config: 100.0 * config.accumulate_batches)
    command = ("bench", "accelerators", *TINY, "--epochs", 1, "--batch-size", 8, "--seeds", 1, "--out", tmp_path / "o")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert rows == ["without", "mixed precision", "accumulation", "with"]
    for text in ("Eq. 1, speed-up: mixed", "Eq. 2, throughput", "Eq. 3, quantisation error", "Eq. 4, loss scale"):
        assert text in done.stdout
    assert "Left out: pinned memory" in done.stdout
    assert "%" not in run(*command).stderr  # nothing was trained again
    other = run(*command, "--lr", 0.5)
    assert (other.returncode, "of other settings" in other.stderr) == (2, True)


def test_equations_3_and_4_are_the_papers() -> None:
    weights = [torch.tensor([1.0, 1.0 + 2**-10, 3.0]), torch.tensor([7])]  # bf16 has 8 bits of mantissa
    assert quantisation_error(weights, "bf16") == pytest.approx(2**-10 / 3)
    assert quantisation_error(weights, "fp32") == 0
    assert loss_scale(2.0, 1.0) == 2 * 65536
    assert loss_scale(2.0, 1.0, exponent=0.0) == 65536


def test_memory_is_measured_over_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("width: 2\nepochs: 9\nbatch_size: 4\ntrain_limit: 40\n")
    memory._main(file)  # in this process, as one of its own takes seconds to start
    assert float(capsys.readouterr().out) > 50


def test_settings_that_cannot_be_trained_give_no_memory_but_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "executable", "/bin/false")
    with pytest.raises(LeanError, match="could not be measured"):
        memory.peak_alone_mb(TrainConfig(width=2, batch_size=4))

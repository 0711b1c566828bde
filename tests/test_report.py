"""The page without a browser: what it says is what the files say, whatever they are called and whatever is missing."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from leantrain.cli import cli, main
from leantrain.compare.table import comparison_cells, comparison_table
from leantrain.errors import LeanError
from leantrain.methods import parse_method
from leantrain.report import embed, write_report
from leantrain.report.collect import COMPARISON_COLUMNS, collect, command
from leantrain.report.past import evenly, treatments
from leantrain.report.pictures import outlined, sheet
from leantrain.run.config import TrainConfig, from_mapping, read_yaml
from program import SMALL

Json = dict[str, Any]


def call(*arguments: object) -> None:
    cli.main(args=[str(a) for a in arguments], standalone_mode=False)


def content(page: Path) -> Json:
    """What a page holds, read as a browser reads it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data: Json = json.loads(found.group(1))
    return data


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "comparison"
    methods = "mixtrain-cutmix,random-backprop[keep=0.5]"
    call("compare", *SMALL, "--epochs", 4, "--lr", 0.05, "--seeds", 2, "--methods", methods, "--out", out)
    return out


@pytest.fixture(scope="module")
def page(compared: Path) -> Path:
    return write_report([compared], compared.parent / "page.html")


@pytest.fixture(scope="module")
def study(page: Path) -> Json:
    (only,) = content(page)["studies"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(scope="module")
def summary(compared: Path) -> Json:
    found: Json = json.loads((compared / "compare.json").read_text())
    return found


def folder_of(compared: Path, row: str, seed: int = 0) -> Path:
    return compared / "runs" / row / f"seed-{seed}"


def rows_of(run: Path) -> list[Json]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_beside_the_comparison_and_says_where(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("report", compared)
    assert capsys.readouterr().out.strip() == str(compared / "report.html")
    assert (compared / "report.html").read_text().startswith("<!doctype html>")


def test_out_is_a_file_or_a_folder(compared: Path, tmp_path: Path) -> None:
    assert write_report([compared], tmp_path / "new" / "x.html") == tmp_path / "new" / "x.html"
    assert write_report([compared], tmp_path) == tmp_path / "report.html"


def test_the_page_is_one_small_file_that_refers_to_nothing_outside(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_size < 1_000_000
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "innerHTML" not in text
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=\"(?!data:)", text)


def test_long_runs_stay_small(compared: Path, tmp_path: Path) -> None:
    """As long as on CIFAR-10; of 3,000 examples only, as the number of those in a page is limited anyway."""
    epochs, examples, rng = 150, 3000, np.random.default_rng(0)
    runs = []
    for row in ("plain", "mixtrain-cutmix", "random-backprop"):
        run = tmp_path / row
        shutil.copytree(folder_of(compared, row), run, ignore=shutil.ignore_patterns("history"))
        last = rows_of(run)[-1]
        lines = [{**last, "epoch": e, "progress": (e + 1) / epochs} for e in range(epochs)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "history").mkdir()
        for e in range(epochs):
            np.savez(
                run / "history" / f"epoch-{e:04d}.npz",
                loss=rng.lognormal(0, 1.5, examples).astype(np.float16),
                correct=rng.random(examples) < 0.5,
                constituents=rng.integers(1, 3, examples).astype(np.uint8),
                size=np.full(examples, 100, np.uint8),
            )
        runs.append(run)
    made = write_report(runs, tmp_path / "long.html")
    assert made.stat().st_size < 3_000_000
    (only,) = content(made)["studies"]
    assert len(only["examples"]["index"]) == 240
    assert "no longer what the run was trained on" in only["notes"][0]  # 3,000 examples, not 160


# -- escaping ----------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_embedded_json_means_the_same_and_holds_no_character_of_html(value: Any) -> None:
    text = embed(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()


def test_what_json_cannot_say_is_null() -> None:
    assert embed([float("inf"), float("nan"), {"a": -float("inf")}]) == '[null,null,{"a":null}]'
    assert json.loads(embed("\udcff</script>")) == "\udcff</script>"  # a file's name need not be UTF-8


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_table_is_the_one_that_compare_prints(study: Json, summary: Json) -> None:
    printed = [str(column.header) for column in comparison_table(summary).columns]
    assert printed == ["", *COMPARISON_COLUMNS]
    assert [column["name"] for column in study["table"]["columns"]] == printed[1:]
    for shown, row in zip(study["table"]["rows"], summary["rows"], strict=True):
        assert shown["label"] == row["label"]
        assert shown["cells"] == comparison_cells(row)
        assert shown["values"][0] == row["accuracy"]
    assert [v["text"] for v in study["verdicts"]] == [r["verdict"] for r in summary["rows"] if r["role"] == "method"]


def test_points_are_the_comparison_s(study: Json, summary: Json) -> None:
    for point, row in zip(study["points"], summary["rows"], strict=True):
        for name in ("label", "accuracy", "accuracy_spread", "cost_ratio", "time_ratio"):
            assert point[name] == row[name]


def test_curves_end_where_the_runs_ended(study: Json, compared: Path) -> None:
    curves = {curve["label"]: curve for curve in study["curves"]}
    assert len(curves) == 7
    ends = [rows_of(folder_of(compared, "mixtrain-cutmix", seed))[-1] for seed in (0, 1)]
    curve = curves["mixtrain-cutmix"]
    accuracies = [row["test_accuracy"] for row in ends]
    assert curve["test_accuracy"]["mean"][-1] == pytest.approx(np.mean(accuracies), rel=1e-5)
    assert curve["test_accuracy"]["low"][-1] == pytest.approx(min(accuracies), rel=1e-5)
    assert curve["test_accuracy"]["high"][-1] == pytest.approx(max(accuracies), rel=1e-5)
    assert curve["cost"][-1] == pytest.approx(np.mean([row["total_cost"] for row in ends]) / 160, rel=1e-5)
    assert curve["seconds"][-1] == pytest.approx(np.mean([row["total_seconds"] for row in ends]), rel=1e-5)


def test_what_mixtrain_did_is_what_its_metrics_say(study: Json, compared: Path) -> None:
    assert [(part["label"], part["seed"]) for part in study["inside"]] == [("mixtrain-cutmix", s) for s in (0, 1)]
    rows = rows_of(folder_of(compared, "mixtrain-cutmix"))
    part = study["inside"][0]
    assert [panel["title"] for panel in part["panels"]] == ["Share of the examples mixed, by region", "Thresholds"]
    drawn = {one["name"]: one["values"] for panel in part["panels"] for one in panel["series"]}
    for name in ("mixed_region1", "mixed_region3", "skipped", "L_corr", "L_mid", "L_incorr"):
        assert drawn[name] == [row[name] for row in rows]
    histogram = part["histogram"]
    assert histogram["marks"] == ["L_corr", "L_mid", "L_incorr"]
    assert histogram["thresholds"][:-1] == [[row[n] for n in ("L_corr", "L_mid", "L_incorr")] for row in rows[1:]]
    assert histogram["thresholds"][-1] == [None, None, None]  # the run ended, so nothing was judged by its last losses
    for e, row in enumerate(rows):
        assert sum(sum(histogram[kind][e]) for kind in ("right", "wrong", "mixed")) == 160
        assert sum(histogram["mixed"][e]) == round(160 * row["mixed"])


def test_examples_have_the_losses_of_the_history(study: Json, compared: Path) -> None:
    examples = study["examples"]
    assert examples["total"] == 160
    assert [told["label"] for told in examples["histories"]] == ["plain", "mixtrain-cutmix", "random-backprop"]
    for told in examples["histories"]:
        run = folder_of(compared, told["label"])
        for e in told["epochs"]:
            with np.load(run / "history" / f"epoch-{e:04d}.npz") as saved:
                for place, index in enumerate(examples["index"]):
                    loss, shown = told["loss"][place][e], int(saved["constituents"][index])
                    look = told["states"][told["state"][place][e]]["look"]
                    assert (loss is None) == (shown == 0)
                    assert loss is None or loss == pytest.approx(float(saved["loss"][index]), rel=6e-3)
                    assert look in {2: ("mixed",), 1: ("whole",), 0: ("skipped", "none")}[shown]
                    assert told["correct"][place][e] == str(int(saved["correct"][index]))


def test_use_counts_how_often_an_example_was_trained_on(study: Json, compared: Path) -> None:
    used = {part["label"]: part for part in study["use"]}
    assert used.keys() == {"mixtrain-cutmix", "random-backprop"}  # plain training treats all alike
    assert used["mixtrain-cutmix"]["what"] == "mixed"
    counts = np.zeros(160)
    for e in range(4):
        with np.load(folder_of(compared, "random-backprop") / "history" / f"epoch-{e:04d}.npz") as saved:
            counts += saved["constituents"] != 0
    part = used["random-backprop"]
    assert part["what"] == "trained"
    for item in (*part["most"], *part["least"]):
        assert item["count"] == counts[item["index"]]
    assert part["most"][0]["count"] == counts.max()
    assert part["least"][0]["count"] == counts.min()
    assert {item["index"] for item in (*part["most"], *part["least"])} <= set(study["examples"]["index"])
    assert np.mean([c["share"] for c in part["classes"]]) == pytest.approx(0.5, abs=0.05)


def test_pictures_are_the_data_set_s(study: Json) -> None:
    from leantrain import data

    images = data.load("digits", train_limit=160)
    shown = study["examples"]
    file = io.BytesIO(base64.b64decode(shown["sheet"]["uri"].split(",")[1]))
    pixels = np.asarray(Image.open(file))
    side, columns = shown["sheet"]["side"], shown["sheet"]["columns"]
    for place in (0, 7, len(shown["index"]) - 1):
        wanted = images.train.batch(torch.tensor([shown["index"][place]]), -1)[0][0, 0].numpy()
        top, left = place // columns * side, place % columns * side
        assert (pixels[top : top + side, left : left + side] == wanted).all()
        assert shown["targets"][place] == int(images.train.targets[shown["index"][place]])


def test_composites_are_of_examples_that_the_page_knows(study: Json) -> None:
    gallery = study["inside"][0]["gallery"]
    assert gallery["mixer"] == "CutMix"
    assert gallery["items"]
    for parts in gallery["items"]:
        assert {part["index"] for part in parts} <= set(study["examples"]["index"])
        assert [part["share"] for part in parts] == [0.5, 0.5]
    assert study["inside"][1]["gallery"] is None  # another seed's look alike


def test_settings_versions_hardware_and_the_command_are_shown(study: Json, compared: Path) -> None:
    import torch as framework

    assert {"name": "torch", "value": framework.__version__} in study["versions"]
    assert {item["name"] for item in study["hardware"]} >= {"cpu", "device", "threads"}
    assert {"name": "batch-size", "value": "32"} in study["settings"]
    words = shlex.split(study["command"])
    assert words[:2] == ["leantrain", "compare"]
    assert words[words.index("--methods") + 1] == "mixtrain-cutmix,random-backprop"
    assert words[words.index("--out") + 1] == str(compared)


def test_the_command_of_a_run_makes_the_same_run(compared: Path) -> None:
    config = TrainConfig(**read_yaml(folder_of(compared, "mixtrain-cutmix") / "config.yaml"))
    words = shlex.split(command("train", config))
    params = cli.commands["train"].make_context("train", words[2:]).params
    given = {name: v for name, v in params.items() if v is not None and name not in ("config_file", "resume")}
    again = TrainConfig(**from_mapping(given, "the command"))
    for name, value in vars(config).items():
        if name not in ("workers", "pin_memory"):  # these change no result
            assert getattr(again, name) == value, name


# -- other input -------------------------------------------------------------------------------------------------------


def test_plain_runs_get_their_results_curves_and_examples(compared: Path, tmp_path: Path) -> None:
    names = (("plain", 0), ("mixtrain-cutmix", 0), ("mixtrain-cutmix", 1))
    runs = [folder_of(compared, name, seed) for name, seed in names]
    (study,) = content(write_report(runs, tmp_path / "r.html"))["studies"]
    assert study["kind"] == "runs"
    labels = ["plain, seed 0", "mixtrain-cutmix, seed 0", "mixtrain-cutmix, seed 1"]
    assert [row["label"] for row in study["table"]["rows"]] == labels
    for row, run in zip(study["table"]["rows"], runs, strict=True):
        result = json.loads((run / "result.json").read_text())
        assert row["cells"][0] == f"{result['test_accuracy']:.2%}"
    assert [curve["label"] for curve in study["curves"]] == labels
    assert len(study["inside"]) == 2
    assert study["examples"]["total"] == 160
    assert study["verdicts"] == []
    assert study["command"].count("leantrain train") == 3


def test_runs_on_different_data_and_a_comparison_stand_side_by_side(compared: Path, tmp_path: Path) -> None:
    call("train", *SMALL, "--train-limit", 60, "--epochs", 1, "--out", tmp_path / "other")
    made = content(write_report([folder_of(compared, "plain"), tmp_path / "other", compared], tmp_path / "r.html"))
    assert [study["kind"] for study in made["studies"]] == ["comparison", "runs", "runs"]
    assert [study["examples"]["total"] for study in made["studies"]] == [160, 160, 60]


def test_a_run_without_history_says_so(tmp_path: Path) -> None:
    call("train", *SMALL, "--epochs", 1, "--no-history", "--method", "mixtrain-cutmix", "--out", tmp_path / "o")
    (study,) = content(write_report([tmp_path / "o"]))["studies"]
    assert study["examples"] is None
    assert study["inside"][0]["histogram"] is None
    assert "--no-history" in study["notes"][0]


def test_a_cut_run_is_shown_as_far_as_it_came(compared: Path, tmp_path: Path) -> None:
    run = tmp_path / "cut"
    shutil.copytree(folder_of(compared, "mixtrain-cutmix"), run)
    (run / "result.json").unlink()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(run)[:2]))
    (study,) = content(write_report([run]))["studies"]
    assert study["failures"] == [{"name": "mixtrain-cutmix", "reason": "not finished yet"}]
    assert len(study["curves"][0]["cost"]) == 2
    assert study["examples"]["histories"][0]["epochs"] == [0, 1]


def test_a_comparison_that_has_barely_begun_has_a_page(compared: Path, tmp_path: Path) -> None:
    shutil.copy(compared / "compare.yaml", tmp_path / "compare.yaml")
    (study,) = content(write_report([tmp_path]))["studies"]
    assert study["points"] == []
    assert study["curves"] == []
    assert {cell for row in study["table"]["rows"] for cell in row["cells"][2:6]} == {"—"}


def test_one_seed_has_no_interval(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "one"
    shutil.copytree(compared, out)
    settings = (out / "compare.yaml").read_text().replace("seeds: 2", "seeds: 1")
    (out / "compare.yaml").write_text(settings)
    (study,) = content(write_report([out]))["studies"]
    assert study["verdicts"][0]["standing"] == "open"
    assert study["points"][1]["accuracy_spread"] is None


def test_data_that_is_gone_or_changed_costs_the_pictures_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(8):
                pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / part / name / f"{i}.png")
    flags = ("--width", 4, "--batch-size", 8, "--epochs", 1, "--workers", 0, "--threads", 1)
    call("train", "--data", tmp_path / "data", *flags, "--out", tmp_path / "o")
    (study,) = content(write_report([tmp_path / "o"]))["studies"]
    assert study["examples"]["sheet"] is not None
    assert study["examples"]["names"][0].endswith(".png")
    (tmp_path / "data" / "train" / "a" / "0.png").unlink()
    (study,) = content(write_report([tmp_path / "o"]))["studies"]
    assert study["examples"]["sheet"] is None
    assert "no longer what the run was trained on" in study["notes"][0]
    shutil.rmtree(tmp_path / "data")
    (study,) = content(write_report([tmp_path / "o"]))["studies"]
    assert study["examples"]["sheet"] is None
    assert "The pictures are not shown" in study["notes"][0]
    assert study["examples"]["histories"][0]["loss"][0][0] > 0


def test_a_history_that_cannot_be_read_is_a_note(compared: Path, tmp_path: Path) -> None:
    run = tmp_path / "broken"
    shutil.copytree(folder_of(compared, "plain"), run)
    file = run / "history" / "epoch-0001.npz"
    file.write_bytes(file.read_bytes()[:100])
    (study,) = content(write_report([run]))["studies"]
    assert study["examples"] is None
    assert "history of epoch 1" in study["notes"][0]
    assert study["curves"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/nowhere"], "there is no folder"),
        (["{}"], "holds neither a run"),
        ([], "DIR"),
        (["{run}", "--out", "{}/file/sub.html"], "cannot be written"),
        (["{bad}"], "result.json' cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: str, compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    run, bad = folder_of(compared, "plain"), tmp_path / "bad"
    shutil.copytree(run, bad)
    (bad / "result.json").write_text("{")
    with pytest.raises(SystemExit) as exit_:
        main(["report", *(text.replace("{}", str(tmp_path)).format(run=run, bad=bad) for text in arguments)])
    said = capsys.readouterr().err.strip()
    assert exit_.value.code == 2
    assert words in said
    assert len(said.splitlines()) == 1


def test_nothing_to_report_on_is_an_error() -> None:
    with pytest.raises(LeanError, match="nothing to report on"):
        write_report([])


# -- small parts -------------------------------------------------------------------------------------------------------


def test_a_sheet_shrinks_large_pictures_and_keeps_small_ones() -> None:
    small = torch.randint(0, 255, (5, 3, 8, 8), dtype=torch.uint8)
    made = sheet(small, 64)
    assert (made.side, made.columns, made.rows) == (8, 3, 2)
    assert sheet(torch.zeros(2, 1, 200, 200, dtype=torch.uint8), 64).side == 64


def test_a_heavy_sheet_is_no_longer_lossless() -> None:
    noise = torch.randint(0, 255, (240, 3, 64, 64), dtype=torch.uint8)
    made = sheet(noise, 64)
    assert made.uri.startswith("data:image/jpeg")
    assert len(made.uri) < 3_500_000  # noise is the worst case; photographs take a fifth of it


def test_the_border_of_two_constituents_is_drawn_and_nothing_else() -> None:
    pixels = torch.full((1, 3, 8, 8), 7, dtype=torch.uint8)
    owner = torch.zeros(1, 8, 8)
    owner[:, :, 4:] = 1
    drawn = outlined(pixels, owner)
    assert (drawn[:, :, :, :3] == 7).all()
    assert (drawn[:, :, :, 5:] == 7).all()
    assert (drawn[:, :, :, 3:5] != 7).all()


def test_evenly_keeps_both_ends() -> None:
    assert evenly(range(5), 10) == [0, 1, 2, 3, 4]
    assert evenly(range(100), 3) == [0, 50, 99]


@pytest.mark.parametrize("method", ["plain", "mixtrain-cutmix", "infobatch + mixtrain-mixup + progressive-resizing"])
def test_every_treatment_has_a_letter_and_words_of_its_own(method: str) -> None:
    possible = treatments(parse_method(method))
    assert len({one.letter for one in possible}) == len({one.label for one in possible}) == len(possible)
    assert any("region 3" in one.label for one in possible) == ("mixtrain" in method)


def test_a_result_that_has_lost_any_of_its_fields_is_shown_or_refused(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(next((compared / "runs").glob("*/seed-*")), tmp_path / "run")
    file = tmp_path / "run" / "result.json"
    whole = json.loads(file.read_text())
    for lost in whole:
        file.write_text(json.dumps({name: value for name, value in whole.items() if name != lost}))
        with contextlib.suppress(LeanError):
            collect([tmp_path / "run"])

"""A user's own code, by --plugin, by the environment and by an installed package, is known to every command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leantrain.cli import main
from leantrain.cli.plugins import VARIABLE
from leantrain.scoring import load
from program import SMALL
from program import run_process as run

PLUGIN = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leantrain.methods import RandomBackprop
from leantrain.methods import register_method


@register_method
@dataclass(frozen=True)
class Mine(RandomBackprop):
    """A method of my own."""

    name: ClassVar[str] = "NAME"
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "")  # and so back to what it was, afterwards
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.replace("NAME", "my-backprop"))
    return file


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([str(a) for a in arguments])
    said = capsys.readouterr().err.strip()
    assert exit_.value.code == 2
    assert len(said.splitlines()) == 1
    return said


def test_its_methods_are_listed_trained_with_and_known_to_child_processes(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = run("--plugin", "mine.py", "methods")
    assert "my-backprop" in listed.stdout, listed.stderr
    assert "A method of my own." in listed.stdout
    flags = ["--epochs", 1, "--seeds", 1, "--no-controls", "--methods", "my-backprop[keep=0.75]", "--jobs", 2]
    done = run("--plugin", "mine.py", "compare", *SMALL, *flags, "--out", tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert "my-backprop[keep=0.75]" in done.stdout
    assert "failed" not in done.stderr


def test_the_environment_names_plugins_too(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.py"
    other.write_text(PLUGIN.replace("NAME", "other-backprop"))
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(plugin), str(other)]))
    listed = run("methods").stdout
    assert "my-backprop" in listed
    assert "other-backprop" in listed


def test_an_installed_package_offers_its_plugins(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[leantrain.plugins]\nmine = mine\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "my-backprop" in run("methods").stdout


def test_one_that_is_missing_or_broken_is_one_sentence(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no_such.py' cannot be imported: there is no such file" in fails(
        capsys, "--plugin", tmp_path / "no_such.py", "methods"
    )
    assert "No module named 'no_such_module'" in fails(capsys, "--plugin", "no_such_module", "methods")
    plugin.write_text("import no_such_package")
    assert "mine.py' cannot be imported: No module named 'no_such_package'" in fails(
        capsys, "--plugin", plugin, "methods"
    )
    plugin.write_text("1 / 0")
    assert "division by zero; fix it or leave it out." in fails(capsys, "--plugin", plugin, "methods")


def test_help_and_wrong_flags_do_not_wait_for_it(plugin: Path) -> None:
    plugin.write_text("raise RuntimeError('imported')")
    assert run("--plugin", plugin, "train", "--help").returncode == 0
    assert "imported" not in run("--plugin", plugin, "train", "--no-such-flag").stderr


def test_the_example_of_your_own_method_form_and_score_appears_everywhere(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "examples" / "own_method.py"
    with_plugin = ("--plugin", file)
    assert "share of the examples that the first epochs train on" in run(*with_plugin, "methods", "curriculum").stdout
    chain = "curriculum + mixtrain-cutmix[select=all,split=false] + crops[side=0.8]"
    pruning = "prune[models=1,score_epochs=1,by=margin] + crops"
    done = run(*with_plugin, "compare", *SMALL, "--epochs", 2, "--seeds", 1, "--no-controls", "--out", tmp_path / "c",
               "--methods", f"{chain},{pruning}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "c" / "compare.json").read_text())["rows"]
    assert [row["label"] for row in rows if len(row["seeds"]) == 1] == ["plain", chain, pruning]
    page = (tmp_path / "c" / "report.html").read_text()
    assert chain in page and "Share of the examples mixed" in page
    (scores,) = (tmp_path / "c").rglob("scores.npz")
    assert load(scores).kind == "margin"
    assert "margin" in run(*with_plugin, "score", "--help").stdout
    without = run("train", *SMALL, "--out", tmp_path / "w", "--method", "curriculum")
    assert without.returncode == 2
    assert "method 'curriculum' is not known" in without.stderr

"""The wheel: what users install holds all that it needs, and works where the checkout is not at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import sys, leantrain, leantrain.cli
from pathlib import Path

def run(*words):
    try:
        leantrain.cli.main(list(words))
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)

home = Path(leantrain.__file__).parent
assert home.is_relative_to(sys.argv[1]), home
assert (home / "py.typed").exists()
run("train", *"--data digits --train-limit 100 --width 4 --epochs 1 --threads 1 --out run".split())
run("report", "run", "--out", "page.html")  # which needs files that are no code
assert "<html" in Path("page.html").read_text()
run("bench", "tables", "--list")
run("bench", "accelerators", "--help")
"""
"""What a user does with it, who has no checkout."""


def ran(*words: object, cwd: Path) -> str:
    """What a program says that knows nothing of the checkout."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # setuptools leaves things behind where it builds
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src" / "leantrain", source / "src" / "leantrain", ignore=shutil.ignore_patterns("__pyc*"))
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    ran(sys.executable, "-m", "pip", "wheel", *how, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("leantrain-*.whl")
    return built


def test_it_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    with zipfile.ZipFile(wheel) as content:
        content.extractall(own)
    # Its dependencies lie where this test runs: a folder behind the new one, whose own links are not followed.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert "000-table1" in ran(environment / "bin" / "python", "-c", USE, environment, cwd=tmp_path)


@pytest.mark.timeout(1200)
def test_it_brings_what_it_needs_into_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    ran(*pip, "-c", ROOT / "constraints.txt", f"{wheel}[cli]", cwd=tmp_path)
    assert "000-table1" in ran(python, "-c", USE, environment, cwd=tmp_path)
    assert "--budget" in ran(environment / "bin" / "leantrain", "train", "--help", cwd=tmp_path)

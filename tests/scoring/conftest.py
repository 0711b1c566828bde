"""A run and a file of scores that the command made, once for all tests of scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from scoring_helpers import call

from program import SMALL, run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "half"
    call("train", *SMALL, "--epochs", 5, "--method", "random-backprop[keep=0.5]", "--out", out)
    return out


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the command wrote a file of scores, in a process of its own."""
    folder = tmp_path_factory.mktemp("scored")
    done = run("score", *SMALL, "--models", 2, "--score-epochs", 2, "--out", "s.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder

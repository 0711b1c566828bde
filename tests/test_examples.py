"""Every example runs as its reader would run it, learns, and saves what it says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("_"))
LAUNCHERS = {"distributed.py": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]}
SAYS = {
    "resume.py": "the same bits\n",
    "own_model.py": "without a name: ",
    "distributed.py": "2 processes\n",
    "dict_batches.py": "pixel_values, labels, file",
}


OWN_PROCESS = ("compiled.py", "own_method.py", *LAUNCHERS)
"""Started as a reader starts them; the others run inside this process, as starting one takes longer than it."""


def output_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    if name not in OWN_PROCESS:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out
    command = [sys.executable, *LAUNCHERS.get(name, []), str(EXAMPLES / name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_example_learns_and_says_what_it_cost(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = output_of(name, monkeypatch, capsys)
    assert SAYS.get(name, "") in said
    end = re.fullmatch(r"accuracy (\d\.\d+), cost (\d\.\d+) of plain training", said.splitlines()[-1])
    assert end is not None, said
    accuracy, cost = map(float, end.groups())
    assert accuracy > 0.85
    assert cost == 1.0 if name == "plain_loop.py" else 0.3 < cost < 0.8


def test_the_readme_names_every_example() -> None:
    named = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(named) == SCRIPTS


def test_the_loop_differs_from_a_plain_one_in_six_marked_lines() -> None:
    plain, lean = ((EXAMPLES / name).read_text().split('"""\n', 1)[1] for name in ("plain_loop.py", "mixtrain_loop.py"))
    loop = lean.split("    print(")[0]  # what is printed at the end of an epoch is not part of it
    added = [line for line in loop.splitlines() if line not in plain.splitlines()]
    assert len(added) == 6
    assert all("# + leantrain" in line for line in added)

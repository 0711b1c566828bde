"""`leantrain train` in several processes, with the environment that torchrun gives them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leantrain.models.weights import read_safetensors
from leantrain.run import processes
from program import SMALL, rows, run, same_run

PATIENCE = 60  # seconds; a process that has lost another one must not wait for ever


def arguments(out: Path, *more: object) -> list[str]:
    own = ("--epochs", 6, "--dropout", 0.3, "--checkpoint-every", 2, "--out", out)
    return [str(word) for word in ("train", "--data", "digits", *SMALL, *own, *more)]


class Together:
    """The command in several processes: forked, as a fresh one would take seconds to import torch."""

    def __init__(self, ranks: int, words: list[str], restarts: int = 0) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        out = Path(words[words.index("--out") + 1])
        self.logs = [out.with_name(f"{out.name}-{restarts}-{rank}.log") for rank in range(ranks)]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": restarts}
        shared |= {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        context = multiprocessing.get_context("fork")
        self.processes = [
            context.Process(target=start, args=({**shared, "RANK": rank, "LOCAL_RANK": rank}, words, self.logs[rank]))
            for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()

    def codes(self) -> list[int | None]:
        for process in self.processes:
            process.join(PATIENCE)
            if process.exitcode is None:
                process.kill()
        return [process.exitcode for process in self.processes]

    def said(self, rank: int = 0) -> str:
        return self.logs[rank].read_text()

    def wait_until(self, true: Callable[[], bool]) -> None:
        while not true() and all(process.is_alive() for process in self.processes):
            time.sleep(0.01)


def start(environment: dict[str, Any], words: list[str], log: Path) -> None:
    from leantrain.cli import main

    os.environ.update({name: str(value) for name, value in environment.items()})
    with open(log, "w", buffering=1) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            main(words)
        except SystemExit as ended:
            os._exit(ended.code if isinstance(ended.code, int) else 0)  # without what pytest does at its end


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What every process would import for itself."""
    import torch._dynamo  # noqa: F401

    assert run(*arguments(tmp_path_factory.mktemp("first") / "run", "--epochs", 1)).returncode == 0


def test_a_killed_process_ends_the_others_and_a_restart_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    method = "selective-backprop"  # decides inside the epoch, with examples that wait in the checkpoint
    whole = Together(2, arguments(tmp_path / "whole", "--method", method))
    assert whole.codes() == [0, 0], whole.said()
    assert "batch 32 (16 in each of 2 processes)" in whole.said()
    assert whole.said(1) == ""  # one of them speaks

    out = tmp_path / "killed"
    killed = Together(2, arguments(out, "--method", method))
    killed.wait_until((out / "metrics.jsonl").exists)
    killed.processes[1].kill()
    assert killed.codes() == [1, -signal.SIGKILL]
    assert "process 0: another of the 2 processes that train together has gone" in killed.said()
    assert len(rows(out)) < 6
    shutil.copytree(out, tmp_path / "four")

    again = Together(2, arguments(out, "--method", method), restarts=1)  # as torchrun --max-restarts does
    before = (out / "checkpoint.pt").stat().st_mtime_ns
    again.wait_until(lambda: (out / "checkpoint.pt").stat().st_mtime_ns != before)
    for process in again.processes:
        process.terminate()  # as torchrun does when it is told to stop
    assert again.codes() == [143, 143], again.said()
    assert "stopped and saved at step" in again.said()

    resumed = Together(2, arguments(out, "--method", method, "--resume"))
    assert resumed.codes() == [0, 0], resumed.said()
    same_run(tmp_path / "whole", out)

    four = Together(4, arguments(tmp_path / "four", "--method", method, "--resume"))
    assert four.codes() == [0] * 4, four.said()
    assert [row["epoch"] for row in rows(tmp_path / "four")] == list(range(6))
    saved = torch.load(tmp_path / "four" / "checkpoint.pt", weights_only=True)
    assert saved["lean"]["ranks"] == 4 and len(saved["other_generators"]) == 3


def test_scores_are_made_by_all_processes_and_are_the_same(tmp_path: Path) -> None:
    words = arguments(tmp_path / "run", "--method", "diet-sb[models=1,score_epochs=1]", "--epochs", "2")
    both = Together(2, words)
    assert both.codes() == [0, 0], both.said()
    assert (tmp_path / "run" / "scores.npz").exists()
    refused = Together(2, arguments(tmp_path / "other", "--sync-batchnorm"))
    assert refused.codes() == [2, 2]
    assert "--sync-batchnorm needs GPUs" in refused.said()


def test_gradients_of_accumulated_parts_are_averaged_once_over_the_processes(tmp_path: Path) -> None:
    words: list[object] = ["train", "--data", "digits", "--train-limit", 160, "--model", "test_vit"]
    words += ["--optimizer", "sgd", "--lr", 0.1]
    words += ["--epochs", 2, "--batch-size", 50, "--accumulate", 2, "--precision", "fp32", "--threads", 1]
    both = Together(2, [str(word) for word in (*words, "--out", tmp_path / "both")])
    assert both.codes() == [0, 0], both.said()
    assert run(*words, "--out", tmp_path / "alone").returncode == 0
    weights, alone = (read_safetensors(tmp_path / name / "model.safetensors") for name in ("both", "alone"))
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-4, atol=1e-5)


def test_parameters_that_a_batch_leaves_out_are_not_waited_for(tmp_path: Path) -> None:
    words = ("--method", "stochastic-depth", "--epochs", "2")
    both = Together(2, arguments(tmp_path / "both", *words))
    assert both.codes() == [0, 0], both.said()
    assert run(*arguments(tmp_path / "alone", *words)).returncode == 0
    costs = [[row["cost"] for row in rows(tmp_path / name)] for name in ("both", "alone")]
    assert costs[0] == costs[1]


def test_a_model_that_loses_channels_is_trained_and_resumed_by_all_processes(tmp_path: Path) -> None:
    words = ("--method", "prune-train[threshold=0.5]", "--epochs", "8")
    whole = Together(2, arguments(tmp_path / "whole", *words))
    assert whole.codes() == [0, 0], whole.said()
    assert rows(tmp_path / "whole")[-1]["network"] < 0.9

    out = tmp_path / "cut"
    cut = Together(2, arguments(out, *words))
    cut.wait_until(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) >= 2)
    for process in cut.processes:
        process.terminate()
    assert cut.codes() == [143, 143], cut.said()
    resumed = Together(2, arguments(out, *words, "--resume"))
    assert resumed.codes() == [0, 0], resumed.said()
    same_run(tmp_path / "whole", out)


def test_devices_starts_the_command_again_in_as_many_processes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert processes.launch(2, 1, ["--version"]) == 0
    assert capfd.readouterr().out.count("leantrain, version") == 2
    assert processes.launch(2, 1, ["no-such-command"]) == 2
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    refused = run("train", "--nodes", 2)
    assert refused.returncode == 2
    assert "--nodes is 2, but the environment has no MASTER_ADDR and no NODE_RANK" in refused.stderr


ENDING = """
import atexit, os
from leantrain.cli import main

class Aborts:
    def __del__(self, abort=os.abort):
        abort()

at_the_end = Aborts()  # as a thread of gloo's may, when Python goes down
atexit.register(print, "all is said", flush=True)
main(["methods"])
"""


@pytest.mark.parametrize(("environment", "code"), [({"TORCHELASTIC_RUN_ID": "one"}, 0), ({}, -signal.SIGABRT)])
def test_a_process_of_several_ends_before_python_goes_down(environment: dict[str, str], code: int) -> None:
    alone = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    done = subprocess.run([sys.executable, "-c", ENDING], env=alone | environment, capture_output=True, text=True)
    assert done.returncode == code
    assert "mixtrain-cutmix" in done.stdout and done.stdout.rstrip().endswith("all is said")

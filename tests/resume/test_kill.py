"""A killed run, resumed, ends in the same bits as one that was left alone."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from program import SMALL, command, run, same_run

METHOD = "mixtrain-cutmix"  # has state of its own, in the ledger and beside it
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def arguments(out: Path, data: str = "digits", *more: object) -> list[object]:
    return ["train", "--data", data, *SMALL, "--epochs", 8, "--dropout", 0.3, "--method", METHOD, "--out", out, *more]


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


def kill_and_resume(out: Path, words: list[object], kills: int, seed: int) -> int:
    """Kill the run `kills` times at random moments after it has begun, then let it end; says how many kills hit."""
    rng = random.Random(seed)
    hits = 0
    process = start(*words)
    for _ in range(kills):
        wait_for(out / "config.yaml", process)
        ready = time.monotonic()
        before = (out / "checkpoint.pt").stat().st_mtime_ns if (out / "checkpoint.pt").exists() else 0
        while process.poll() is None and time.monotonic() < ready + 30:  # until it has gone on a little
            now = (out / "checkpoint.pt").stat().st_mtime_ns if (out / "checkpoint.pt").exists() else 0
            if now != before:
                break
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.25))
        process.kill()
        process.communicate()
        hits += process.returncode == -signal.SIGKILL
        process = start(*words, "--resume")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return hits


def test_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    assert run(*arguments(tmp_path / "whole", "digits", "--checkpoint-every", 4)).returncode == 0
    out = tmp_path / "killed"
    hits = kill_and_resume(out, arguments(out, "digits", "--checkpoint-every", 2), kills=1, seed=0)
    assert hits == 1
    same_run(tmp_path / "whole", out)


def test_mid_epoch_with_workers_and_another_number_of_them(tmp_path: Path) -> None:
    images = make_folder(tmp_path / "images")
    assert run(*arguments(tmp_path / "whole", str(images), "--workers", 0)).returncode == 0
    out = tmp_path / "killed"
    words = arguments(out, str(images), "--checkpoint-every", 2, "--workers", 2)
    assert kill_and_resume(out, words, kills=1, seed=1) == 1
    same_run(tmp_path / "whole", out)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_prints_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "with space"
    process = start(*arguments(out))
    wait_for(out / "checkpoint.pt", process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    found = re.search(r"go on with: leantrain (.*)$", errors, re.MULTILINE)
    assert found, errors
    assert subprocess.run(
        f"{' '.join(command())} {found.group(1)}", shell=True, env=ENVIRONMENT, capture_output=True
    ).returncode == 0  # fmt: skip
    assert run(*arguments(tmp_path / "whole")).returncode == 0
    same_run(tmp_path / "whole", out)


def test_a_run_cut_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    assert run(*arguments(out)).returncode == 0
    shutil.copytree(out, tmp_path / "whole")
    for name in ("checkpoint.pt", "result.json", "model.safetensors"):
        (out / name).unlink()
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 8, "trai')  # a half-written line
    assert run(*arguments(out, "digits", "--resume")).returncode == 0
    same_run(tmp_path / "whole", out)


def make_folder(root: Path) -> Path:
    """A class-per-folder tree of small PNG files, from the digits."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for part, numbers in (("train", range(240)), ("test", range(240, 300))):
        for i in numbers:
            folder = root / part / f"class {digits.target[i]}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = (digits.images[i] * 15).astype("uint8")
            Image.fromarray(pixels).resize((16, 16)).convert("RGB").save(folder / f"{i}.png")
    return root

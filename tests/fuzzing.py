"""Damaged files and hostile flags, for the fuzz test and the longer one in benchmarks: what we parse, what breaks it.

Whatever is in a file or behind a flag, the answer is a success or a `LeanError`, and never anything else.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import strategies as st
from PIL import Image

from leantrain import data
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import Settings, split_budgets, split_methods
from leantrain.compare.summary import summarise
from leantrain.errors import LeanError
from leantrain.models import build
from leantrain.options import scalar_type
from leantrain.report import write_report
from leantrain.run.config import FIELDS, TrainConfig, from_mapping, read_yaml
from leantrain.run.folder import RunFolder
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve
from leantrain.scoring import load
from leantrain.scoring.kinds import make_score
from leantrain.scoring.scores import Scores

# -- files -------------------------------------------------------------------------------------------------------------


class Damage(NamedTuple):
    """One change to a file's bytes: at a share of its length, something happens to some bytes."""

    kind: str
    place: float
    size: int
    value: int

    def __call__(self, content: bytes) -> bytes:
        at = int(self.place * len(content))
        before, hit, after = content[:at], content[at : at + self.size], content[at + self.size :]
        if self.kind == "flip":
            return before + bytes(byte ^ (1 << self.value % 8) for byte in hit[:1]) + hit[1:] + after
        if self.kind == "cut":
            return before
        if self.kind == "drop":
            return before + after
        if self.kind == "repeat":
            return before + hit + hit + after
        return before + bytes([self.value]) * len(hit) + after  # overwrite


DAMAGES = st.lists(
    st.builds(
        Damage,
        st.sampled_from(["flip", "flip", "flip", "cut", "drop", "repeat", "overwrite"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 16),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


class Target(NamedTuple):
    """A file that we parse.

    Attributes:
        file: which one is damaged, below a folder that holds what `read` reads.
        read: reads all of it that a command would.
    """

    file: str
    read: Callable[[Path], object]


def attack(target: Target, whole: Path, folder: Path, damages: list[Damage]) -> None:
    """Damage a file and read it; anything but a success or a `LeanError` is raised."""
    if not folder.exists():
        shutil.copytree(whole, folder)
    content = (whole / target.file).read_bytes()
    for damage in damages:
        content = damage(content)
    (folder / target.file).write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(folder)
    except LeanError:
        pass
    finally:
        shutil.copy(whole / target.file, folder / target.file)


def _resume(folder: Path) -> None:
    out = folder / "run"
    images = load_images(CONFIG)
    Run(resolve(CONFIG, images), images, out).load_checkpoint()
    shutil.copy(folder / "spare.pt", out / "checkpoint.pt")  # where it was replaced by the one before


def _start(folder: Path) -> None:
    build("resnet8", classes=10, channels=1, image_size=32, width=4, weights=folder / "start.pt")


def _pixels(folder: Path) -> None:
    images = data.load(str(folder / "images"))
    for part in (images.train, images.test):
        part.batch(torch.arange(len(part)), 0)


def _skipped(folder: Path) -> None:
    images = data.load(str(folder / "images"), skip_bad_images=True)
    images.train.batch(torch.arange(len(images.train)), -1)


def _table(folder: Path) -> None:
    images = data.load(str(folder / "table.parquet"))
    images.train.batch(torch.arange(len(images.train)), -1)


CONFIG = TrainConfig(width=4, train_limit=40, batch_size=20, epochs=2, model="resnet8", precision="fp32", threads=1)
TARGETS = {
    "settings": Target("run/config.yaml", lambda folder: write_report([folder / "run"])),
    "settings of a new run": Target("run/config.yaml", lambda folder: read_yaml(folder / "run/config.yaml")),
    "metrics": Target("run/metrics.jsonl", lambda folder: write_report([folder / "run"])),
    "result": Target("run/result.json", lambda folder: write_report([folder / "run"])),
    "history": Target("run/history/epoch-0001.npz", lambda folder: RunFolder(folder / "run").epoch(1)),
    "history on a page": Target("run/history/epoch-0001.npz", lambda folder: write_report([folder / "run"])),
    "checkpoint": Target("run/checkpoint.pt", _resume),
    "weights": Target("run/model.safetensors", lambda folder: RunFolder(folder / "run").weights()),
    "weights to start from": Target("start.pt", _start),
    "comparison": Target("compared/compare.yaml", lambda folder: summarise(ComparisonFolder(folder / "compared"))),
    "summary": Target("compared/compare.json", lambda folder: summarise(ComparisonFolder(folder / "compared"))),
    "turns": Target("compared/turns.jsonl", lambda folder: summarise(ComparisonFolder(folder / "compared"))),
    "scores": Target("scores.npz", lambda folder: load(folder / "scores.npz")),
    "scores in parquet": Target("scores.parquet", lambda folder: load(folder / "scores.parquet")),
    "parquet": Target("table.parquet", _table),
    "idx": Target("FashionMNIST/raw/t10k-images-idx3-ubyte", lambda folder: data.load("fashion-mnist", folder)),
    "cifar": Target("cifar-10-batches-bin/test_batch.bin", lambda folder: data.load("cifar10", folder)),
    "class names": Target("cifar-10-batches-bin/batches.meta.txt", lambda folder: data.load("cifar10", folder)),
    **{
        f"{suffix}{' to skip' * skip}": Target(f"images/a/1.{suffix}", _skipped if skip else _pixels)
        for suffix in ("jpg", "png", "gif", "bmp", "webp", "tif", "ppm")
        for skip in (False, True)
    },
}  # fmt: skip
"""Every file that we parse, by what it is."""


def make_files(folder: Path) -> Path:
    """A whole one of each."""
    images = load_images(CONFIG)
    run = Run(resolve(CONFIG, images), images, folder / "run")
    run.write_config()
    run.train()
    shutil.copy(folder / "run/checkpoint.pt", folder / "spare.pt")
    torch.save(run.module.state_dict(), folder / "start.pt")

    compared = ComparisonFolder(folder / "compared")
    compared.write_settings(Settings(run.config, ("rs2[keep=0.5]",), 1))
    compared.add_turn({"session": "a", "row": "plain", "seed": 0, "epoch": 0, "seconds": 1.5})
    compared.write_summary(summarise(compared))

    ids = tuple(map(str, range(20)))
    scores = Scores(torch.rand(20), ids, torch.arange(20) % 2, ("a", "b"), "el2n", 5.0, 1.0, {"data": "digits"})
    scores.save(folder / "scores.npz")
    scores.save(folder / "scores.parquet")

    for number in range(6):
        for name in "ab":
            for suffix in ("jpg", "png", "gif", "bmp", "webp", "tif", "ppm"):
                place = folder / "images" / name / f"{number}.{suffix}"
                if suffix == "png" or number == 1:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    Image.effect_noise((16, 12), 60).convert("RGB").save(place)
    encoded = [(folder / f"images/a/{number % 6}.png").read_bytes() for number in range(12)]
    pq.write_table(pa.table({"image": encoded, "label": [0, 1] * 6}), folder / "table.parquet")

    raw, binary = folder / "FashionMNIST/raw", folder / "cifar-10-batches-bin"
    raw.mkdir(parents=True)
    binary.mkdir()
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 10, 28, 28) + bytes(10 * 784))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 10) + bytes(range(10)))
    record = b"".join(bytes([label]) + bytes(3072) for label in range(10))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (binary / f"{name}.bin").write_bytes(record)
    (binary / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    return folder


# -- flags -------------------------------------------------------------------------------------------------------------

HOSTILE = (
    "", " ", "-1", "0", "1e400", "nan", "inf", "-inf", "9" * 400, "1_0", "0x10", "٣", "½", "true", "None", "null",
    "x" * 300, "../" * 50, "/dev/null", "/proc/self/mem", "\0", "a\nb", "\x1b[31m", "\ud800", "💥", "'\"`$(id)",
    "plain + plain", "plain[", "plain]", "plain[=]", "plain[a=]", "el2n[prune=]", "el2n[prune=9e9]", "lean + lean",
    "mixtrain-cutmix[start=2]", "rs2[keep=nan]", "+", "[]", ",", ",,", "a,b", "step[every=0]", "cosine[warmup=1]",
    "torchvision/", "torchvision/../x", "timm", "resnet8[1]", "cuda:99", "meta", "cpu:-1",
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20), st.integers().map(str), st.floats().map(str))
FLAGS = sorted(FIELDS)


def settle(name: str, value: Any) -> None:
    """What `train` does with a flag before it trains; anything but a success or a `LeanError` is raised."""
    given = {"width": 4, "train_limit": 40, "epochs": 1, **({} if value is None else {name: value})}
    with contextlib.suppress(LeanError):
        resolve(TrainConfig(**from_mapping(given, "the command line")), DIGITS)


def parse(text: str) -> None:
    """What `compare` and `score` do with their own."""
    for reader in (split_methods, split_budgets, make_score):
        with contextlib.suppress(LeanError):
            reader(text)


def value_of(name: str) -> st.SearchStrategy[Any]:
    """Values for a flag: texts, and of its own type what YAML may bring."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.one_of(st.floats(), st.integers()),
        bool: st.booleans(),
    }
    own = kinds.get(scalar_type(typing.get_type_hints(TrainConfig)[name]), st.nothing())
    odd = st.one_of(st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.none(), max_size=1))
    return st.one_of(TEXTS, own, odd, st.dates(), st.binary(max_size=4), st.none())


DIGITS = load_images(CONFIG)

"""Sets that need not fit into memory: WebDataset shards and Hugging Face data sets on disk."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from leantrain import data
from leantrain.data import ImageSet
from leantrain.errors import LeanError
from program import run

NUMBER = 120
SMALL = ("--width", 4, "--batch-size", 32, "--threads", 1, "--epochs", 1, "--workers", 0)


def pictures(number: int = NUMBER) -> list[tuple[bytes, int]]:
    """Digits as encoded pictures, with their classes."""
    digits, found = load_digits(), []
    for pixels, label in zip(digits.images[:number], digits.target[:number], strict=True):
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype("uint8")).resize((16, 16)).convert("RGB").save(file, "PNG")
        found.append((file.getvalue(), int(label)))
    return found


def write_shard(path: Path, samples: Sequence[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in samples:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def samples(part: Sequence[tuple[bytes, int]], first: int, label: str = "{}") -> list[tuple[str, bytes]]:
    return [
        entry
        for number, (picture, target) in enumerate(part, start=first)
        for entry in ((f"{number:06d}.png", picture), (f"{number:06d}.cls", label.format(target).encode()))
    ]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three training shards and one to test on."""
    everything = pictures()
    for number in range(3):
        write_shard(
            tmp_path / f"train-{number:03d}.tar", samples(everything[30 * number : 30 * number + 30], 30 * number)
        )
    write_shard(tmp_path / "val-000.tar", samples(everything[90:], 90))
    return tmp_path


def load(shards: Path, name: str = "train-{000..002}.tar") -> ImageSet:
    return data.load(str(shards / name), shards / "root")


def same_pictures(part: data.Images, expected: Sequence[tuple[bytes, int]]) -> None:
    index = torch.arange(len(expected))
    inputs, targets = part.batch(index, data.EVALUATION)
    assert targets.tolist() == [target for _, target in expected]
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(picture))) for picture, _ in expected])
    assert torch.equal(inputs.permute(0, 2, 3, 1), torch.from_numpy(decoded))


@pytest.mark.parametrize("name", ["train-{000..002}.tar", "train-*.tar"])
def test_shards_give_every_image_by_its_index(shards: Path, name: str) -> None:
    images = load(shards, name)
    everything = pictures()
    assert (len(images.train), len(images.test), images.image_size) == (90, 30, 16)
    assert images.classes == tuple("0123456789")
    same_pictures(images.train, everything[:90])
    same_pictures(images.test, everything[90:])
    same_pictures(images.train.select(torch.tensor([88, 3])), [everything[88], everything[3]])


def test_the_index_is_made_once_and_again_when_a_shard_changes(shards: Path) -> None:
    first = load(shards)
    files = {file: file.stat().st_mtime_ns for file in (shards / "root" / "indexes").iterdir()}
    assert load(shards).fingerprint == first.fingerprint
    assert {file: file.stat().st_mtime_ns for file in (shards / "root" / "indexes").iterdir()} == files
    write_shard(shards / "train-001.tar", samples(pictures()[40:60], 0))
    assert len(load(shards).train) == 80


def test_labels_may_be_names_and_a_test_part_is_split_off_where_there_is_none(tmp_path: Path) -> None:
    write_shard(tmp_path / "all.tar", samples(pictures(), 0, "digit {}"))
    images = load(tmp_path, "all.tar")
    assert images.classes[3] == "digit 3"
    assert (len(images.train), len(images.test)) == (96, 24)


def test_what_is_wrong_with_a_shard_is_said(shards: Path) -> None:
    with pytest.raises(LeanError, match=r"no shard at .*train-003.tar"):
        load(shards, "train-{000..003}.tar")
    write_shard(shards / "bare.tar", [("a.png", pictures(1)[0][0])])
    with pytest.raises(LeanError, match=r"no label \(.cls\) for 'a'"):
        load(shards, "bare.tar")
    (shards / "text.tar").write_text("hello")
    with pytest.raises(LeanError, match=r"text.tar' cannot be read"):
        load(shards, "text.tar")


def test_a_method_that_asks_for_single_examples_trains_on_shards(shards: Path) -> None:
    words = ("train", "--data", shards / "train-{000..002}.tar", "--data-root", shards / "root", *SMALL)
    done = run(*words, "--method", "selective-backprop", "--out", shards / "run")
    assert done.returncode == 0, done.stderr


def test_a_hugging_face_set_gives_every_image_by_its_index_and_trains(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the datasets package, leantrain[hf]")
    names = [f"digit {number}" for number in range(10)]
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    everything = pictures()

    def part(rows: Sequence[tuple[bytes, int]]) -> object:
        columns = {"picture": [{"bytes": picture, "path": None} for picture, _ in rows], "label": [y for _, y in rows]}
        return datasets.Dataset.from_dict(columns, features=features)

    parts = datasets.DatasetDict({"train": part(everything[:90]), "test": part(everything[90:])})
    parts.save_to_disk(tmp_path / "set")
    images = data.load(f"hf:{tmp_path / 'set'}")
    assert images.classes[3] == "digit 3"
    same_pictures(images.train, everything[:90])
    same_pictures(images.test, everything[90:])
    assert data.load(f"hf:{tmp_path / 'set'}").fingerprint == images.fingerprint
    done = run("train", "--data", f"hf:{tmp_path / 'set'}", *SMALL, "--method", "infobatch", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    with pytest.raises(LeanError, match="There is no folder"):
        data.load(f"hf:{tmp_path / 'nowhere'}")

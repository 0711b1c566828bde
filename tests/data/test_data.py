"""Data sets: who is in which part, what a batch looks like, and what is said about sets that cannot work."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pickle
import struct
import urllib.error
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import leantrain
from leantrain import data, rng
from leantrain.batch import Batch
from leantrain.data import Augment, FileImages, ImageSet, MemoryImages, decode, kept, parts
from leantrain.data import augment as augment_module
from leantrain.data.images import Folder
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.mixing import Composite

HOSTILE = ["<script>alert(1)</script>".replace("/", "∕"), 'it\'s "quoted"', "Größe 漢字 🐈", "a\nb", " spaced "]


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth picture, so that JPEG keeps it nearly as it is."""
    corner = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(corner).resize((width, height), Image.Resampling.BICUBIC))


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".jpg", ".jpeg"):
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95))
    else:
        Image.fromarray(pixels).save(path)


def tree(root: Path, classes: list[str], each: int, side: int = 32, suffix: str = ".png") -> Path:
    for number, name in enumerate(classes):
        for image in range(each):
            write(root / name / f"{image:03}{suffix}", picture(side, side, seed=100 * number + image))
    return root


def encoded(seed: int = 0, side: int = 32) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(picture(side, side, seed)), quality=95)


def everything(part: data.Images, epoch: int = -1) -> Tensor:
    return part.batch(torch.arange(len(part)), epoch)[0]


def cifar10_binary(root: Path, each: int = 20, label: int | None = None) -> np.ndarray:
    """A small set in CIFAR-10's official binary format; returns the records of all files in order."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    written = []
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = numbers.integers(0, 256, (each, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(each) % 10
        if label is not None:
            records[3, 0] = label
        (folder / name).write_bytes(records.tobytes())
        written.append(records)
    return np.concatenate(written)


def in_memory(number: int = 8, side: int = 8, channels: int = 3, pad: int = 2, flip: bool = True) -> ImageSet:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (number, side, side, channels), dtype=np.uint8))
    part = MemoryImages(pixels, torch.arange(number) % 2, torch.arange(number))
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.2, 0.25, 0.3)[:channels]
    return ImageSet("made", part, part, ("a", "b"), side, channels, mean, std, pad, flip)


# Known sets


def test_digits_are_1437_and_360_of_one_channel_at_32_pixels() -> None:
    digits = data.load("digits")
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert (digits.channels, digits.image_size, digits.flip, digits.evaluated_on) == (1, 32, False, "test")
    assert torch.bincount(digits.test.targets).tolist() == pytest.approx([36] * 10, abs=1)
    ids = torch.cat([torch.as_tensor(digits.train.ids), torch.as_tensor(digits.test.ids)])
    assert sorted(ids.tolist()) == list(range(1797))
    pixels = everything(digits.train).float() / 255
    assert pixels.mean().item() == pytest.approx(digits.mean[0], abs=1e-3)
    assert pixels.std().item() == pytest.approx(digits.std[0], abs=1e-3)


def test_digits_come_in_another_size_when_asked() -> None:
    assert everything(data.load("digits", image_size=16).train).shape == (1437, 1, 16, 16)


def test_no_seed_changes_who_is_in_which_part() -> None:
    one, two = (data.load("digits", seed=seed, validation=0.1, train_limit=500) for seed in (0, 7))
    assert torch.equal(torch.as_tensor(one.train.ids), torch.as_tensor(two.train.ids))
    assert torch.equal(torch.as_tensor(one.test.ids), torch.as_tensor(two.test.ids))
    assert one.fingerprint == two.fingerprint


def test_validation_comes_out_of_the_training_part_and_before_the_limit() -> None:
    plain = data.load("digits")
    held = data.load("digits", validation=0.25)
    limited = data.load("digits", validation=0.25, train_limit=100)
    train, test = (set(torch.as_tensor(part.ids).tolist()) for part in (held.train, held.test))
    assert held.evaluated_on == "validation"
    assert len(test) == 360  # ⌈1437 / 4⌉
    assert not train & test
    assert train | test == set(torch.as_tensor(plain.train.ids).tolist())
    assert set(torch.as_tensor(limited.test.ids).tolist()) == test
    assert set(torch.as_tensor(limited.train.ids).tolist()) < train


def test_a_subset_keeps_pictures_labels_and_identities_together() -> None:
    plain, limited = data.load("digits"), data.load("digits", train_limit=50)
    place = {identity: position for position, identity in enumerate(torch.as_tensor(plain.train.ids).tolist())}
    same = torch.tensor([place[identity] for identity in torch.as_tensor(limited.train.ids).tolist()])
    assert torch.equal(everything(limited.train), plain.train.batch(same, 0)[0])
    assert torch.equal(limited.train.targets, plain.train.targets[same])


def test_cifar10_is_read_from_the_official_binary_format(tmp_path: Path) -> None:
    records = cifar10_binary(tmp_path)
    cifar = data.load("cifar10", tmp_path)
    assert (len(cifar.train), len(cifar.test), cifar.classes[3]) == (100, 20, "cat")
    images, targets = cifar.train.batch(torch.tensor([57, 3]), 0)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(images[0].numpy(), records[57, 1:].reshape(3, 32, 32))
    assert targets.tolist() == [7, 3]
    assert np.array_equal(everything(cifar.test)[19].numpy(), records[119, 1:].reshape(3, 32, 32))


def test_cifar100_uses_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    records = np.random.default_rng(0).integers(0, 256, (200, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = 5, np.arange(200) % 100
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(records.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)) + "\n")
    cifar = data.load("cifar100", tmp_path)
    assert cifar.train.targets[:3].tolist() == [0, 1, 2]
    assert cifar.classes[42] == "fine42"
    assert np.array_equal(everything(cifar.train)[150].numpy(), records[150, 2:].reshape(3, 32, 32))


def test_a_damaged_binary_file_is_named(tmp_path: Path) -> None:
    cifar10_binary(tmp_path)
    with (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").open("ab") as file:
        file.write(b"xy")
    with pytest.raises(LeanError, match=r"data_batch_4\.bin has 61462 bytes.*again"):
        data.load("cifar10", tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    cifar10_binary(tmp_path, label=11)
    with pytest.raises(LeanError, match=r"label 11, but labels go from 0 to 9"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_mnist_is_read_from_torchvisions_layout(tmp_path: Path, packed: bool) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    pixels = {}
    for part, count in (("train", 40), ("t10k", 20)):
        pixels[part] = numbers.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels[part]), ("labels-idx1", labels)):
            content = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
            path = folder / f"{part}-{kind}-ubyte"
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(content)) if packed else path.write_bytes(
                content
            )
    fashion = data.load("fashion-mnist", tmp_path)
    assert (fashion.channels, fashion.image_size, fashion.classes[9]) == (1, 28, "Ankle boot")
    assert np.array_equal(everything(fashion.train)[33, 0].numpy(), pixels["train"][33])
    assert fashion.test.targets.tolist() == [i % 10 for i in range(20)]


@pytest.mark.skipif(
    not (data.default_root() / "cifar-10-batches-bin").is_dir(), reason="CIFAR-10 is not on this machine"
)
def test_real_cifar10_has_the_mean_and_deviation_written_down() -> None:
    cifar = data.load("cifar10")
    assert (len(cifar.train), len(cifar.test)) == (50000, 10000)
    assert torch.bincount(cifar.train.targets).tolist() == [5000] * 10
    pixels = everything(cifar.train)[::10].double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(cifar.mean, abs=5e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(cifar.std, abs=5e-3)


@pytest.mark.parametrize(("name", "place"), [("cifar10", "cifar-10-batches-bin"), ("fashion-mnist", "FashionMNIST")])
def test_a_failed_download_says_what_to_put_where(
    tmp_path: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(LeanError, match=rf"download failed.*{place}"):
        data.load(name, tmp_path)


def test_pickles_that_torchvision_does_not_know_are_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    trap = tmp_path / "opened"
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / name).write_bytes(f"cos\nsystem\n(S'touch {trap}'\ntR.".encode())
    with pytest.raises(LeanError, match="not the cifar10 that its authors published"):
        data.load("cifar10", tmp_path)
    assert not trap.exists()


# Cutting

labels = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(
    lambda values: torch.tensor([sorted(set(values)).index(value) for value in values])
)


@settings(max_examples=60, deadline=None)
@given(labels, st.floats(0.01, 0.99))
def test_a_stratified_cut_is_even_and_never_empties_a_class(targets: Tensor, share: float) -> None:
    kept, held = parts.stratified(targets, share)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(targets)))
    sizes, left = torch.bincount(targets), torch.bincount(targets[kept], minlength=int(targets.max()) + 1)
    assert (left >= 1).all()
    assert ((sizes - left).double() - sizes * share < 1 + 1e-9).all()  # never more than a share, rounded up
    assert ((sizes - left >= (sizes * share).floor()) | (left == 1)).all()


@settings(max_examples=60, deadline=None)
@given(labels)
def test_every_prefix_of_the_balanced_order_is_balanced(targets: Tensor) -> None:
    order = parts.balanced_order(targets)
    assert sorted(order.tolist()) == list(range(len(targets)))
    sizes = torch.bincount(targets)
    for length in range(1, len(targets) + 1):
        count = torch.bincount(targets[order[:length]], minlength=len(sizes))
        # Classes differ by more than one only because a smaller one is used up.
        assert (count >= torch.minimum(sizes, count.max() - 1)).all()


def test_the_balanced_order_is_shuffled_within_a_class() -> None:
    order = parts.balanced_order(torch.zeros(100, dtype=torch.int64)).tolist()
    assert order != sorted(order)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train_limit": 0}, r"--train-limit 0 "),
        ({"train_limit": -3}, r"--train-limit -3 "),
        ({"train_limit": 1438}, r"--train-limit 1438 is more than the 1437"),
        ({"train_limit": 9}, r"--train-limit 9 leaves some of the 10 classes"),
        ({"validation": 1.0}, r"--validation 1\.0 is not a share"),
        ({"validation": -0.1}, r"--validation -0\.1 is not a share"),
        ({"validation": float("nan")}, r"--validation nan is not a share"),
        ({"image_size": 0}, r"--image-size 0 "),
    ],
)
def test_impossible_cuts_are_refused_with_their_value(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(LeanError, match=said):
        data.load("digits", **wrong)


# Augmentation


def reference(images: ImageSet, inputs: Tensor, index: Tensor, epoch: int, seed: int) -> Tensor:
    """Crop, mirror and normalise one example after another, in the plainest way."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (images.mean, images.std))
    out = []
    for image, draw in zip(inputs, rng.uniform(seed, epoch, index, 3), strict=True):
        _, height, width = image.shape
        top, left = (int(u * (2 * images.pad + 1)) for u in draw[:2].tolist())
        padded = (255 * mean).round().repeat(1, height + 2 * images.pad, width + 2 * images.pad)
        padded[:, images.pad : images.pad + height, images.pad : images.pad + width] = image
        cut = (padded[:, top : top + height, left : left + width] / 255 - mean) / std
        out.append(cut.flip(2) if images.flip and draw[2] < 0.5 else cut)
    return torch.stack(out)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("pad", "flip"), [(0, False), (0, True), (2, False), (3, True)])
def test_training_batches_are_cropped_and_mirrored_like_the_reference(channels: int, pad: int, flip: bool) -> None:
    images = in_memory(64, channels=channels, pad=pad, flip=flip)
    index = torch.arange(64)
    inputs, _ = images.train.batch(index, 3)
    out = Augment(images, 5, "cpu").train(inputs, index, 3)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out.double(), reference(images, inputs, index, 3, 5), atol=1e-5, rtol=0)
    changed = (out != Augment(images, 5, "cpu").evaluate(inputs)).flatten(1).any(1)
    assert changed.any() == bool(pad or flip)


def test_what_lies_beyond_the_edge_has_the_mean_colour_to_the_nearest_byte() -> None:
    images = in_memory(1, pad=4, flip=False)
    augment = Augment(images, 0, "cpu")
    inputs, _ = images.train.batch(torch.tensor([0]), 0)
    shifted = [epoch for epoch in range(40) if int(rng.uniform(0, epoch, torch.tensor([0]), 3)[0, 0] * 9) == 0]
    assert shifted
    out = augment.train(inputs, torch.tensor([0]), shifted[0])
    beyond = augment.bytes_of(out)[0, :, :4].flatten(1).unique(dim=1)
    assert beyond.squeeze(1).tolist() == [round(255 * mean) for mean in images.mean]


def test_augmentation_depends_on_seed_epoch_and_index_only() -> None:
    images = in_memory(32)
    augment = Augment(images, 1, "cpu")
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    inputs = everything(images.train)
    whole = augment.train(inputs, torch.arange(32), 2)
    assert torch.equal(augment.train(inputs[order], order, 2), whole[order])
    assert torch.equal(augment.train(inputs[order[:5]], order[:5], 2), whole[order[:5]])
    assert torch.equal(augment.train(inputs.contiguous(), torch.arange(32), 2), whole)  # another memory layout
    assert not torch.equal(augment.train(inputs, torch.arange(32), 3), whole)
    assert not torch.equal(Augment(images, 2, "cpu").train(inputs, torch.arange(32), 2), whole)


def test_strength_is_how_far_a_crop_shifts_and_nothing_else() -> None:
    images = in_memory(32, pad=4, flip=True)
    inputs, index = everything(images.train), torch.arange(32)
    augment, narrow = Augment(images, 1, "cpu"), Augment(dataclasses.replace(images, pad=2), 1, "cpu")
    unmoved = Augment(dataclasses.replace(images, pad=0), 1, "cpu").train(inputs, index, 0)
    for strength, expected in ((0.0, unmoved), (0.5, narrow.train(inputs, index, 0))):
        augment.strength = strength
        assert torch.equal(augment.train(inputs, index, 0), expected)


def small(augment: Augment, images: ImageSet, index: Tensor, scale: float, constituents: int = 1) -> Batch:
    """A batch in a smaller form as the run prepares it."""
    form = Form.of(shrunk=scale)
    form = form.also(Composite.name, constituents) if constituents > 1 else form
    batch = Batch(images.train.batch(index, 3), index, None, form, 3, 0, total=1.0, cost=0.0)
    return augment(batch)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("side", "shown"), [(8, 3), (28, 12), (32, 24), (64, 40)])
@pytest.mark.parametrize(("pad", "flip"), [(0, False), (0, True), (3, False), (4, True)])
def test_what_is_shown_small_is_the_crop_shrunk(channels: int, side: int, shown: int, pad: int, flip: bool) -> None:
    images = in_memory(40, side, channels, pad=pad, flip=flip)
    augment, index = Augment(images, 5, "cpu"), torch.randperm(40)[:20]
    for strength in (1.0, 0.5):
        augment.strength = strength
        batch = small(augment, images, index, shown / side)
        whole = augment.train(images.train.batch(index, 3)[0], index, 3)
        expected = F.interpolate(whole, size=(shown, shown), mode="bilinear", antialias=True)
        # Bytes are rounded in both directions, in each of which the image is shrunk.
        rounding = 1.01 / (255 * torch.tensor(images.std).view(-1, 1, 1))
        assert ((batch.inputs - expected).abs() <= rounding).all()
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert batch.given == Form.of(shrunk=shown / side)  # so that nobody shrinks it again


def test_composites_are_shrunk_before_they_are_mixed_as_ever() -> None:
    images = in_memory(8, side=32, pad=4)
    batch = small(Augment(images, 5, "cpu"), images, torch.arange(8), 0.5, constituents=2)
    assert batch.inputs.shape[-1] == 16 and batch.given == Form.of(shrunk=0.5)


def test_what_is_erased_of_an_image_that_is_shown_small_has_exactly_the_mean_colour() -> None:
    images = dataclasses.replace(in_memory(8, side=32, pad=4), erase=1.0)
    batch = small(Augment(images, 5, "cpu"), images, torch.arange(8), 0.5)
    gone = (batch.inputs == 0).all(1).flatten(1).float().mean(1)
    assert batch.inputs.shape[-1] == 16 and ((gone > 0.005) & (gone < 0.45)).all()


def test_images_that_are_not_square_are_shrunk_later() -> None:
    images = in_memory(8, side=32, pad=4)
    index = torch.arange(8)
    inputs = images.train.batch(index, 3)[0][:, :, :24]
    augment = Augment(images, 5, "cpu")
    batch = augment(Batch((inputs, index), index, None, Form.of(shrunk=0.5), 3, 0, total=1.0, cost=0.0))
    assert torch.equal(batch.inputs, augment.train(inputs, index, 3))
    assert batch.given == Form()


def test_crops_are_the_same_whether_an_epochs_are_drawn_at_once_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    images, index = in_memory(32, pad=4), torch.arange(0, 32, 3)
    inputs, _ = images.train.batch(index, 0)
    at_once = [Augment(images, 5, "cpu").train(inputs, index, epoch) for epoch in (0, 1)]
    monkeypatch.setattr(augment_module, "DRAWN_AT_ONCE", 0)
    by_batch = [Augment(images, 5, "cpu").train(inputs, index, epoch) for epoch in (0, 1)]
    assert all(torch.equal(one, other) for one, other in zip(at_once, by_batch, strict=True))


def test_augmentation_leaves_the_global_generator_and_its_input_alone() -> None:
    images = in_memory(8)
    inputs = everything(images.train)
    state, before = torch.get_rng_state(), inputs.clone()
    Augment(images, 1, "cpu").train(inputs, torch.arange(8), 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(inputs, before)


def test_evaluation_only_normalises() -> None:
    images = in_memory(8)
    inputs = everything(images.test)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (images.mean, images.std))
    out = Augment(images, 0, "cpu").evaluate(inputs)
    torch.testing.assert_close(out, (inputs / 255 - mean) / std, atol=1e-5, rtol=0)
    assert out.is_contiguous(memory_format=torch.channels_last)


# Folders


def test_a_tree_with_train_and_test_is_read_with_paths_as_identities(tmp_path: Path) -> None:
    tree(tmp_path / "set" / "train", ["cat", "dog"], 3)
    tree(tmp_path / "set" / "test", ["cat", "dog"], 2)
    images = data.load(str(tmp_path / "set"))
    assert images.classes == ("cat", "dog")
    assert images.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.train.ids[3] == os.path.join("train", "dog", "000.png")
    assert not images.in_memory
    assert np.array_equal(everything(images.train)[4].permute(1, 2, 0).numpy(), picture(32, 32, 101))
    assert (images.image_size, images.channels, images.pad, images.flip) == (32, 3, 4, True)


def test_val_is_preferred_to_test(tmp_path: Path) -> None:
    for part, each in (("train", 3), ("val", 1), ("test", 2)):
        tree(tmp_path / part, ["cat", "dog"], each)
    assert len(data.load(str(tmp_path)).test) == 2


def test_a_folder_under_the_root_and_imagenet_go_by_name(tmp_path: Path) -> None:
    for name in ("mine", "imagenet"):
        tree(tmp_path / name / "train", ["cat", "dog"], 3)
        tree(tmp_path / name / "val", ["cat", "dog"], 1)
        assert len(data.load(name, tmp_path).train) == 6


def test_a_tree_without_test_part_is_split_the_same_way_every_time(tmp_path: Path) -> None:
    tree(tmp_path, ["bus", "train"], 10)  # a class may well be called train
    one, two = (data.load(str(tmp_path), seed=seed) for seed in (0, 1))
    assert one.classes == ("bus", "train")
    assert (len(one.train), len(one.test)) == (16, 4)
    assert one.test.targets.tolist() == [0, 0, 1, 1]
    assert one.test.ids == two.test.ids
    assert not set(one.test.ids) & set(one.train.ids)


def test_hostile_class_names_just_work(tmp_path: Path) -> None:
    tree(tmp_path / "train", HOSTILE, 2)
    tree(tmp_path / "val", HOSTILE, 1)
    images = data.load(str(tmp_path))
    assert set(images.classes) == set(HOSTILE)
    assert everything(images.train).shape == (10, 3, 32, 32)
    assert len(images.fingerprint) == 16


def test_hidden_and_foreign_files_are_ignored_and_nested_folders_read(tmp_path: Path) -> None:
    tree(tmp_path, ["cat", "dog"], 5)
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    (tmp_path / ".git").mkdir()
    write(tmp_path / "dog" / "more" / "UP.PNG", picture(32, 32))
    images = data.load(str(tmp_path))
    assert len(images.train) + len(images.test) == 11
    assert everything(images.train).shape[0] == len(images.train)


@pytest.mark.parametrize(
    ("side", "asked", "size", "pad"),
    [
        (64, None, 64, 8),
        (63, None, 64, 8),
        (28, None, 28, 4),
        (48, None, 48, 4),
        (96, None, 96, 8),
        (97, None, 224, 0),
        (64, 32, 32, 4),
        (64, 112, 112, 0),
    ],
)
def test_the_image_size_fits_the_images(tmp_path: Path, side: int, asked: int | None, size: int, pad: int) -> None:
    tree(tmp_path, ["a", "b"], 2, side=side)
    images = data.load(str(tmp_path), image_size=asked)
    assert (images.image_size, images.pad) == (size, pad)
    assert everything(images.train, epoch=0).shape == (3, 3, size, size)


def test_odd_kinds_of_pictures_become_rgb(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(picture(40, 40)).convert("CMYK").save(tmp_path / name / "cmyk.jpg", quality=95)
        (tmp_path / name / "grey.jpg").write_bytes(
            simplejpeg.encode_jpeg(np.full((40, 40, 1), 90, np.uint8), colorspace="GRAY", colorsubsampling="Gray")
        )
        Image.fromarray(picture(40, 40)).convert("P").save(tmp_path / name / "palette.gif")
        Image.fromarray(np.full((40, 40), 90 << 8, np.uint16)).save(tmp_path / name / "sixteen.png")
        Image.fromarray(np.full((40, 40, 4), 90, np.uint8)).save(tmp_path / name / "alpha.webp", lossless=True)
    images = data.load(str(tmp_path))
    shown = {}
    for part in (images.train, images.test):
        shown |= zip(map(os.path.basename, part.ids), everything(part), strict=True)
    original = torch.from_numpy(picture(40, 40).copy()).permute(2, 0, 1).float()
    assert (shown["cmyk.jpg"].float() - original).abs().mean() < 6
    assert (shown["grey.jpg"] == 90).all()
    assert (shown["sixteen.png"] == 90).all()
    assert (shown["alpha.webp"] == 90).all()


# Large pictures


def test_large_pictures_are_cropped_by_seed_epoch_and_index_only(tmp_path: Path) -> None:
    tree(tmp_path, ["a", "b"], 5, side=300, suffix=".jpg")
    part = data.load(str(tmp_path), seed=3).train
    whole = everything(part, epoch=1)
    assert torch.equal(part.batch(torch.tensor([6, 2]), 1)[0], whole[[6, 2]])
    assert not torch.equal(everything(part, epoch=2), whole)
    assert not torch.equal(everything(data.load(str(tmp_path), seed=4).train, epoch=1), whole)
    assert torch.equal(everything(part), everything(data.load(str(tmp_path), seed=4).train))  # evaluation: no chance


def test_large_pictures_that_are_to_be_shown_small_are_decoded_small(tmp_path: Path) -> None:
    large = data.load(str(tree(tmp_path / "large", ["a", "b"], 3, side=128, suffix=".jpg")), image_size=112).train
    assert isinstance(large, FileImages) and large.shows == {"shrunk"}
    index = torch.arange(len(large))
    whole, half = (large.batch(index, 1, form)[0] for form in (Form(), Form.of(shrunk=0.5)))
    assert half.shape[-2:] == (56, 56)
    again = F.interpolate(whole.float(), size=(56, 56), mode="bilinear", antialias=True)
    assert float((half.float() - again).abs().mean()) < 8  # the same window, through another filter
    small = data.load(str(tree(tmp_path / "small", ["a", "b"], 3, side=64, suffix=".jpg"))).train
    assert isinstance(small, FileImages) and not small.shows  # they are cropped on the device, and shrunk after that


def test_what_was_decoded_small_is_not_shrunk_again(tmp_path: Path) -> None:
    images = data.load(str(tree(tmp_path, ["a", "b"], 4, side=128, suffix=".jpg")), image_size=112)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    shown: list[torch.Size] = []
    model.register_forward_pre_hook(
        lambda module, given: shown.append(given[0].shape[-2:]) if module.training else None
    )
    augment = Augment(images, 0, "cpu")
    example = augment.evaluate(images.train.batch(torch.arange(2), -1)[0])
    lean = leantrain.attach(model, images.train, "input-scaling[size=48]", epochs=1, prepare=augment, example=example)
    shown.clear()  # of the size that was tried
    for batch in lean.loader(4):
        assert batch.inputs.shape[-2:] == (48, 48)
        lean.loss(batch)
    assert set(shown) == {(48, 48)}


def test_the_evaluation_view_is_the_middle_seven_eighths() -> None:
    pixels = np.zeros((320, 640, 3), np.uint8)
    pixels[:, 160:480] = 100  # the middle square
    pixels[20:300, 180:460] = 200  # its middle 7/8
    shown = decode.picture(simplejpeg.encode_jpeg(pixels, quality=100), decode.middle, 224)
    assert shown.shape == (224, 224, 3)
    assert abs(shown[4:-4, 4:-4].astype(int) - 200).max() <= 3


@settings(max_examples=80, deadline=None)
@given(st.tuples(*[st.floats(0, 1, exclude_max=True)] * 4), st.integers(1, 2000), st.integers(1, 2000))
def test_a_random_window_lies_in_the_picture_and_is_large_enough(
    draws: tuple[float, ...], high: int, wide: int
) -> None:
    left, top, right, bottom = decode.random_window(*draws)(high, wide)
    assert 0 <= left < right <= wide + 1e-6
    assert 0 <= top < bottom <= high + 1e-6
    if 0.75 <= wide / high <= 4 / 3:
        assert (right - left) * (bottom - top) >= 0.18 * wide * high


def test_decoding_at_a_smaller_scale_shows_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    original = picture(1200, 1600)
    data_ = simplejpeg.encode_jpeg(np.ascontiguousarray(original), quality=95)
    decoded, real = [], simplejpeg.decode_jpeg

    def spy(*args: object, **kwargs: object) -> np.ndarray:
        decoded.append(real(*args, **kwargs))
        return decoded[-1]

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    for window in (decode.middle, decode.random_window(0.3, 0.6, 0.9, 0.2)):
        shown = decode.picture(data_, window, 224)
        assert decoded[-1].shape[0] < 1200
        box = window(1200, 1600)
        full = Image.fromarray(original).resize((224, 224), Image.Resampling.BILINEAR, box=box)
        assert np.abs(shown.astype(int) - np.asarray(full).astype(int)).mean() < 2


# Workers


class Batches(Dataset):  # type: ignore[type-arg]
    """The way a loader asks for batches: in the worker, by a list of indices."""

    def __init__(self, part: data.Images, epoch: int) -> None:
        self.part, self.epoch = part, epoch

    def __len__(self) -> int:
        return len(self.part)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.part.batch(torch.tensor(indices), self.epoch)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])


def itself(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def test_files_are_decoded_in_workers_as_in_the_main_process(tmp_path: Path) -> None:
    tree(tmp_path, ["a", "b"], 10, side=120, suffix=".jpg")
    part = data.load(str(tmp_path)).train
    assert isinstance(part, FileImages)
    loader = DataLoader(Batches(part, 4), batch_size=6, num_workers=2, collate_fn=itself)
    batches = list(loader)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in batches)
    assert torch.equal(torch.cat([images for images, _ in batches]), everything(part, epoch=4))
    assert torch.equal(torch.cat([targets for _, targets in batches]), part.targets)


@pytest.mark.parametrize("workers", [0, 2])
def test_small_pictures_are_decoded_once_for_all_epochs_and_workers(tmp_path: Path, workers: int) -> None:
    tree(tmp_path, ["a", "b"], 10, side=40, suffix=".jpg")
    part = data.load(str(tmp_path)).train
    assert isinstance(part, FileImages) and isinstance(part.source, Folder)
    anew = everything(dataclasses.replace(part, keep=False))

    def epoch(number: int) -> Tensor:
        forked = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        loader = DataLoader(Batches(part, number), batch_size=6, collate_fn=itself, **forked)
        return torch.cat([images for images, _ in loader])

    assert torch.equal(epoch(0), anew)
    for path in part.source.paths:
        (tmp_path / path).unlink()
    assert torch.equal(epoch(1), anew)  # by other workers
    assert torch.equal(everything(part), anew)  # in the main process, and as evaluation shows them
    order = torch.tensor([3, 3, 0])
    assert torch.equal(part.batch(order, 2)[0], anew[order])


def test_a_part_that_is_too_large_for_memory_is_decoded_in_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, ["a", "b"], 5, side=40, suffix=".jpg")
    monkeypatch.setattr(kept, "MOST", 100)
    part = data.load(str(tmp_path)).train
    first = everything(part)
    assert isinstance(part, FileImages) and isinstance(part.source, Folder)
    (tmp_path / part.source.paths[0]).unlink()
    assert torch.equal(part.batch(torch.arange(1, len(part)), 0)[0], first[1:])
    with pytest.raises(LeanError, match=r"cannot be read"):
        everything(part)


def test_a_process_that_is_not_forked_is_sent_no_pixels_and_keeps_none(tmp_path: Path) -> None:
    tree(tmp_path, ["a", "b"], 50, side=90, suffix=".jpg")
    part = data.load(str(tmp_path)).train
    assert isinstance(part, FileImages) and isinstance(part.source, Folder)
    shown = everything(part)
    sent = pickle.dumps(part)
    assert len(sent) < shown.numel() / 10
    there = pickle.loads(sent)
    assert torch.equal(everything(there), shown)
    (tmp_path / part.source.paths[0]).unlink()
    with pytest.raises(LeanError, match=r"cannot be read"):
        everything(there)


def test_a_corrupt_image_is_named_in_the_last_line_of_a_workers_error(tmp_path: Path) -> None:
    tree(tmp_path / "train", ["a", "b\nc"], 4, suffix=".jpg")
    tree(tmp_path / "val", ["a", "b\nc"], 1, suffix=".jpg")
    bad = tmp_path / "train" / "b\nc" / "002.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    part = data.load(str(tmp_path)).train
    with pytest.raises(LeanError, match=r"002\.jpg.*--skip-bad-images"):
        everything(part)
    with pytest.raises(LeanError) as caught:
        list(DataLoader(Batches(part, 0), batch_size=8, num_workers=2, collate_fn=itself))
    last = str(caught.value).strip().splitlines()[-1]
    assert "LeanError: The image " in last
    assert "002.jpg" in last
    assert last.endswith("leave such images out.")


def test_bad_images_are_skipped_and_counted(tmp_path: Path) -> None:
    tree(tmp_path / "train", ["a", "b"], 5, suffix=".jpg")
    tree(tmp_path / "val", ["a", "b"], 2, suffix=".png")
    whole = (tmp_path / "train" / "a" / "000.jpg").read_bytes()
    (tmp_path / "train" / "a" / "001.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "train" / "b" / "000.jpg").write_bytes(b"")
    (tmp_path / "val" / "b" / "001.png").write_bytes(b"\x89PNG no more")
    images = data.load(str(tmp_path), skip_bad_images=True)
    assert (images.bad_images, len(images.train), len(images.test)) == (3, 8, 3)
    assert images.train.targets.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert everything(images.train).shape[0] == 8
    assert data.load(str(tmp_path), skip_bad_images=True, validation=0.2).bad_images == 2  # test is not looked at
    assert data.load(str(tmp_path)).bad_images == 0


def test_a_class_of_bad_images_only_is_named(tmp_path: Path) -> None:
    tree(tmp_path / "train", ["a", "b", "c"], 2)
    tree(tmp_path / "val", ["a", "b", "c"], 2)
    for file in (tmp_path / "train" / "b").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(LeanError, match="no training image of class 'b'"):
        data.load(str(tmp_path), skip_bad_images=True)


# Parquet


def table(path: Path, images: list[object], labels: object, **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = pa.table({"image": images, "label": labels, **more})
    pq.write_table(made, path)
    return path


def test_parquet_by_file_names_with_strings_as_labels(tmp_path: Path) -> None:
    table(tmp_path / "train-0.parquet", [encoded(i) for i in range(4)], ["dog", "cat", HOSTILE[0], "dog"])
    table(tmp_path / "train-1.parquet", [encoded(i) for i in range(4, 6)], ["cat", "dog"])
    table(tmp_path / "test.parquet", [encoded(9)], ["dog"])
    images = data.load(str(tmp_path))
    assert images.classes == (HOSTILE[0], "cat", "dog")
    assert images.train.targets.tolist() == [2, 1, 0, 2, 1, 2]
    assert images.test.targets.tolist() == [2]
    expected = simplejpeg.decode_jpeg(encoded(5))
    assert np.array_equal(images.train.batch(torch.tensor([5]), 0)[0][0].permute(1, 2, 0).numpy(), expected)
    loader = DataLoader(Batches(images.train, 0), batch_size=4, num_workers=2, collate_fn=itself)
    assert torch.equal(torch.cat([pixels for pixels, _ in loader]), everything(images.train))


def test_one_parquet_file_in_hugging_face_form_is_split(tmp_path: Path) -> None:
    rows = [{"bytes": encoded(i), "path": f"{i}.jpg"} for i in range(20)]
    made = pa.table({"image": rows, "label": [i % 2 for i in range(20)]})
    info = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    pq.write_table(made.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / "set.parquet")
    images = data.load(str(tmp_path / "set.parquet"), validation=0.25)
    assert images.classes == ("no", "yes")
    assert (len(images.train), len(images.test)) == (12, 4)
    for part in (images.train, images.test):
        rows_ = torch.as_tensor(part.ids)
        assert torch.equal(part.targets, rows_ % 2)
        first = simplejpeg.decode_jpeg(encoded(int(rows_[0])))
        assert np.array_equal(everything(part)[0].permute(1, 2, 0).numpy(), first)


def test_a_corrupt_parquet_row_is_named_or_skipped(tmp_path: Path) -> None:
    path = table(
        tmp_path / "set.parquet", [encoded(i) if i != 7 else b"oh" for i in range(20)], [i % 2 for i in range(20)]
    )
    images = data.load(str(path))
    with pytest.raises(LeanError, match=r"row 7.*--skip-bad-images"):
        _ = everything(images.train), everything(images.test)
    assert data.load(str(path), skip_bad_images=True).bad_images == 1


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0, 1, -1, 0], r"label -1, but labels go from 0 to 1"),
        ([0, 1, 10**12, 0], r"label 1000000000000, but labels go from 0 to 3"),
        ([0, 1, 3, 0], r"no training image of class '2'"),
        ([[0], [1], [0, 1], [0]], r"holds lists .*one class"),
        ([0.5, 1.0, 0.1, 0.0], r"soft labels are not supported"),
        ([0, 1, None, 0], r"no label in 1 rows, first in row 2"),
        ([b"a", b"b", b"a", b"b"], r"label column .* is binary"),
        (pa.array([1 << 63, 0, 1, 0], pa.uint64()), r"number the classes from 0"),
        ([0, 0, 0, 0], r"at least two"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, labels: list[object], said: str) -> None:
    table(tmp_path / "train.parquet", [encoded(i) for i in range(4)], labels)
    table(tmp_path / "val.parquet", [encoded(5)], labels[:1])
    with pytest.raises(LeanError, match=said):
        data.load(str(tmp_path))


def test_negative_labels_are_refused_in_a_pool_too(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", [encoded(i) for i in range(4)], [0, 1, -2, 0])
    with pytest.raises(LeanError, match="label -2"):
        data.load(str(path))


def test_parquet_of_the_wrong_form_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"img": [b""], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(LeanError, match=r"no column 'image' among 'img', 'label'"):
        data.load(str(tmp_path / "a.parquet"))
    table(tmp_path / "b.parquet", ["a.jpg", "b.jpg"], [0, 1])
    with pytest.raises(LeanError, match=r"image column .* is string"):
        data.load(str(tmp_path / "b.parquet"))
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    with pytest.raises(LeanError, match=r"c\.parquet' cannot be read as parquet"):
        data.load(str(tmp_path / "c.parquet"))
    table(tmp_path / "d.parquet", [None, encoded()], [0, 1])
    with pytest.raises(LeanError, match=r"no image bytes in 1 rows, first in row 0"):
        data.load(str(tmp_path / "d.parquet"))


def test_parquet_parts_with_different_classes_are_refused(tmp_path: Path) -> None:
    table(tmp_path / "train.parquet", [encoded(i) for i in range(2)], ["a", "b"])
    table(tmp_path / "test.parquet", [encoded(3)], ["z"])
    with pytest.raises(LeanError, match=r"'z' not among the training classes"):
        data.load(str(tmp_path))


# What cannot work


def test_an_unknown_name_gets_the_nearest_one_and_the_list() -> None:
    with pytest.raises(LeanError, match=r"'cifar1O'\. Did you mean 'cifar10'\?.*digits.*or a path to a folder"):
        data.load("cifar1O")
    with pytest.raises(LeanError, match="unknown data set ''"):
        data.load("")


def test_a_missing_folder_or_imagenet_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match=r"no folder or file at '.*nowhere'"):
        data.load(str(tmp_path / "nowhere"))
    with pytest.raises(LeanError, match=r"ImageNet is not at .*train.*val"):
        data.load("imagenet", tmp_path)
    (tmp_path / "file.zip").write_bytes(b"")
    with pytest.raises(LeanError, match=r"neither a folder nor a \.parquet"):
        data.load(str(tmp_path / "file.zip"))


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="no class folders"):
        data.load(str(tmp_path))
    (tmp_path / "cat").mkdir()
    with pytest.raises(LeanError, match=r"no images; expected files ending in \.jpg"):
        data.load(str(tmp_path))
    tree(tmp_path, ["dog", "owl"], 2)
    with pytest.raises(LeanError, match="no images of class 'cat'"):
        data.load(str(tmp_path))


def test_flat_train_and_test_folders_are_not_taken_for_classes(tmp_path: Path) -> None:
    tree(tmp_path, ["train", "test"], 5)
    with pytest.raises(LeanError, match=r"train' has no class folders"):
        data.load(str(tmp_path))


def test_classes_that_differ_between_train_and_test_are_named(tmp_path: Path) -> None:
    tree(tmp_path / "train", ["cat", "dog"], 1)
    tree(tmp_path / "test", ["cat", "dgo"], 1)
    with pytest.raises(LeanError, match=r"'dog' only in train, and 'dgo' only in test"):
        data.load(str(tmp_path))


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    tree(tmp_path, ["cat"], 5)
    with pytest.raises(LeanError, match=r"1 class \('cat'\)"):
        data.load(str(tmp_path))


def test_too_few_images_to_hold_any_out_is_said(tmp_path: Path) -> None:
    tree(tmp_path / "one", ["cat", "dog"], 1)
    with pytest.raises(LeanError, match="too few images per class"):
        data.load(str(tmp_path / "one"))
    for part in ("train", "val"):
        tree(tmp_path / "two" / part, ["cat", "dog"], 1)
    with pytest.raises(LeanError, match=r"--validation 0\.5 of 2 training examples"):
        data.load(str(tmp_path / "two"), validation=0.5)


# Fingerprints


def test_the_fingerprint_follows_labels_pixels_and_cuts_but_not_the_name(tmp_path: Path) -> None:
    cifar10_binary(tmp_path / "one")
    cifar10_binary(tmp_path / "two")
    one = data.load("cifar10", tmp_path / "one")
    assert data.load("cifar10", tmp_path / "two").fingerprint == one.fingerprint
    seen = {one.fingerprint}
    seen.add(data.load("cifar10", tmp_path / "one", train_limit=50).fingerprint)
    seen.add(data.load("cifar10", tmp_path / "one", validation=0.1).fingerprint)
    seen.add(data.load("cifar10", tmp_path / "one", image_size=16).fingerprint)
    file = tmp_path / "two" / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = bytearray(file.read_bytes())
    content[3073 * 11] = 9  # one label, of an image whose pixels are not looked at
    file.write_bytes(content)
    seen.add(data.load("cifar10", tmp_path / "two").fingerprint)
    assert len(seen) == 5


def test_the_fingerprint_of_files_follows_their_names(tmp_path: Path) -> None:
    for place in ("one", "two", "three"):
        tree(tmp_path / place, ["a", "b"], 5)
    os.rename(tmp_path / "three" / "a" / "000.png", tmp_path / "three" / "a" / "0000.png")
    one, two, three = (data.load(str(tmp_path / place)).fingerprint for place in ("one", "two", "three"))
    assert one == two
    assert one != three


def test_loading_digits_imports_no_decoder_or_torchvision() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from leantrain import data; data.load('digits'); "
        "print([m for m in ('torchvision', 'pyarrow.parquet', 'PIL.Image', 'simplejpeg') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Trees that were not made with us in mind


@pytest.mark.parametrize("leads_to", ["..", ".", "../b/back"])
def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path, leads_to: str) -> None:
    tree(tmp_path, ["a", "b"], 6)
    (tmp_path / "b" / "back").symlink_to("../a", target_is_directory=True)
    (tmp_path / "a" / "round").symlink_to(leads_to, target_is_directory=True)
    with pytest.raises(LeanError, match=r"The link .* leads to a folder that it lies in.*; remove it\."):
        data.load(str(tmp_path))


def test_links_that_lead_elsewhere_or_nowhere_are_no_obstacle(tmp_path: Path) -> None:
    tree(tmp_path / "elsewhere", ["x"], 4)
    tree(tmp_path / "set", ["a", "b"], 6)
    (tmp_path / "set" / "a" / "more").symlink_to(tmp_path / "elsewhere" / "x")
    for folder in (tmp_path / "set", tmp_path / "set" / "a"):
        (folder / "itself").symlink_to("itself")
        (folder / "nowhere").symlink_to("gone")
    images = data.load(str(tmp_path / "set"))
    assert len(images.train) + len(images.test) == 16
    assert images.classes == ("a", "b")


def bomb() -> bytes:
    """A PNG file of a few bytes whose header says 60,000 × 60,000."""
    file = bytearray(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13))
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return bytes(file + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IEND\xaeB`\x82")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "device", "itself", "bomb", "folder", "empty", "cut"])
def test_what_is_no_picture_is_named_before_the_run_or_skipped(tmp_path: Path, kind: str) -> None:
    tree(tmp_path / "train", ["a", "b"], 4)
    tree(tmp_path / "val", ["a", "b"], 2)
    bad = tmp_path / "val" / "b" / "000.png"
    whole = bad.read_bytes()
    bad.unlink()
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind in ("device", "itself"):
        bad.symlink_to("/dev/zero" if kind == "device" else bad.name)
    elif kind == "folder":
        bad.mkdir()
    else:
        bad.write_bytes({"bomb": bomb(), "empty": b"", "cut": whole[: len(whole) // 2]}[kind])
    images = data.load(str(tmp_path))
    assert isinstance(images.train, FileImages) and isinstance(images.test, FileImages)
    assert images.train.first_unreadable(seconds=60) is None
    assert "b/000.png' cannot be read" in str(images.test.first_unreadable(seconds=60))
    assert images.test.first_unreadable(seconds=0) is None  # no time to look
    assert data.load(str(tmp_path), skip_bad_images=True).bad_images == 1
    if kind == "itself":
        return
    bad.replace(tmp_path / "train" / "a" / "0000.png")  # among those that the size is taken from
    with pytest.raises(LeanError, match="cannot be read"):
        everything(data.load(str(tmp_path)).train)

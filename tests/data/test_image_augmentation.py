"""What is done to training images is the user's to choose, said, shown, and the same after a resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from leantrain import data
from leantrain.data import Augment, ImageSet, policies
from leantrain.run.config import FIELDS, TrainConfig
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve
from program import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrows that point to the left or to the right, at 32 pixels, and the same at 128."""
    root = tmp_path_factory.mktemp("arrows")
    for size in (32, 128):
        for label in ("left", "right"):
            (root / str(size) / label).mkdir(parents=True)
            for number in range(10):
                pixels = np.full((size, size, 3), 20 + 5 * number, dtype=np.uint8)
                pixels[:, : size // 2] = 200
                image = Image.fromarray(pixels if label == "left" else np.ascontiguousarray(pixels[:, ::-1]))
                image.save(root / str(size) / label / f"{number}.png")
    return root


def shown(images: ImageSet, epoch: int, index: Tensor | None = None) -> Tensor:
    index = torch.arange(len(images.train)) if index is None else index
    return Augment(images, 0, "cpu").train(images.train.batch(index, epoch)[0], index, epoch)


def as_they_are(images: ImageSet) -> Tensor:
    return Augment(images, 0, "cpu").evaluate(images.train.batch(torch.arange(len(images.train)), -1)[0])


@pytest.mark.parametrize("size", ["32", "128"])
def test_none_leaves_images_alone_but_for_what_is_asked_for(folder: Path, size: str) -> None:
    images = data.load(str(folder / size), augment="none", image_size=int(size))
    first, second = shown(images, 0), shown(images, 1)
    assert torch.equal(first, second)
    assert policies.described(images) == "images as they are"
    mirrored = data.load(str(folder / size), augment="none", flip=True, image_size=int(size))
    turned = [torch.equal(one, other.flip(2)) for one, other in zip(shown(mirrored, 0), first, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(shown(mirrored, 0), first, strict=True)]
    assert any(turned) and any(kept) and all(a or b for a, b in zip(turned, kept, strict=True))


def test_without_mirroring_left_stays_left(folder: Path) -> None:
    for flip, expected in ((None, False), (True, False), (False, True)):
        images = data.load(str(folder / "32"), flip=flip)
        pixels = torch.cat([shown(images, epoch).mean(1) for epoch in range(4)])
        brighter_left = pixels[:, 8:24, 8:14].mean((1, 2)) > pixels[:, 8:24, 18:24].mean((1, 2))
        is_left = (images.train.targets == 0).repeat(4)
        assert torch.equal(brighter_left, is_left) == expected


@pytest.mark.parametrize("policy", sorted(policies.TORCHVISION))
@pytest.mark.parametrize("name", ["digits", "32", "128"])
def test_a_policy_depends_on_seed_epoch_and_index_only(folder: Path, policy: str, name: str) -> None:
    def load(seed: int) -> ImageSet:
        limit = 16 if name == "digits" else None
        return data.load(name if name == "digits" else str(folder / name), augment=policy, seed=seed, train_limit=limit)

    images = load(0)
    before = torch.get_rng_state()
    whole = images.train.batch(torch.arange(16), 3)[0]
    assert torch.equal(torch.get_rng_state(), before)
    order = torch.tensor([7, 2, 15, 0])
    assert torch.equal(images.train.batch(order, 3)[0], whole[order])
    for other in (images.train.batch(torch.arange(16), 4)[0], load(1).train.batch(torch.arange(16), 3)[0]):
        assert not torch.equal(other, whole)
    plain = data.load(name if name == "digits" else str(folder / name), train_limit=16 if name == "digits" else None)
    assert torch.equal(images.train.batch(torch.arange(16), -1)[0], plain.train.batch(torch.arange(16), -1)[0])
    assert images.fingerprint == plain.fingerprint  # what is done to images does not change who they are


def test_erasing_takes_a_rectangle_from_as_many_images_as_asked_for() -> None:
    pixels = torch.full((400, 3, 32, 32), 255, dtype=torch.uint8)
    images = dataclasses.replace(data.load("digits"), pad=0, flip=False, erase=0.25, mean=(0.1,) * 3, std=(0.2,) * 3)
    gone = (Augment(images, 0, "cpu").train(pixels, torch.arange(400), 0) == 0).all(1)
    hit = gone.flatten(1).any(1)
    assert 0.19 < hit.float().mean() < 0.31
    areas = gone[hit].float().mean((1, 2))
    assert areas.min() > 0.01 and areas.max() < 0.36
    for one in gone[hit][:20]:  # a rectangle: the outer product of its rows and columns
        assert torch.equal(one, one.any(1, keepdim=True) & one.any(0, keepdim=True))


def test_the_settings_name_the_policies_there_are() -> None:
    assert FIELDS["augment"].metadata["choices"] == ("none", "light", *policies.TORCHVISION)


def test_a_resumed_run_sees_what_it_would_have_seen(tmp_path: Path) -> None:
    """Per example from (seed, epoch, index): no generator's state has to survive."""
    config = TrainConfig(width=4, train_limit=64, epochs=2, augment="trivial", erase=0.3, threads=1, workers=0)
    images = load_images(config)
    config = resolve(config, images)
    whole = Run(config, images)
    whole.train()
    cut = Run(config, images, tmp_path / "cut")
    cut.write_config()
    cut.train_epoch()
    cut.save_checkpoint()
    torch.manual_seed(1)
    resumed = Run(config, load_images(config), tmp_path / "cut")
    assert resumed.load_checkpoint()
    resumed.train()
    for one, other in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_first_line_says_what_is_done_to_images(folder: Path, tmp_path: Path) -> None:
    common = ("--data", folder / "32", "--width", 4, "--epochs", 1, "--threads", 1, "--workers", 0)
    for number, (flags, said) in enumerate(
        [
            ((), "images cropped, mirrored;"),
            (("--no-flip", "--augment", "trivial"), "images cropped, TrivialAugmentWide;"),
            (("--augment", "none", "--erase", 0.5), "images erased in part (50%);"),
        ]
    ):
        done = run("train", *common, *flags, "--out", tmp_path / str(number))
        assert done.returncode == 0, done.stderr
        assert said in done.stderr.splitlines()[0]


def test_a_sheet_shows_images_as_the_network_sees_them(tmp_path: Path) -> None:
    common = ("train", "--width", 4, "--train-limit", 40, "--method", "mixtrain-cutmix + lean", "--epochs", 2)
    done = run(*common, "--show-augmentation", tmp_path / "sheet.png", "--out", tmp_path / "none")
    assert done.returncode == 0, done.stderr
    assert "32×32, whole; 32×32, composite 2; 12×12, shrunk 0.375; 16×16, shrunk 0.5;" in done.stderr
    assert not (tmp_path / "none").exists()
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (2 * 8 * 36 + 4, 8 * 36 + 4)  # eight forms, two rows each
    small = sheet[4 * 36 + 4 : 5 * 36, 4:36]  # the first example at 12 pixels, white around it
    assert (small[12:] == 255).all() and (small[:, 12:] == 255).all() and not (small[:12, :12] == 255).all()
    wrong = run(*common, "--show-augmentation", tmp_path / "sheet.jpg")
    assert wrong.returncode == 2 and "ends in .png" in wrong.stderr

"""Images are scored by models that are trained as the command trains."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from scoring_helpers import digits, settings, small_scores

from leantrain import data
from leantrain.cost import BACKWARD, FORWARD
from leantrain.run.display import Quiet
from leantrain.run.scores import score_images


def test_scores_depend_on_the_seed_and_on_nothing_else() -> None:
    images = digits()
    generator = torch.get_rng_state()
    one = small_scores(images, models=2)
    torch.rand(3)
    assert torch.equal(one.values, small_scores(images, models=2).values)
    assert not torch.equal(one.values, small_scores(images, models=2, seed=1).values)
    torch.set_rng_state(generator)
    small_scores(images)
    assert torch.equal(torch.get_rng_state(), generator)
    assert one.ids == tuple(map(str, images.train.ids.tolist()))  # type: ignore[union-attr]
    assert torch.equal(one.targets, images.train.targets)
    assert one.made_with["fingerprint"] == images.fingerprint


def test_the_score_of_an_ensemble_is_the_mean_of_its_members() -> None:
    images = digits(40)
    both = small_scores(images, models=2).values
    first = small_scores(images, models=1).values
    second = 2 * both - first  # members do not depend on how many there are
    assert not torch.allclose(first, second)
    assert ((second > 0) & (second < math.sqrt(2) + 1e-5)).all()


@pytest.mark.parametrize(
    ("kind", "gradients", "per_pass"),
    [
        ("el2n", None, FORWARD),
        ("loss", None, FORWARD),
        ("grand", None, FORWARD + BACKWARD),
        ("grand", "last", FORWARD),
        ("grand[gradients=last]", None, FORWARD),
        ("forgetting", None, 0.0),
    ],
)
def test_the_cost_is_training_and_passes_of_all_members(kind: str, gradients: str | None, per_pass: float) -> None:
    scores = small_scores(digits(40), kind, models=2, epochs=3, gradients=gradients)
    assert scores.cost == pytest.approx(2 * 40 * (3 + per_pass))
    assert scores.seconds > 0
    assert scores.kind == kind.split("[")[0]
    assert scores.values.shape == (40,) and bool(scores.values.isfinite().all())


def test_images_in_a_folder_are_known_by_their_paths(tmp_path: Path) -> None:
    for name, shade in (("dark", 40), ("light", 200)):
        for part, count in (("train", 12), ("val", 2)):
            (tmp_path / part / name).mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (16, 16), (shade + n, shade, shade)).save(tmp_path / part / name / f"{n:02}.png")
    images = data.load(str(tmp_path))
    scores = small_scores(images, workers=1)
    assert scores.ids[0] == "train/dark/00.png"
    assert scores.classes == ("dark", "light")
    assert bool(scores.values.isfinite().all())


def test_progress_goes_from_nothing_to_all() -> None:
    class Noted(Quiet):
        def __init__(self) -> None:
            self.steps: list[float] = []

        def step(self, examples: int, progress: float) -> None:
            self.steps.append(progress)

    noted = Noted()
    images = digits(40)
    score_images(settings(images), images, "el2n", models=2, epochs=2, display=noted)
    assert noted.steps == sorted(noted.steps)
    assert noted.steps[-1] == pytest.approx(1.0)


def test_wrong_labels_are_among_the_highest_scores() -> None:
    images = digits(800)
    assert isinstance(images.train, data.MemoryImages)
    flipped = torch.randperm(800, generator=torch.Generator().manual_seed(0))[:40]
    targets = images.train.targets.clone()
    targets[flipped] = (targets[flipped] + 5) % 10
    noisy = dataclasses.replace(images, train=dataclasses.replace(images.train, targets=targets))
    values = small_scores(noisy, width=8, epochs=6).values
    rank = values.argsort().argsort() / 799
    assert rank[flipped].mean() > 0.9

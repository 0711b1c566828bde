"""`predict` names the classes that a trained model sees in files, without the data that it was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from leantrain.data import EVALUATION, Augment, load
from leantrain.errors import LeanError
from leantrain.run.config import read_yaml
from leantrain.run.predict import Predictor, pictures
from program import run

COLOURS = {"green things": (40, 160, 40), "red": (170, 30, 30), "sky ü": (60, 90, 200)}


def make_pictures(root: Path, side: int, each: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.clip(rng.normal(colour, 45, (side, side + 7, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.{'jpg' if number % 2 else 'png'}")


@pytest.fixture(
    scope="module", params=[24, 128], ids=["small images, shown whole", "large images, of which the middle"]
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, trained on data that is gone, and `new`, pictures to ask about."""
    root = tmp_path_factory.mktemp("predict")
    make_pictures(root / "data" / "train", request.param, 16, seed=0)
    make_pictures(root / "data" / "test", request.param, 5, seed=1)
    flags = ("--model", "resnet8", "--width", 4, "--batch-size", 8, "--epochs", 3, "--precision", "fp32")
    size = ("--image-size", 24 if request.param == 24 else 100)
    done = run("train", "--data", root / "data", *flags, *size, "--workers", 0, "--threads", 1, "--out", root / "run")
    assert done.returncode == 0, done.stderr
    (root / "data" / "test").rename(root / "new")
    shutil.rmtree(root / "data")
    return root


def test_it_answers_as_the_evaluation_did(trained: Path) -> None:
    done = run("predict", trained / "run", trained / "new", "--json", "--top", 2)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["image"] for one in found] == sorted(str(file) for file in (trained / "new").rglob("*.*"))
    for one in found:
        first, second = one["classes"]
        assert 1 >= first["probability"] >= second["probability"] >= 0
        assert {first["name"], second["name"]} <= COLOURS.keys()
    right = sum(one["classes"][0]["name"] == Path(one["image"]).parent.name for one in found)
    accuracy = json.loads((trained / "run" / "result.json").read_text())["test_accuracy"]
    assert right == round(accuracy * len(found))
    assert right > len(found) / 2  # it has learnt something, so this can fail


def test_pictures_are_shown_as_in_the_evaluation(trained: Path) -> None:
    settings = read_yaml(trained / "run" / "config.yaml")
    make_pictures(trained / "same" / "train", 30, 2, seed=2)
    (trained / "same" / "test").symlink_to(trained / "new")
    images = load(str(trained / "same"), image_size=settings["image_size"])
    expected, _ = images.test.batch(torch.arange(15), EVALUATION)
    expected = Augment(images, 0, "cpu").evaluate(expected)
    files = [trained / "same" / name for name in images.test.ids]  # type: ignore[union-attr]
    assert torch.equal(Predictor(trained / "run").shown(files), expected)
    shutil.rmtree(trained / "same")


@pytest.mark.parametrize("size", [32, 128])
def test_a_set_that_is_known_by_name_is_shown_as_in_the_evaluation_too(size: int, tmp_path: Path) -> None:
    """Its pictures are shown whole at any size, and grey here."""
    network = ("--model", "resnet8", "--width", 4, "--image-size", size)
    flags = (*network, "--train-limit", 40, "--batch-size", 20, "--epochs", 1, "--threads", 1)
    done = run("train", *flags, "--out", tmp_path / "digits")
    assert done.returncode == 0, done.stderr
    images = load("digits", image_size=size)
    expected, _ = images.test.batch(torch.arange(8), EVALUATION)
    files = [tmp_path / f"{number}.png" for number in range(8)]
    for file, pixels in zip(
        files, load("digits", image_size=8).test.batch(torch.arange(8), EVALUATION)[0], strict=True
    ):
        Image.fromarray(pixels[0].numpy()).save(file)
    shown = Predictor(tmp_path / "digits").shown(files)
    augment = Augment(images, 0, "cpu")
    assert shown.shape == (8, 1, size, size)
    assert (augment.bytes_of(shown).int() - expected.int()).abs().max() <= 2  # another library enlarges


def test_from_python_it_gives_probabilities_and_the_network(trained: Path) -> None:
    predictor = Predictor(trained / "run")
    files = sorted((trained / "new" / "red").iterdir())
    probabilities = predictor(files)
    assert probabilities.shape == (5, 3) and torch.allclose(probabilities.sum(1), torch.ones(5))
    assert torch.equal(predictor(files[2:3]).argmax(1), probabilities[2:3].argmax(1))  # whatever else is in the batch
    assert predictor.classes == tuple(sorted(COLOURS)) and not predictor.module.training
    assert predictor([]).shape == (0, 3)


def test_a_table_names_image_and_classes_whole(trained: Path) -> None:
    file = trained / "new" / "sky ü" / "0.png"
    done = run("predict", trained / "run", file)
    assert "sky ü" in done.stdout and "green things" in done.stdout
    column = "".join(line.split("│")[1].strip() for line in done.stdout.splitlines() if line.startswith("│"))
    assert column.replace(" ", "") == str(file).replace(" ", "")  # one may end a line


def test_what_cannot_be_done_is_one_sentence(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    (tmp_path / "empty").mkdir()
    for words, said in (
        ((tmp_path, tmp_path / "bad.jpg"), "holds no finished run"),
        ((trained / "run", tmp_path / "none.jpg"), "none.jpg'; give image files"),
        ((trained / "run", tmp_path / "empty"), "has no images"),
        ((trained / "run", tmp_path / "bad.jpg"), "bad.jpg' cannot be read"),
        ((trained / "run", tmp_path / "bad.jpg", "--top", 0), "--top is 0"),
        ((trained / "run", tmp_path / "bad.jpg", "--device", "abacus"), "--device is 'abacus'"),
    ):
        done = run("predict", *words)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = run("predict", trained / "run", tmp_path / "bad.jpg", "--skip-bad-images")
    assert done.returncode == 2 and "none of the 1 files can be read" in done.stderr
    good = trained / "new" / "red" / "0.png"
    done = run("predict", trained / "run", tmp_path / "bad.jpg", good, "--skip-bad-images", "--json")
    assert done.returncode == 0 and f"left out: {tmp_path / 'bad.jpg'}" in done.stderr
    assert [one["image"] for one in json.loads(done.stdout)] == [str(good)]


def test_a_run_of_an_earlier_version_says_what_to_do(trained: Path, tmp_path: Path) -> None:
    old = shutil.copytree(trained / "run", tmp_path / "old")
    text = (old / "config.yaml").read_text()
    (old / "config.yaml").write_text(text.replace("  image_size:", "  was_size:"))
    assert (old / "config.yaml").read_text() != text
    with pytest.raises(LeanError, match="has no 'image_size', so it was damaged or written by another version"):
        Predictor(old)
    for damage in ("mean: [a]", "mean: []", "std: [0.0, 1, 1]"):
        name, _, value = damage.partition(": ")
        settings = yaml.safe_load(text)
        settings["made_with"][name] = yaml.safe_load(value)
        (old / "config.yaml").write_text(yaml.safe_dump(settings))
        with pytest.raises(LeanError, match=f"{name} in '.*' is .*, so it was damaged"):
            Predictor(old)


def test_a_single_file_is_not_taken_for_a_list_of_letters(trained: Path) -> None:
    with pytest.raises(LeanError, match="takes a list of files"):
        Predictor(trained / "run")(str(trained / "new" / "red" / "0.png"))


def test_a_folder_is_read_by_the_rules_of_training(trained: Path, tmp_path: Path) -> None:
    photo = trained / "new" / "red" / "0.png"
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(photo, tmp_path / "elsewhere" / "linked.png")
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "._photo.png").write_bytes(b"what a file manager leaves")
    (tmp_path / "asked" / "link").symlink_to(tmp_path / "elsewhere")
    assert pictures([tmp_path / "asked", photo]) == [tmp_path / "asked" / "link" / "linked.png", photo]


def test_workers_and_precision_of_the_machine_it_was_trained_on_do_not_matter(
    trained: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    moved = shutil.copytree(trained / "run", tmp_path / "moved")
    settings = yaml.safe_load((moved / "config.yaml").read_text())
    settings |= {"workers": 7, "pin_memory": True, "precision": "fp16", "device": "cuda"}
    (moved / "config.yaml").write_text(yaml.safe_dump(settings))
    files = sorted((trained / "new" / "red").iterdir())
    assert torch.equal(Predictor(moved)(files), Predictor(trained / "run")(files))
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]

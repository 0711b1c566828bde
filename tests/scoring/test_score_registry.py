"""A score that is registered from outside works wherever one is chosen by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from scoring_helpers import bars, call, digits, examples, handmade, network, seeded, settings
from torch import Tensor, nn

import leantrain
from leantrain.cost import FORWARD
from leantrain.errors import LeanError
from leantrain.inspect.score_figures import classes, gallery, histogram, overlap
from leantrain.options import option
from leantrain.run.scores import score_images
from leantrain.scoring import (
    SCORES,
    RecordedScore,
    Score,
    compare_scores,
    load,
    logits_of,
    parse_score,
    register_score,
    score_pass,
)
from program import SMALL


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for name in ("_kinds", "_aliases"):
        monkeypatch.setattr(SCORES, name, dict(getattr(SCORES, name)))


@pytest.fixture
def margin(registry: None) -> type[Score]:
    @register_score
    @dataclass(frozen=True)
    class Margin(Score):
        name: ClassVar[str] = "margin"
        title: ClassVar[str] = "Margin"
        aliases: ClassVar[tuple[str, ...]] = ("lead",)
        epochs: ClassVar[int] = 3
        power: float = option(1.0, "the margin to the power of this", above=0)

        def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
            p = logits_of(model(inputs)).softmax(1)
            true = p.gather(1, targets[:, None]).squeeze(1)
            others = p.scatter(1, targets[:, None], -1.0).amax(1)
            return (1 - (true - others)) ** self.power

    return Margin


def test_it_is_chosen_by_name_with_its_options(margin: type[Score]) -> None:
    assert parse_score("margin") == margin()
    assert str(parse_score("lead[power=2]")) == "margin[power=2.0]"
    with pytest.raises(LeanError, match="score 'margin': power is 0.0, but must be above 0"):
        parse_score("margin[power=0]")
    with pytest.raises(LeanError, match="there are el2n, forgetting, grand, loss, margin. Did you mean 'margin'"):
        parse_score("margins")


def test_it_works_in_your_own_loop_and_in_a_file(margin: type[Score], tmp_path: Path) -> None:
    dataset = bars()
    scores = leantrain.score(network, dataset, "margin[power=2]", models=2, batch_size=10, device="cpu")
    assert scores.kind == "margin"
    assert (scores.made_with["epochs"], scores.made_with["power"]) == (3, 2.0)
    assert scores.cost == pytest.approx(2 * 60 * (3 + FORWARD))
    assert ((scores.values >= 0) & (scores.values <= 4)).all()
    scores.save(tmp_path / "m.npz")
    assert torch.equal(load(tmp_path / "m.npz").values, scores.values)
    lean = leantrain.attach(network(), dataset, f"el2n[scores={tmp_path / 'm.npz'}]", epochs=1)
    assert sum(len(batch) for batch in lean.loader(10)) == 45


def test_it_works_in_the_command(
    margin: type[Score], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call("score", *SMALL, "--method", "margin[power=2]", "--models", 1)
    printed = capsys.readouterr()
    assert "Margin of 160 examples" in printed.out
    assert "scoring: margin[power=2.0] of 160 images" in printed.err
    assert "Margin is to look at and to compare" in printed.err
    written = tmp_path / "scores-digits-margin-seed0"
    assert {p.name for p in written.iterdir()} == {"histogram.png", "gallery.png", "classes.png", "summary.json"}
    summary = json.loads((written / "summary.json").read_text())
    assert (summary["kind"], summary["made_with"]["power"], summary["made_with"]["epochs"]) == ("margin", 2.0, 3)
    file = written.with_suffix(".npz")
    assert load(file).kind == "margin"
    call("score", "--compare", file, file, "--out", tmp_path / "both")
    assert load(tmp_path / "both" / "combined.npz").made_with["of"] == ["margin", "margin"]


def test_the_help_lists_it_and_its_epochs(margin: type[Score], capsys: pytest.CaptureFixture[str]) -> None:
    call("score", "--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert "el2n, forgetting, grand, loss, margin: what to score by (default: el2n)" in printed
    assert "(default: 2; for forgetting 5; for margin 3)" in printed


def test_figures_go_by_its_title(margin: type[Score]) -> None:
    images = digits(40)
    scores = score_images(settings(images), images, "margin", models=1, epochs=1)
    figures = (histogram(scores), classes(scores), gallery(scores, images), overlap(compare_scores(scores, scores)))
    for figure in figures:
        assert any("Margin" in text.get_text() for text in figure.texts)
    assert figures[0].axes[0].get_xlabel() == "Margin"


def test_one_without_a_title_goes_by_its_name() -> None:
    @register_score
    @dataclass(frozen=True)
    class Doubt(Score):
        name: ClassVar[str] = "doubt"

        def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
            return 1 - logits_of(model(inputs)).softmax(1).amax(1)

    model, (inputs, targets) = seeded().train(), examples(6)
    values = score_pass(model, [(inputs, targets, torch.arange(6))], "doubt", 6)
    assert not values.requires_grad
    assert model.training
    assert histogram(handmade([1.0, 2.0], kind="doubt")).axes[0].get_xlabel() == "doubt"


def test_one_that_differentiates_the_model_has_autograd() -> None:
    @register_score
    @dataclass(frozen=True)
    class Saliency(Score):
        name: ClassVar[str] = "saliency"
        needs_gradients: ClassVar[bool] = True

        def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
            shown = inputs.clone().requires_grad_()
            summed = nn.functional.cross_entropy(logits_of(model(shown)), targets, reduction="sum")
            (gradient,) = torch.autograd.grad(summed, shown)
            return gradient.flatten(1).norm(dim=1)

    images = digits(40)
    scores = score_images(settings(images, precision="bf16"), images, "saliency", models=1, epochs=1)
    assert (scores.values > 0).all()
    model, (inputs, targets) = seeded(), examples(5)
    assert (score_pass(model, [(inputs, targets, torch.arange(5))], "saliency", 5) > 0).all()
    assert all(p.grad is None for p in model.parameters())


def test_one_that_is_read_from_the_records_of_training_costs_no_pass() -> None:
    @register_score
    @dataclass(frozen=True)
    class Wrong(RecordedScore):
        name: ClassVar[str] = "wrong"
        least_epochs: ClassVar[int] = 3

        def from_records(self, correct: Tensor) -> Tensor:
            return (~correct).float().sum(0)

    scores = leantrain.score(network, bars(), "wrong", models=1, epochs=3, batch_size=10, device="cpu")
    assert set(scores.values.tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert scores.cost == 3 * 60
    with pytest.raises(LeanError, match="epochs is 2, but wrong takes at least 3"):
        leantrain.score(network, bars(), "wrong", epochs=2)


def test_one_that_gives_no_number_per_example_is_refused() -> None:
    @register_score
    @dataclass(frozen=True)
    class Mean(Score):
        name: ClassVar[str] = "mean"

        def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
            return logits_of(model(inputs)).mean()

    inputs, targets = examples(5)
    with pytest.raises(LeanError, match="score 'mean' measured .* for a batch of 5 examples"):
        score_pass(seeded(), [(inputs, targets, torch.arange(5))], "mean", 5)

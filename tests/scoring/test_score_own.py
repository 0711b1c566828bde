"""leantrain.score: your own data set and your own models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scoring_helpers import bars, examples, network
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from leantrain.cost import BACKWARD, FORWARD
from leantrain.errors import LeanError
from leantrain.scoring import score
from leantrain.scoring.kinds import GraNd


@pytest.mark.parametrize("kind", ["el2n", "grand", "loss"])
def test_a_data_set_and_models_of_your_own_are_scored(kind: str) -> None:
    dataset = bars()
    scores = score(network, dataset, kind, models=2, epochs=12, batch_size=10, device="cpu")
    assert scores.ids[:3] == ("0", "1", "2")
    assert torch.equal(scores.targets, dataset.tensors[1])
    assert scores.classes == ("0", "1", "2")
    passing = FORWARD + (BACKWARD if kind == "grand" else 0)
    assert scores.cost == pytest.approx(2 * 60 * (12 + passing))
    rank = scores.values.argsort().argsort() / 59
    assert rank[-5:].mean() > 0.8


def test_forgetting_lies_between_none_and_the_epochs() -> None:
    values = score(network, bars(), "forgetting", models=1, epochs=4, batch_size=10, device="cpu").values
    assert set(values.tolist()) <= {0.0, 1.0, 2.0, 4.0}


def test_scores_depend_on_the_seed_only_and_leave_the_generators_alone() -> None:
    def scored(seed: int) -> Tensor:
        return score(network, bars(30), models=2, epochs=1, batch_size=10, seed=seed, device="cpu").values

    generator = torch.get_rng_state()
    one = scored(0)
    assert torch.equal(torch.get_rng_state(), generator)
    torch.rand(5)
    assert torch.equal(scored(0), one)
    assert not torch.equal(scored(1), one)


def test_models_are_asked_about_the_view_without_augmentation() -> None:
    class Dark(Dataset[Any]):
        """Says what it was asked for, and shows nothing."""

        classes = ("one", "two", "three")

        def __init__(self) -> None:
            self.asked: list[int] = []

        def __len__(self) -> int:
            return 30

        def __getitem__(self, i: int) -> dict[str, Any]:
            self.asked.append(i)
            return {"image": torch.zeros(1, 8, 8), "label": int(bars(30).tensors[1][i])}

    plain, noisy = Dark(), Dark()
    scores = score(network, noisy, models=1, epochs=1, batch_size=8, view=plain, device="cpu")
    assert plain.asked[-30:] == list(range(30))
    assert scores.classes == ("one", "two", "three")
    for label in range(3):  # they all look the same
        assert scores.values[scores.targets == label].std() < 1e-5


def test_a_maker_that_gives_one_model_again_and_again_is_refused() -> None:
    model = network()
    with pytest.raises(LeanError, match="the same model twice"):
        score(lambda: model, bars(12), models=2, epochs=1, device="cpu")


def test_training_that_blows_up_is_reported() -> None:
    with pytest.raises(LeanError, match="did not stay finite.*try a smaller lr"):
        score(network, bars(), models=1, epochs=3, batch_size=10, lr=1e30, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "el3n"}, "'el3n' is not known.*Did you mean 'el2n'"),
        ({"models": 0}, "models is 0, but must be at least 1"),
        ({"epochs": 0}, "epochs is 0, but must be at least 1"),
        ({"kind": "forgetting", "epochs": 1}, "forgetting takes at least 2"),
        ({"kind": "grand", "gradients": "some"}, "gradients is 'some', but must be one of all, last"),
        ({"kind": "grand[gradients=some]"}, "gradients is 'some', but must be one of all, last"),
        ({"gradients": "last"}, "score 'el2n' has no option 'gradients'; it has none"),
        ({"device": "gpu"}, "device is 'gpu', which torch cannot use here"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"view": TensorDataset(*examples(3))}, "view has 3 examples and the data set 4"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_trained(change: dict[str, Any], message: str) -> None:
    def never() -> nn.Module:
        raise AssertionError("a model was made")

    with pytest.raises(LeanError, match=message):
        score(never, TensorDataset(*examples(4)), **{"epochs": 2, **change})


def test_gradients_is_short_for_the_option_of_grand() -> None:
    ways: tuple[dict[str, Any], ...] = (
        {"kind": "grand", "gradients": "last"},
        {"kind": "grand[gradients=last]"},
        {"kind": GraNd(gradients="last")},
    )
    first, *others = (score(network, bars(30), models=1, epochs=1, batch_size=10, device="cpu", **way) for way in ways)
    assert (first.kind, first.made_with["gradients"]) == ("grand", "last")
    for other in others:
        assert torch.equal(first.values, other.values)
        assert (first.kind, first.made_with) == (other.kind, other.made_with)


def test_models_are_trained_for_as_long_as_suits_the_score() -> None:
    for kind, epochs in (("el2n", 2), ("forgetting", 5)):
        assert score(network, bars(12), kind, models=1, device="cpu").made_with["epochs"] == epochs

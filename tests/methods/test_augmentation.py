"""CutMix and MixUp as augmentation: an input per example, two labels, clean records, and nothing saved."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.mixing import symmetric_beta


class Watched(nn.Module):
    """Remembers what it was shown and what it answered."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.shown = x.detach()
        self.answer: Tensor = self.head(x.flatten(1))
        return self.answer


def one_batch(method: str) -> tuple[Watched, leantrain.Lean, leantrain.Batch, Tensor]:
    """A step on images of one grey each, so that a pixel tells which example it is of."""
    torch.manual_seed(0)
    pictures = torch.arange(1.0, 33.0).view(-1, 1, 1, 1).expand(32, 1, 8, 8).clone()
    model = Watched()
    lean = leantrain.attach(model, TensorDataset(pictures, torch.arange(32) % 5), method, epochs=2, label_smoothing=0.1)
    batch = next(iter(lean.loader(32)))
    return model, lean, batch, lean.loss(batch)


def test_cutmix_pastes_one_rectangle_and_weighs_both_labels_by_area() -> None:
    model, lean, batch, loss = one_batch("cutmix")
    expected, alone = 0.0, 0
    own = batch.inputs[:, 0, 0, 0]
    for row, picture in enumerate(model.shown[:, 0]):
        others = picture[picture != own[row]]
        assert others.unique().numel() <= 1
        alone += others.numel() == 0
        partner = row if not others.numel() else int((own == others[0]).nonzero())
        pasted = picture != own[row]
        if others.numel():  # one rectangle: rows and columns span it exactly
            assert int(pasted.any(0).sum()) * int(pasted.any(1).sum()) == int(pasted.sum())
        share = 1.0 - pasted.float().mean()
        answer = model.answer[row].detach()
        for target, part in ((batch.targets[row], share), (batch.targets[partner], 1 - share)):
            expected += float(part * F.cross_entropy(answer, target, label_smoothing=0.1))
    assert alone < 16
    assert loss.item() == pytest.approx(expected / 32, rel=1e-5)
    clean = F.cross_entropy(model.answer, batch.targets, reduction="none")  # own label, unsmoothed, unweighted
    assert torch.allclose(lean.ledger["loss"][batch.index], clean)
    assert lean.cost == 32 and lean.examples == 32


def test_mixup_averages_and_the_loss_is_that_of_soft_labels() -> None:
    model, lean, batch, loss = one_batch("mixup[alpha=0.4]")
    own = batch.inputs[:, 0, 0, 0]
    draws = leantrain.rng.uniform(lean.seed, 0, batch.index, 16, "blend")
    share = model.shown[:, 0, 0, 0]
    partners = draws[:, 4].argsort()
    share = torch.where(partners == torch.arange(32), 1.0, (share - own[partners]) / (own - own[partners]))
    assert ((share >= -1e-4) & (share <= 1 + 1e-4)).all() and share.std() > 0.2
    hard = F.one_hot(batch.targets, 5).float()
    soft = share.unsqueeze(1) * hard + (1 - share.unsqueeze(1)) * hard[partners]
    assert loss.item() == pytest.approx(F.cross_entropy(model.answer, soft, label_smoothing=0.1).item(), rel=1e-3)


def test_a_chance_leaves_the_others_as_they_are_and_epochs_differ() -> None:
    model, lean, batch, _ = one_batch("cutmix[chance=0.25]")
    changed = (model.shown != batch.inputs).flatten(1).any(1)
    assert 1 <= int(changed.sum()) <= 16
    first = model.shown
    lean.loss(next(iter(lean.loader(32))))
    assert not torch.equal(first.sort(0).values, model.shown.sort(0).values)


def test_weights_stay_with_their_own_labels() -> None:
    lean = leantrain.attach(Watched(), TensorDataset(torch.randn(8, 1, 8, 8), torch.arange(8) % 5), "mixup", epochs=1)
    batch = next(iter(lean.loader(8)))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    loss = lean.loss(leantrain.Batch(**{**vars(batch), "weight": weight}))
    answer = lean._presenter.answer(batch)
    assert answer.shares is not None and answer.partners is not None
    losses = -answer.logits.log_softmax(1)
    own = losses.gather(1, batch.targets[:, None])[:, 0] * weight * answer.shares
    other = losses.gather(1, batch.targets[answer.partners][:, None])[:, 0]
    expected = (own + other * weight[answer.partners] * (1 - answer.shares)).mean()
    assert torch.allclose(loss, expected)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 2.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    from scipy.special import betaincinv

    quantiles = torch.linspace(0.001, 0.999, 199)
    assert torch.allclose(
        symmetric_beta(quantiles, alpha).double(),
        torch.from_numpy(betaincinv(alpha, alpha, quantiles.double().numpy())),
        atol=1e-3,
    )


def test_an_example_that_is_only_looked_at_is_shown_alone() -> None:
    lean = leantrain.attach(
        Watched(), TensorDataset(torch.randn(32, 1, 8, 8), torch.arange(32) % 5), "cutmix", epochs=2
    )
    list(lean.loader(8))
    assert lean.plan.forms[0].parts and not lean.plan.forms[0].alone().parts

"""Evaluation agrees with scikit-learn and leaves the model as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, recall_score
from torch import nn

from leantrain.run.evaluate import evaluate


def outcome(n: int = 500, classes: int = 4):  # type: ignore[no-untyped-def]
    rng = torch.Generator().manual_seed(0)
    targets = torch.randint(classes, (n,), generator=rng)
    logits = torch.randn(n, classes, generator=rng) * 2 + torch.nn.functional.one_hot(targets, classes)
    batches = [(logits[i : i + 64], targets[i : i + 64]) for i in range(0, n, 64)]
    return evaluate(nn.Identity(), batches, classes), logits, targets


def test_numbers_are_scikit_learn_s() -> None:
    result, logits, targets = outcome()
    predicted = logits.argmax(1)
    assert result.accuracy == pytest.approx(accuracy_score(targets, predicted))
    assert result.macro_f1 == pytest.approx(f1_score(targets, predicted, average="macro"))
    assert result.loss == pytest.approx(log_loss(targets, logits.softmax(1).double().numpy()), rel=1e-5)
    recalls = recall_score(targets, predicted, average=None)
    assert result.class_accuracy == pytest.approx(tuple(recalls))
    assert result.worst_class_accuracy == pytest.approx(min(recalls))


def test_calibration_error_is_the_weighted_gap_over_fifteen_bins() -> None:
    result, logits, targets = outcome()
    confidence, predicted = (x.numpy() for x in logits.softmax(1).max(1))
    bins = np.minimum((confidence * 15).astype(int), 14)
    correct = predicted == targets.numpy()
    gaps = [abs(confidence[bins == b].mean() - correct[bins == b].mean()) * (bins == b).mean() for b in set(bins)]
    assert result.calibration_error == pytest.approx(sum(gaps), abs=1e-6)


def test_a_class_without_test_examples_does_not_count() -> None:
    logits = torch.eye(3)[[0, 1, 1]] * 5
    result = evaluate(nn.Identity(), [(logits, torch.tensor([0, 1, 1]))], 3)
    assert result.worst_class_accuracy == 1.0
    assert result.macro_f1 == 1.0


def test_batch_norm_dropout_and_mode_are_left_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    evaluate(model, [(torch.randn(8, 4, generator=torch.Generator()), torch.zeros(8).long())], 4)
    assert model.training
    assert torch.get_rng_state().equal(state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

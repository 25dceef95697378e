"""Losses compared with their formulas in plain arithmetic, and the effect of their gradients."""

import math
from typing import get_args

import pytest
import torch

from farrank_training.configuration import Loss
from farrank_training.errors import TrainingError
from farrank_training.losses import cross_entropy, group_loss, hinge, margin_mse, ranknet

SCORES = [[2.0, 1.5, -1.0], [0.0, 3.0, 0.25]]
TEACHER = [[5.0, 1.0, 0.0], [2.0, 2.5, -1.0]]


def test_hinge_sums_what_lacks_of_the_margin() -> None:
    assert hinge(torch.tensor(SCORES)).tolist() == pytest.approx([0.5, 4.0 + 1.25])
    assert hinge(torch.tensor(SCORES), margin=4.0).tolist() == pytest.approx([3.5 + 1.0, 7.0 + 4.25])
    target = torch.ones(2, 2)
    scores = torch.tensor(SCORES)
    of_torch = torch.nn.functional.margin_ranking_loss(
        scores[:, :1].expand(2, 2), scores[:, 1:], target, margin=1.0, reduction="sum"
    )
    assert hinge(scores).sum() == of_torch


def test_ranknet_is_the_pairs_log_odds() -> None:
    expected = [sum(math.log1p(math.exp(other - first)) for other in others) for first, *others in SCORES]
    assert ranknet(torch.tensor(SCORES)).tolist() == pytest.approx(expected)


def test_cross_entropy_chooses_among_the_group() -> None:
    expected = [math.log(sum(map(math.exp, scores))) - scores[0] for scores in SCORES]
    assert cross_entropy(torch.tensor(SCORES)).tolist() == pytest.approx(expected)


def test_margin_mse_wants_the_teachers_lead() -> None:
    expected = [
        sum(((first - other) - (wanted - than)) ** 2 for other, than in zip(others, thans, strict=True)) / 2
        for (first, *others), (wanted, *thans) in zip(SCORES, TEACHER, strict=True)
    ]
    found = margin_mse(torch.tensor(SCORES), torch.tensor(TEACHER))
    assert found.tolist() == pytest.approx(expected)
    # Only the difference counts: scores may have any offset.
    assert margin_mse(torch.tensor(TEACHER) + 7, torch.tensor(TEACHER)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", get_args(Loss))
def test_every_loss_pulls_the_relevant_document_up(name: Loss) -> None:
    scores = torch.tensor(SCORES, requires_grad=True)
    loss = group_loss(name)(scores, torch.tensor([[9.0, 0.0, 0.0]] * 2))
    assert loss.shape == (2,)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert (scores.grad[:, 0] < 0).all()
    assert (scores.grad[:, 1:] >= 0).all()


def test_extreme_scores_give_finite_losses() -> None:
    scores = torch.tensor([[-1e4, 1e4]])
    for name in get_args(Loss):
        assert group_loss(name)(scores, torch.zeros(1, 2)).isfinite().all()


def test_a_teacher_is_needed_where_one_teaches() -> None:
    with pytest.raises(TrainingError, match="loss is margin-mse, which needs a teacher's scores"):
        group_loss("margin-mse")(torch.tensor(SCORES), None)

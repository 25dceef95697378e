"""Losses compared with their formulas in plain arithmetic, and the effect of their gradients."""

import math
from typing import get_args

import pytest
import torch

from farrank_training.configuration import KlScores, Loss
from farrank_training.errors import TrainingError
from farrank_training.losses import (
    cross_entropy,
    group_loss,
    hinge,
    kl_divergence,
    margin_mse,
    own_documents_first,
    ranknet,
)

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


def softmax(values: list[float]) -> list[float]:
    total = sum(map(math.exp, values))
    return [math.exp(value) / total for value in values]


def scaled(values: list[float]) -> list[float]:
    return [(value - min(values)) / (max(values) - min(values)) for value in values]


@pytest.mark.parametrize("of", get_args(KlScores))
def test_kl_wants_the_teachers_order_of_all(of: KlScores) -> None:
    read = scaled if of == "min-max" else list
    expected = [
        sum(
            p * (math.log(p) - math.log(q))
            for p, q in zip(softmax(read(wanted)), softmax(read(scores)), strict=True)
        )
        for scores, wanted in zip(SCORES, TEACHER, strict=True)
    ]
    scores, teacher = torch.tensor(SCORES), torch.tensor(TEACHER)
    assert kl_divergence(scores, teacher, of).tolist() == pytest.approx(expected, rel=1e-5)
    # Only differences count, and with min-max not even their unit.
    moved = teacher * (3.0 if of == "min-max" else 1.0) + 7
    assert kl_divergence(moved, teacher, of).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_kl_is_that_of_pylate_and_sentence_transformers() -> None:
    # PyLate scales the ranker's scores and expects a teacher's that are scaled already.
    scores, teacher = torch.tensor(SCORES), torch.tensor(list(map(scaled, TEACHER)))
    for of, read in (("raw", scores), ("min-max", torch.tensor(list(map(scaled, SCORES))))):
        of_torch = torch.nn.functional.kl_div(
            read.log_softmax(dim=-1), teacher.log_softmax(dim=-1), reduction="batchmean", log_target=True
        )
        assert kl_divergence(scores, teacher, of).mean() == pytest.approx(of_torch)  # type: ignore[arg-type]


def test_contrastive_is_the_cross_entropy_of_all_documents_of_a_batch() -> None:
    groups, size = 3, 2
    scores = torch.randn(groups, groups * size, generator=torch.Generator().manual_seed(1))
    everything = torch.ones_like(scores, dtype=torch.bool)
    found = group_loss("contrastive")(own_documents_first(scores, everything), None)
    # sentence-transformers' and PyLate's: the documents of all groups, and the relevant ones' places.
    target = torch.arange(groups) * size
    expected = torch.nn.functional.cross_entropy(scores, target, reduction="none")
    torch.testing.assert_close(found, expected)


def test_a_document_that_does_not_compete_has_no_influence() -> None:
    scores = torch.tensor([[1.0, 0.5, 9.0, -1.0], [3.0, 0.0, 2.0, 1.0]], requires_grad=True)
    competing = torch.tensor([[True, True, False, True], [True, True, True, True]])
    rows = own_documents_first(scores, competing)
    assert rows.tolist() == [[1.0, 0.5, -math.inf, -1.0], [2.0, 1.0, 3.0, 0.0]]
    loss = group_loss("contrastive")(rows, None)
    assert loss[0].item() == pytest.approx(math.log(sum(map(math.exp, (1.0, 0.5, -1.0)))) - 1.0)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad[0, 2] == 0.0
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("name", get_args(Loss))
def test_every_loss_pulls_the_relevant_document_up(name: Loss) -> None:
    scores = torch.tensor(SCORES, requires_grad=True)
    loss = group_loss(name, kl_scores="raw")(scores, torch.tensor([[9.0, 0.0, 0.0]] * 2))
    assert loss.shape == (2,)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert (scores.grad[:, 0] < 0).all()
    assert (scores.grad[:, 1:] >= 0).all()


def test_extreme_scores_give_finite_losses() -> None:
    scores = torch.tensor([[-1e4, 1e4]])
    for name in get_args(Loss):
        assert group_loss(name)(scores, torch.zeros(1, 2)).isfinite().all()


@pytest.mark.parametrize("name", ["margin-mse", "kl"])
def test_a_teacher_is_needed_where_one_teaches(name: Loss) -> None:
    with pytest.raises(TrainingError, match=f"loss is {name}, which needs a teacher's scores"):
        group_loss(name)(torch.tensor(SCORES), None)

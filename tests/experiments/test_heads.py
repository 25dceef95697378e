"""Aggregators learn on vectors alone, and documents are composed again as their kind requires."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from farrank_experiments.doses import dosed
from farrank_experiments.heads import held_out_mrr, in_bf16, on_vectors, redrawn, train_head
from farrank_experiments.pairs import PairFeatures, scores_of
from farrank_experiments.questions import BIASED, FAR, AskedQuestion
from farrank_experiments.settings import HeadSettings
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_training.data_sets.window_documents import drawn_place

SETTINGS = HeadSettings(most_epochs=60, batch_size=8, learning_rates=(1e-2,), warmup_epochs=6)
NOTHING = np.zeros(0, dtype=np.int32)


def made_questions(count: int = 24) -> tuple[list[AskedQuestion], PairFeatures]:
    """Make questions whose relevant passage has a 1 where others have −1. The other values are noise."""
    generator = torch.Generator().manual_seed(4)
    documents = [(2, 0, 3), (4, 1, 5)]
    vectors: dict[str, Tensor] = {}
    questions = []
    for number in range(count):
        found = torch.randn(6, 32, generator=generator) * 0.3
        found[:, 0] = -1.0
        found[0, 0] = 1.0
        vectors[str(number)] = found
        questions.append(
            AskedQuestion(str(number), "", [NOTHING] * 6, {BIASED: documents, FAR: documents}, 0)
        )
    return questions, lambda question: Features(vectors[question.query_id])


@pytest.mark.parametrize("family", ["maxp", "avgp", "parade-attn", "parade-transf-rand"])
def test_an_aggregator_learns_and_follows_its_seed(family: str, tiny_backbone: Path) -> None:
    questions, features = made_questions()

    def trained(seed: int) -> list[float]:
        ranker = new_ranker(family, tiny_backbone, seed=1, pretrained=False)
        train_head(ranker, on_vectors(ranker.aggregator, features, FAR), questions, SETTINGS, seed)
        scores = [scores_of(ranker.aggregator, features(each), each.conditions[FAR]) for each in questions]
        assert all(relevant > other for relevant, other in scores)
        return [float(score) for each in scores for score in each]

    assert trained(seed=2) == trained(seed=2)
    assert trained(seed=2) != trained(seed=3)


@pytest.mark.parametrize("family", ["maxp", "parade-transf-rand"])
def test_scores_in_bf16_have_almost_the_same_gradients(family: str, tiny_backbone: Path) -> None:
    questions, features = made_questions(8)
    ranker = new_ranker(family, tiny_backbone, seed=1, pretrained=False).eval()
    scores = on_vectors(ranker.aggregator, features, FAR)

    found = []
    for computed in (scores, in_bf16(scores)):
        ranker.zero_grad()
        of_questions = computed(questions, 0, Random(5))
        torch.autograd.backward(of_questions.square().sum())
        gradients = [each.grad for each in ranker.aggregator.parameters() if each.grad is not None]
        found.append((of_questions, torch.cat([each.flatten() for each in gradients])))

    (scores_fp32, of_fp32), (scores_bf16, of_bf16) = found
    assert scores_bf16.dtype == of_bf16.dtype == torch.float32
    assert scores_bf16.tolist() != scores_fp32.tolist()
    assert torch.allclose(scores_bf16, scores_fp32, atol=0.02)
    assert float(torch.cosine_similarity(of_bf16, of_fp32, dim=0)) > 0.999


def test_documents_are_drawn_again_as_their_kind_requires() -> None:
    document, rng = (7, 0, 8, 9), Random(1)
    drawn = {
        kind: [redrawn(document, 0, partial(drawn_place, kind), rng) for _ in range(400)]
        for kind in (BIASED, FAR)
    }

    assert all(sorted(each) == [0, 7, 8, 9] for of_kind in drawn.values() for each in of_kind)
    places = {kind: Counter(each.index(0) + 1 for each in of_kind) for kind, of_kind in drawn.items()}
    assert places[BIASED][1] > 320
    assert set(places[FAR]) == {2, 3, 4}
    assert min(places[FAR].values()) > 100
    # The other passages change their order, too.
    assert len({tuple(each[:0] + each) for each in drawn[FAR]}) == 18


def test_a_head_learns_until_held_out_questions_no_longer_improve(tiny_backbone: Path) -> None:
    questions, features = made_questions(40)
    learning, held_out = questions[:24], questions[24:]
    ranker = new_ranker("maxp", tiny_backbone, seed=1, pretrained=False)
    measure, reached = held_out_mrr(ranker.aggregator, features, held_out, FAR), []

    def measured() -> float:
        reached.append(measure())
        return reached[-1]

    settings = replace(SETTINGS, learning_rates=(1e-9, 1e-2), patience=8)
    learned = train_head(
        ranker, on_vectors(ranker.aggregator, features, FAR), learning, settings, 2, measured
    )

    assert learned.converged
    assert learned.learning_rate == 1e-2
    # The first rate changes nothing, and stops after its patience.
    assert len(set(reached[:9])) == 1
    second = reached[9:]
    assert len(second) == learned.epochs + 8 < 60
    assert learned.mrr == max(second) == second[learned.epochs - 1] > reached[0]
    assert measure() == learned.mrr


def test_the_better_rate_is_kept_though_a_worse_one_follows(tiny_backbone: Path) -> None:
    questions, features = made_questions(40)
    ranker = new_ranker("maxp", tiny_backbone, seed=1, pretrained=False)
    measure = held_out_mrr(ranker.aggregator, features, questions[24:], FAR)
    settings = replace(SETTINGS, learning_rates=(1e-2, 1e-9), patience=2)
    learned = train_head(
        ranker, on_vectors(ranker.aggregator, features, FAR), questions[:24], settings, 2, measure
    )

    assert learned.learning_rate == 1e-2
    assert measure() == learned.mrr


def test_held_out_documents_are_composed_by_the_place_that_training_has(tiny_backbone: Path) -> None:
    questions, features = made_questions(8)
    ranker = new_ranker("firstp", tiny_backbone, seed=1, pretrained=False)
    train_head(ranker, on_vectors(ranker.aggregator, features, BIASED, dosed(1.0)), questions, SETTINGS, 2)

    first, behind = (
        held_out_mrr(ranker.aggregator, features, questions, BIASED, place)()
        for place in (dosed(1.0), dosed(0.0))
    )
    assert first == 1.0
    assert behind < first

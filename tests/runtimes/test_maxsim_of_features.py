"""MaxSim without padding has the scores of the family's aggregator, skipped tokens and all."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.families.maxsim import MaxSim
from farrank_rankers.family import MaxSimOptions, WindowAggregation
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role
from farrank_runtimes.maxsim import score_by_maxsim

ROLES = [Role.SPECIAL, Role.DOCUMENT, Role.SKIPPED, Role.PADDING]
LENGTHS = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=5), min_size=1, max_size=5)


def vectors_of(length: int, roles: list[Role]) -> Features:
    drawn = torch.tensor(roles)[torch.randint(len(roles), (length,))]
    drawn[0] = roles[0]
    return Features(torch.randn(length, 8), drawn)


def reference(documents: list[Features], query: Features, options: MaxSimOptions) -> Any:
    spec = RankerSpec("maxsim", "-", Chunking("disjoint", 8, 8, 100), options=options)
    features, mask = batched(documents)
    return MaxSim(spec, {}).explain(features, mask, stacked([query]).repeated(len(documents)))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("aggregation", ["union", "max", "first"])
@given(lengths=LENGTHS)
def test_scores_are_the_aggregators(
    lengths: list[list[int]], aggregation: WindowAggregation, mean: bool
) -> None:
    documents = [stacked([vectors_of(length, ROLES) for length in chunks]) for chunks in lengths]
    query = vectors_of(5, [Role.SPECIAL, Role.QUERY, Role.EXPANSION, Role.PADDING])
    options = MaxSimOptions(aggregation=aggregation, mean=mean)
    scores, chunk_scores = reference(documents, query, options)
    found = score_by_maxsim(documents, [query] * len(documents), options)
    assert found.scores == pytest.approx(scores.tolist(), abs=1e-5)
    for row, expected, chunks in zip(found.chunk_scores, chunk_scores.tolist(), lengths, strict=True):
        assert row == pytest.approx(expected[: len(chunks)], abs=1e-5)


def test_queries_of_different_lengths_are_scored_together() -> None:
    documents = [stacked([vectors_of(4, ROLES)]) for _ in range(3)]
    queries = [vectors_of(length, [Role.QUERY]) for length in (2, 7, 4)]
    found = score_by_maxsim(documents, queries, MaxSimOptions())
    alone = [
        score_by_maxsim([document], [query], MaxSimOptions()).scores[0]
        for document, query in zip(documents, queries, strict=True)
    ]
    assert found.scores == pytest.approx(alone, abs=1e-6)
    assert score_by_maxsim([], [], MaxSimOptions()).scores == []

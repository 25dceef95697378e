"""Scores of chunk vectors without padding equal the aggregator's, whatever the documents' lengths."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.families.biencoder import SimilarityAggregator
from farrank_rankers.family import Aggregation, BiEncoderOptions
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.spec import RankerSpec
from farrank_runtimes.similarity import score_similarities


def spec_of(aggregation: Aggregation) -> RankerSpec:
    chunking = Chunking("sliding", window=9, stride=6, max_document_tokens=99)
    return RankerSpec("biencoder", "b", chunking, options=BiEncoderOptions(aggregation=aggregation))


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    callers=st.integers(1, 3),
    width=st.integers(1, 70),
    aggregation=st.sampled_from(get_args(Aggregation)),
    seed=st.integers(0, 2**31),
)
def test_they_are_the_aggregators(
    counts: list[int], callers: int, width: int, aggregation: Aggregation, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def unit(rows: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=-1)

    documents = [Features(unit(count)) for count in counts]
    asked = [Features(each) for each in unit(callers)]
    queries = [asked[place % callers] for place in range(len(counts))]
    found = score_similarities(documents, queries, aggregation)
    features, mask = batched(documents)
    aggregator = SimilarityAggregator(spec_of(aggregation), {})
    scores, chunk_scores = aggregator.explain(features, mask, stacked(queries))
    assert found.scores == pytest.approx(scores.tolist(), abs=1e-5)
    assert [len(each) for each in found.chunk_scores] == counts
    for each, expected, count in zip(found.chunk_scores, chunk_scores.tolist(), counts, strict=True):
        assert each == pytest.approx(expected[:count], abs=1e-5)


def test_a_number_that_is_none_reaches_the_score() -> None:
    document = Features(torch.tensor([[1.0], [float("nan")], [2.0]]))
    for aggregation in ("max", "mean", "sum"):
        (score,) = score_similarities([document], [Features(torch.ones(1))], aggregation).scores
        assert score != score


def test_without_documents_there_are_no_scores() -> None:
    assert score_similarities([], [], "max").scores == []


def test_vectors_of_16_bits_are_compared_in_32() -> None:
    vectors = torch.rand(3, 384, generator=torch.Generator().manual_seed(1)).half()
    query = torch.rand(384, generator=torch.Generator().manual_seed(2))
    (found,) = score_similarities([Features(vectors)], [Features(query)], "max").chunk_scores
    # fp16 has some three digits for these sums of about 96.
    assert found == pytest.approx((vectors.double() @ query.double()).tolist(), rel=1e-6)


def test_rankers_of_other_families_are_their_aggregators_part() -> None:
    assert spec_of("first").similarity == "first"
    assert RankerSpec("maxp", "b", spec_of("max").chunking).similarity is None

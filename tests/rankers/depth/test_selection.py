"""The selector's scores are BM25's, counted by hand, and its order keeps equals as they stand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.depth.selection import best_first, bm25, count_terms, with_prior


def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def by_hand(query: list[int], documents: list[list[list[int]]]) -> list[list[float]]:
    chunks = [chunk for document in documents for chunk in document]
    mean = max(1.0, sum(map(len, chunks)) / len(chunks))

    def score(chunk: list[int]) -> float:
        total, counts = 0.0, Counter(chunk)
        for term in {*query}:
            holding = sum(term in each for each in chunks)
            idf = math.log(1 + (len(chunks) - holding + 0.5) / (holding + 0.5))
            total += idf * counts[term] / (counts[term] + 0.9 * (1 - 0.4 + 0.4 * len(chunk) / mean))
        return total

    return [[score(chunk) for chunk in document] for document in documents]


tokens = st.lists(st.integers(0, 9), max_size=12)


@given(tokens, st.lists(st.lists(tokens, min_size=1, max_size=5), min_size=1, max_size=4))
def test_chunks_have_the_scores_of_bm25_among_all_that_compete(
    query: list[int], documents: list[list[list[int]]]
) -> None:
    counts = [count_terms(ints(query), [ints(chunk) for chunk in document]) for document in documents]
    for found, wanted in zip(bm25(counts), by_hand(query, documents), strict=True):
        assert found.tolist() == pytest.approx(wanted)


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    common, rare, other = 1, 2, 3
    chunks = [[common, other], [rare, other], [common, other], [other, other]]
    (scores,) = bm25([count_terms(ints([common, rare]), [ints(chunk) for chunk in chunks])])
    assert best_first(scores).tolist() == [1, 0, 2, 3]


def test_the_prior_raises_early_chunks_against_the_best_score_of_all() -> None:
    scores = [np.array([1.0, 3.0, 2.0]), np.array([0.0, 4.0])]
    first, second = with_prior(scores, 0.5)
    assert first == pytest.approx([0.25 + 0.5, 0.75 + 0.25, 0.5 + 0.5 / 3])
    assert second == pytest.approx([0.5, 1.25])
    for prior, best in ((0.0, [1, 2, 0]), (0.5, [1, 0, 2]), (9.0, [0, 1, 2])):
        assert best_first(with_prior(scores, prior)[0]).tolist() == best
    # Without a word of the query the first chunks are read.
    assert with_prior([np.zeros(3)], 0.5)[0].tolist() == [0.5, 0.25, 0.5 / 3]
    assert best_first(with_prior([np.zeros(3)], 0.0)[0]).tolist() == [0, 1, 2]

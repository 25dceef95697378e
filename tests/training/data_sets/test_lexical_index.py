"""BM25 over texts: the formula, ties, and queries that find nothing."""

import math

import pytest

from farrank_training.data_sets.lexical_index import LexicalIndex

TEXTS = ["the sea is wide", "bread and water", "water water everywhere", "", "the sea"]


def bm25(word: str, text: str) -> float:
    """Robertson and Zaragoza's formula with Lucene's idf, k1 0.9 and b 0.4."""
    # A text without words counts as one word that no query has.
    words = [each.split() or [""] for each in TEXTS]
    holding = sum(word in each for each in words)
    idf = math.log(1 + (len(TEXTS) - holding + 0.5) / (holding + 0.5))
    mean = sum(map(len, words)) / len(words)
    frequency = text.split().count(word)
    return idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * len(text.split()) / mean))


def test_scores_are_bm25s() -> None:
    scores = LexicalIndex(TEXTS).scores("Water, sea!")

    assert scores.tolist() == pytest.approx([bm25("water", text) + bm25("sea", text) for text in TEXTS])


def test_the_best_come_first_and_of_equal_ones_those_that_were_given_first() -> None:
    index = LexicalIndex(["no", *["the sea"] * 3, "sea sea sea", "no", "no"])

    assert [place for place, _ in index.best("sea", 7)] == [4, 1, 2, 3, 0, 5, 6]
    assert [place for place, _ in index.best("sea", 3)] == [4, 1, 2]
    assert [place for place, _ in index.best("sea", 99)] == [4, 1, 2, 3, 0, 5, 6]
    assert [place for place, _ in index.best("nothing known", 2)] == [0, 1]
    assert [score for _, score in index.best("!", 2)] == [0, 0]


def test_an_index_of_nothing_finds_nothing() -> None:
    assert LexicalIndex([]).best("sea", 3) == []


def test_a_query_teaches_the_index_no_word() -> None:
    index = LexicalIndex(TEXTS)
    before = index.best("sea", 5)
    index.best("harbour sea", 5)

    assert index.best("sea", 5) == before
    assert index.scores("harbour").tolist() == [0] * 5

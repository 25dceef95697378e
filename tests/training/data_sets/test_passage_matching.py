"""Passages are found in documents whose text has changed, but not if too little of them is there."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.articles import article_text, read_articles
from farrank_training.data_sets.passage_matching import Match, PassageMatcher

# Tokens of a document, each of which appears once, and those of others.
DOCUMENT = list(range(1000, 2000))
OTHER = list(range(5000, 5500))


def test_a_passage_that_is_there_is_found_exactly() -> None:
    assert PassageMatcher(DOCUMENT).find(DOCUMENT[477:577]) == Match(477, 577, "substring")


@pytest.mark.parametrize(
    ("kept", "found"),
    [(80, Match(300, 380, "substring")), (79, Match(300, 379, "subsequence")), (69, None)],
)
def test_a_common_substring_of_four_fifths_is_enough_then_a_subsequence_of_seven_tenths(
    kept: int, found: Match | None
) -> None:
    assert PassageMatcher(DOCUMENT).find(DOCUMENT[300 : 300 + kept] + OTHER[: 100 - kept]) == found


def test_words_that_were_replaced_here_and_there_leave_a_subsequence() -> None:
    passage = DOCUMENT[600:700]
    passage[10::10] = OTHER[:9]

    assert PassageMatcher(DOCUMENT).find(passage) == Match(600, 700, "subsequence")


def test_words_that_were_put_between_widen_what_is_found_up_to_the_window() -> None:
    # One more token after each five: 20% longer.
    longer = [each for start in range(0, 100, 5) for each in (*DOCUMENT[start : start + 5], OTHER[start])]
    document = OTHER[200:400] + longer + OTHER[400:]

    found = PassageMatcher(document).find(DOCUMENT[:100])

    assert found is not None
    assert (found.how, found.start, found.end) == ("subsequence", 200, 319)


def test_what_is_spread_over_more_than_the_window_is_not_found() -> None:
    spread = [each for pair in zip(DOCUMENT[:100], OTHER, strict=False) for each in pair]

    assert PassageMatcher(spread).find(DOCUMENT[:100]) is None


def test_the_first_of_equal_places_counts() -> None:
    passage = DOCUMENT[:50]
    changed = passage[:20] + OTHER[:10] + passage[30:]

    assert PassageMatcher(OTHER + passage + OTHER + passage).find(passage) == Match(500, 550, "substring")
    assert PassageMatcher(OTHER + passage + OTHER + passage).find(changed) is not None
    found = PassageMatcher(OTHER[100:] + passage + OTHER[100:] + passage).find(changed)
    assert found == Match(400, 450, "subsequence")


def test_a_document_shorter_than_the_passage_may_hold_it() -> None:
    assert PassageMatcher(DOCUMENT[:85]).find(DOCUMENT[:100]) == Match(0, 85, "substring")


@pytest.mark.parametrize(("document", "passage"), [([], DOCUMENT), (DOCUMENT, []), ([], [])])
def test_nothing_is_found_in_nothing(document: list[int], passage: list[int]) -> None:
    assert PassageMatcher(document).find(passage) is None


@given(st.randoms(use_true_random=False), st.integers(5, 60), st.floats(0, 0.25))
def test_what_is_found_holds_enough_of_the_passage_in_order(
    rng: random.Random, length: int, changed: float
) -> None:
    # With few different tokens, they are everywhere.
    document = [rng.randrange(30) for _ in range(200)]
    place = rng.randrange(200 - length)
    passage = [99 if rng.random() < changed else each for each in document[place : place + length]]

    found = PassageMatcher(document).find(passage)

    if found is None:
        # Then more than three tenths of it must have changed.
        assert sum(each != 99 for each in passage) < 0.7 * length
        return
    assert 0 <= found.start < found.end <= len(document)
    assert found.end - found.start <= -(-12 * length // 10)
    assert _common(passage, document[found.start : found.end]) >= 0.7 * length


@pytest.mark.data
def test_real_passages_with_every_seventh_word_replaced_are_found(
    data_folder: Path, tokenizer: TextTokenizer
) -> None:
    articles = read_articles(data_folder / "squad" / "passages.jsonl.gz")
    others = articles["t000"][3].text.split()
    passages = articles["d003"][:25]
    matcher = PassageMatcher(tokenizer.ids(article_text(passages)).tolist())
    rng = random.Random(1)
    start, near = 0, 0
    for passage in passages:
        words = (rng.choice(others) if rng.random() < 1 / 7 else word for word in passage.text.split())
        found = matcher.find(tokenizer.ids(" ".join(words)).tolist())
        near += found is not None and abs(found.start - start) < 20
        start += tokenizer.count(passage.text)
    assert near >= 24


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common subsequence, by the textbook algorithm."""
    row = [0] * (len(other) + 1)
    for mine in one:
        above = row
        row = [0]
        for place, theirs in enumerate(other):
            row.append(above[place] + 1 if mine == theirs else max(above[place + 1], row[place]))
    return row[-1]

"""Pairs of queries and relevant texts, whatever their order and number."""

import pytest

from farrank_training import known_relevant
from farrank_training.known_relevant import KnownRelevant, text_key


@pytest.mark.parametrize("unsorted", [1, 3, 100])
def test_a_query_knows_the_texts_of_all_its_lines(monkeypatch: pytest.MonkeyPatch, unsorted: int) -> None:
    monkeypatch.setattr(known_relevant, "_UNSORTED", unsorted)
    pairs = [(f"query {number % 7}", f"text {number % 5}") for number in range(60)]
    known = KnownRelevant()
    for query, text in pairs:
        known.add(query, text)
    for query in {query for query, _ in pairs}:
        expected = {text_key(text) for of, text in pairs if of == query}
        assert known.of(query) == expected
        assert len(expected) == 5
    assert known.of("another query") == frozenset()
    known.add("another query", "later")
    assert known.of("another query") == {text_key("later")}


def test_nothing_is_known_without_lines() -> None:
    assert KnownRelevant().of("query") == frozenset()


def test_pairs_that_repeat_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_relevant, "_UNSORTED", 4)
    known = KnownRelevant()
    for _ in range(1000):
        known.add("query", "text")
        assert len(known._new) <= 8
    known.sort()
    assert len(known._pairs) == 1

"""Words are looked up instead of tokenized again: the tokens are the library's, whatever was read before."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farrank_rankers import words as module
from farrank_rankers.files.model_files import locate
from farrank_rankers.stretches import Tokens
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_rankers.words import WordTable, reads_words_alone

LETTERS = " \n\r\tab.'-é漢😀\u0301\x00\x1c\u00a0İß[SEP]1"
TEXTS = st.lists(st.text(alphabet=LETTERS, max_size=80), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def embedded() -> TextTokenizer:
    """The embedded model's tokenizer: 30,522 words of BERT."""
    return TextTokenizer(TokenizerFiles.read(locate("embedded").folder))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=TEXTS, kept=st.sampled_from([0, 10_000, module.MAX_BYTES]))
def test_every_text_has_the_librarys_tokens(
    embedded: TextTokenizer, monkeypatch: pytest.MonkeyPatch, texts: list[str], kept: int
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", kept)
    calls: list[str] = []

    def encode(text: str) -> Tokens:
        calls.append(text)
        return library(embedded, text)

    table = WordTable(encode)
    for text in [*texts, *texts]:
        assert table.read(text, 7) == library(embedded, text, 7)
    if kept > 10_000:
        asked = " ".join(calls).split(" ")
        assert len(asked) == len(set(asked)), "each word is tokenized once"


def library(tokenizer: TextTokenizer, text: str, shift: int = 0) -> Tokens:
    return Tokens.of(tokenizer.tokenizer.encode(text, add_special_tokens=False), shift)


def test_threads_share_the_table_while_it_grows_and_starts_again(
    embedded: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 60_000)
    texts = [" ".join(f"word{number % 97}x{number * step}" for number in range(60)) for step in range(1, 13)]
    expected = [library(embedded, text) for text in texts]
    table = WordTable(lambda text: library(embedded, text))
    found: dict[int, list[Tokens]] = {}

    def read(first: int) -> None:
        found[first] = [table.read(texts[(first + place) % len(texts)], 0) for place in range(120)]

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, every in found.items():
        assert every == [expected[(first + place) % len(texts)] for place in range(120)]
    assert len(found) == len(threads)


def test_a_text_that_cannot_be_read_leaves_the_table_as_it_was(embedded: TextTokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800"):
        embedded.read("a new-word \ud800 here", 10)
    assert embedded.read("a new-word here", 10).ids.tolist() == embedded.ids("a new-word here").tolist()
    assert embedded.count("a new-word here") == len(embedded.ids("a new-word here"))


def memory(read: Callable[[], object]) -> tuple[int, int]:
    """Measure the bytes that reading leaves, and the most that it has at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqrst", "가각간갇갈갉갊감갑값갓갔강갖갗같갚갛개객"])
def test_a_table_of_short_words_keeps_its_bound(embedded: TextTokenizer, letters: str) -> None:
    table = WordTable(lambda text: library(embedded, text))
    words = map("".join, itertools.product(letters, repeat=4))
    kept: list[int] = []

    def fill() -> None:
        while piece := " ".join(itertools.islice(words, 4_000)):
            before = table._known
            table.read(piece, 0)
            if table._known is not before:
                return
            kept.append(tracemalloc.get_traced_memory()[0])

    memory(fill)
    assert module.MAX_BYTES / 2 < max(kept) < module.MAX_BYTES * 1.05
    assert next(words, None) is not None, "the table was full before the words ended"


def test_a_new_word_does_not_copy_the_table(embedded: TextTokenizer) -> None:
    table = WordTable(lambda text: library(embedded, text))
    for start in range(0, 50_000, 5_000):
        table.read(" ".join(f"number{number}" for number in range(start, start + 5_000)), 0)
    peaks = [memory(partial(table.read, f"new{number} words", 0))[1] for number in range(20)]
    assert max(peaks) < 100_000


def test_another_process_begins_with_an_empty_table(embedded: TextTokenizer) -> None:
    embedded.read("a word that is known here", 10)
    there = pickle.loads(pickle.dumps(embedded))
    assert there._words.read("a word", 0) == library(embedded, "a word")
    assert set(there._words._known.numbers) == {"", "a", "word"}


BERT: dict[str, Any] = {
    "normalizer": {"type": "BertNormalizer"},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece"},
    "added_tokens": [{"content": "[SEP]", "lstrip": False, "rstrip": False}],
}


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({}, True),
        ({"added_tokens": None}, True),
        ({"normalizer": None}, False),
        ({"normalizer": {"type": "Sequence"}}, False),
        ({"pre_tokenizer": {"type": "Metaspace"}}, False),
        ({"model": {"type": "BPE"}}, False),
        ({"added_tokens": [{"content": "[MASK]", "lstrip": True}]}, False),
        ({"added_tokens": [{"content": "[MASK]", "rstrip": True}]}, False),
        ({"added_tokens": [{"content": "two words"}]}, False),
        ({"added_tokens": [{"content": " led"}]}, False),
        ({"added_tokens": [{"content": "followed\u3000"}]}, False),
        ({"added_tokens": [{"content": "\n"}]}, False),
    ],
)
def test_only_berts_tokenizers_read_words_alone(change: dict[str, Any], alone: bool) -> None:
    assert reads_words_alone(json.loads(json.dumps(BERT | change))) is alone


def test_a_long_document_is_looked_up(embedded: TextTokenizer) -> None:
    text = "The café's 漢字 tower stands over the harbour; ships pass below it.\n" * 2_000
    read = embedded.read(text, 10**9)
    expected = library(embedded, text)
    assert np.array_equal(read.ids, expected.ids)
    assert np.array_equal(read.starts, expected.starts)
    assert np.array_equal(read.ends, expected.ends)

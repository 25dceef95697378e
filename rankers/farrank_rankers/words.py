"""Tokens of BERT's tokenizers, looked up word by word: each word's tokens are the same in every text.

The library's tokenizer reads each new word once. Most words of a text have been read before, and a look-up
takes a tenth of the library's time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from farrank_rankers.stretches import NOTHING, Tokens
from farrank_rankers.tokens import IntArray

# The words that are kept, with their tokens, then take about 25 MB. A piece of text is shorter than this.
MAX_CHARACTERS = 2**20


def reads_words_alone(tokenizer_json: Mapping[str, Any]) -> bool:
    """Whether the tokens of a word, between white space, depend on nothing else in the text.

    So it is with BERT's normalizer and pre-tokenizer, and added tokens that stay inside a word.
    """
    parts = (tokenizer_json.get(name) or {} for name in ("normalizer", "pre_tokenizer", "model"))
    kinds = [part.get("type") for part in parts]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        each.get("lstrip") or each.get("rstrip") or len(each["content"].split()) != 1
        for each in tokenizer_json.get("added_tokens") or ()
    )


class WordTable:
    """The tokens of the words that were read; several threads may share it.

    `encode` tokenizes a text. A full table is emptied.
    """

    def __init__(self, encode: Callable[[str], Tokens]) -> None:
        self._encode = encode
        self._known = _Known()
        self._adding = threading.Lock()

    def read(self, text: str, shift: int) -> Tokens:
        """Tokenize a text of at most `MAX_CHARACTERS`; `shift` is added to the tokens' places.

        Raises: as `encode`.
        """
        # Not split(): the normalizer drops some characters that Python counts as white space. Each space ends
        # a word, maybe an empty one, so that a word's place follows from the lengths before it.
        words = text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")
        while True:
            known = self._known
            numbers = np.fromiter(map(known.numbers.get, words, repeat(-1)), np.int32, len(words))
            if numbers.min() >= 0:
                return known.tokens(numbers, _starts(words) + shift)
            self._learn(known, list(dict.fromkeys(words[place] for place in np.flatnonzero(numbers < 0))))

    def _learn(self, known: "_Known", words: Sequence[str]) -> None:
        read = self._encode(" ".join(words))
        with self._adding:
            if known.characters + sum(map(len, words)) > MAX_CHARACTERS:
                self._known = _Known()
            else:
                known.add(words, read)


class _Known:
    """Words by their number, and the tokens of all of them; it only grows."""

    def __init__(self) -> None:
        self.characters = 0
        # The empty word stands between two spaces.
        self.numbers = {"": 0}
        # The first token of each word and one beyond its last, and all words' tokens, placed in their word.
        self._table = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32), NOTHING

    def add(self, words: Sequence[str], read: Tokens) -> None:
        """Add words with the tokens of a text that has one space between them."""
        begins = _starts(words)
        word = np.searchsorted(begins, read.starts, side="right") - 1
        firsts, ends, tokens = self._table
        # A token that begins in a word is the word's: the tokens are in the order of the words.
        last = len(tokens) + np.cumsum(np.bincount(word, minlength=len(words)), dtype=np.int32)
        first = np.concatenate([np.array([len(tokens)], dtype=np.int32), last[:-1]])
        placed = read.ids, read.starts - begins[word], read.ends - begins[word]
        # Before the numbers, because other threads read without the lock.
        self._table = (
            np.concatenate([firsts, first]),
            np.concatenate([ends, last]),
            Tokens(*map(_appended, (tokens.ids, tokens.starts, tokens.ends), placed)),
        )
        self.numbers.update(zip(words, range(len(firsts), len(firsts) + len(words)), strict=True))
        self.characters += sum(map(len, words))

    def tokens(self, numbers: IntArray, starts: IntArray) -> Tokens:
        """Put the tokens of words, (W,), in a row; `starts` are the words' places in the text."""
        firsts, ends, tokens = self._table
        first = firsts[numbers]
        counts = ends[numbers] - first
        total = np.cumsum(counts, dtype=np.int32)
        place = np.arange(total[-1], dtype=np.int32) + np.repeat(first - total + counts, counts)
        shift = np.repeat(starts, counts)
        return Tokens(tokens.ids[place], tokens.starts[place] + shift, tokens.ends[place] + shift)


def _starts(words: Sequence[str]) -> IntArray:
    """Give the words' places in a text with one space between them."""
    lengths = np.fromiter(map(len, words), np.int32, len(words)) + 1
    return np.cumsum(lengths, dtype=np.int32) - lengths


def _appended(left: IntArray, right: IntArray) -> IntArray:
    return np.concatenate([left, right.astype(np.int32, copy=False)])

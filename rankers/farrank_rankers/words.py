"""Tokens of BERT's tokenizers, looked up word by word: each word's tokens are the same in every text.

The library's tokenizer reads each new word once. Most words of a text have been read before, and a look-up
takes a tenth of the library's time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from sys import getsizeof
from typing import Any

import numpy as np

from farrank_rankers.stretches import Tokens
from farrank_rankers.tokens import IntArray

# The memory of a table. The words of one piece of text take less.
MAX_BYTES = 25_000_000

# The memory of a word besides its string and its tokens, in three arrays of int32: its places in the table.
_BYTES_PER_WORD, _BYTES_PER_TOKEN = 110, 12


def reads_words_alone(tokenizer_json: Mapping[str, Any]) -> bool:
    """Whether the tokens of a word, between white space, depend on nothing else in the text.

    So it is with BERT's normalizer and pre-tokenizer, and added tokens that stay inside a word.
    """
    parts = (tokenizer_json.get(name) or {} for name in ("normalizer", "pre_tokenizer", "model"))
    kinds = [part.get("type") for part in parts]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        each.get("lstrip") or each.get("rstrip") or each["content"].split() != [each["content"]]
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

    def __reduce__(self) -> tuple[type["WordTable"], tuple[Callable[[str], Tokens]]]:
        """Pickle as an empty table."""
        return type(self), (self._encode,)

    def read(self, text: str, shift: int) -> Tokens:
        """Tokenize a text; `shift` is added to the tokens' places.

        Raises: as `encode`.
        """
        # Not split(): the normalizer drops some characters that Python counts as white space. Each space ends
        # a word, maybe an empty one, so that a word's place follows from the lengths before it.
        words = text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")
        known = self._known
        while True:
            numbers = np.fromiter(map(known.numbers.get, words, repeat(-1)), np.int32, len(words))
            if numbers.min() >= 0:
                return known.tokens(numbers, _starts(words) + shift)
            known = self._learn(known, list(dict.fromkeys(words[at] for at in np.flatnonzero(numbers < 0))))

    def _learn(self, known: "_Known", words: Sequence[str]) -> "_Known":
        """Add words to a table, and return it; or else an empty one, if it is full."""
        read = self._encode(" ".join(words))
        more = _size(words, read)
        with self._adding:
            if not known.size or known.size + more <= MAX_BYTES:
                known.add(words, read)
                known.size += more
            elif self._known is known:
                known = self._known = _Known()
            else:
                known = self._known
        return known


class _Known:
    """Words by their number, and the tokens of all of them; it only grows. `size` counts bytes."""

    def __init__(self) -> None:
        self.size = 0
        # The empty word stands between two spaces.
        self.numbers = {"": 0}
        # The tokens of the word n, from the place `ends[n]` up to `ends[n + 1]`, have places in their word.
        self._ends, self._tokens = _Growing(np.zeros((1, 2), np.int32)), _Growing(np.zeros((3, 0), np.int32))

    def add(self, words: Sequence[str], read: Tokens) -> None:
        """Add words with the tokens of a text that has one space between them."""
        begins = _starts(words)
        # A token that begins in a word is the word's: the tokens are in the order of the words.
        word = np.searchsorted(begins, read.starts, side="right") - 1
        ends = self._tokens.length + np.cumsum(np.bincount(word, minlength=len(words)), dtype=np.int32)
        first = self._ends.length - 1
        # Before the numbers, because other threads read without the lock.
        self._tokens.append(np.stack([read.ids, read.starts - begins[word], read.ends - begins[word]]))
        self._ends.append(ends[None])
        self.numbers.update(zip(words, range(first, first + len(words)), strict=True))

    def tokens(self, numbers: IntArray, starts: IntArray) -> Tokens:
        """Put the tokens of words, (W,), in a row; `starts` are the words' places in the text."""
        (ends,), tokens = self._ends.array, self._tokens.array
        first = ends[numbers]
        counts = ends[numbers + 1] - first
        total = np.cumsum(counts, dtype=np.int32)
        place = np.arange(total[-1], dtype=np.int32) + np.repeat(first - total + counts, counts)
        shift = np.repeat(starts, counts)
        return Tokens(tokens[0][place], tokens[1][place] + shift, tokens[2][place] + shift)


class _Growing:
    """An array of `length` columns, (R, length), with room for more, so that appending does not copy it."""

    def __init__(self, array: IntArray) -> None:
        self.array, self.length = array, array.shape[1]

    def append(self, columns: IntArray) -> None:
        """Append columns. Another thread may read the earlier ones meanwhile."""
        end = self.length + columns.shape[1]
        if end > self.array.shape[1]:
            room = np.empty((len(self.array), 2 * end), dtype=np.int32)
            room[:, : self.length] = self.array[:, : self.length]
            self.array = room
        self.array[:, self.length : end] = columns
        self.length = end


def _starts(words: Sequence[str]) -> IntArray:
    """Give the words' places in a text with one space between them."""
    lengths = np.fromiter(map(len, words), np.int32, len(words)) + 1
    return np.cumsum(lengths, dtype=np.int32) - lengths


def _size(words: Sequence[str], read: Tokens) -> int:
    return sum(map(getsizeof, words)) + _BYTES_PER_WORD * len(words) + _BYTES_PER_TOKEN * len(read)

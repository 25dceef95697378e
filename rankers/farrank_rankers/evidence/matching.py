"""The values of sentences for a query: the words that they share, weighted by how rare these are.

A word of the query counts where it stands as it is, and, if it has four letters, again where its beginning
does (`resto` of "restore" in "restored"), so that inflected forms count half. ICU finds the query's words,
also in Chinese, Japanese and Thai. Terms of scripts without spaces are found anywhere in a text, others at
the beginning of a word. A word's first eight letters tell it from others: they are one 64-bit number, so that
all words of many sentences are compared with all terms at once.

The weights are those of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009): the
inverse frequency of a term in the documents, and its frequency in a sentence, saturated.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from icu4py.breakers import WordBreaker
from numpy.typing import NDArray

# The letters of a word's beginning by which its forms are found: a usual length for truncation as stemming.
_STEM, _SHORTEST_STEM = 5, 4
_LETTERS, _NUMBER = 8, np.dtype("<u8")
_PAIR = np.uint64(0xFFFF)
# Anserini's k1 and b, as everywhere in this project, and the usual length of a sentence in characters.
_K1, _B, _USUAL_CHARACTERS = 0.9, 0.4, 120
# Letters, digits and the marks of scripts that have them, such as Hindi's vowels.
_WORD = re.compile(r"(?:[^\W_]|[\u0300-\u060b\u0610-\u061a\u0620-\u0963\u0966-\u1fff])+")
_SPACE = ord(" ")
# Letters of scripts that put no space between words.
_UNSPACED = ("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"), ("\u2e80", "\ua4cf")
# Weights are estimated from this many characters of all documents, as many of each.
_SAMPLED_CHARACTERS = 4096
# Each term costs time; a query's further words hardly change an order.
_MOST_WORDS = 32


class Term(NamedTuple):
    """A word of a query as it is, or the beginning of one."""

    letters: str
    is_whole: bool


class QueryTerms:
    """The terms of a query, with their weights in some documents. Shape: weights (T,), with a sum of 1.

    The number of sentences that have a term is estimated from the number of times that it stands in the
    beginnings of the documents, `texts`.
    """

    def __init__(self, query: str, texts: Sequence[str]) -> None:
        small = query.lower().replace("i\u0307", "i")  # of `İ`, as in texts
        # ICU needs as long as all else here, and finds no other words in ASCII.
        parts = (small,) if small.isascii() else WordBreaker(small, "en")
        words = dict.fromkeys(word for each in parts for word in _WORD.findall(each))
        known = list(words)[:_MOST_WORDS]
        terms = [Term(word, True) for word in known]
        terms += [Term(word[:_STEM], False) for word in known if len(word) >= _SHORTEST_STEM]
        self.terms = list(dict.fromkeys(terms))
        # The space after a short word belongs to it.
        lengths = [min(_LETTERS, len(term.letters) + term.is_whole) for term in self.terms]
        self._masks = np.array([(1 << 8 * length) - 1 for length in lengths], dtype=_NUMBER)
        letters = "".join(term.letters[:_LETTERS].ljust(_LETTERS) for term in self.terms)
        self._numbers = _bytes_of(letters).view(_NUMBER) & self._masks
        # Two letters tell most words of a text from all terms: each term has two, or one and a space.
        self._may_match = np.zeros(2**16, dtype=bool)
        self._may_match[self._numbers & _PAIR] = True
        self._unspaced = [
            (place, term.letters)
            for place, term in enumerate(self.terms)
            if not query.isascii() and any(low <= term.letters[0] <= high for low, high in _UNSPACED)
        ]
        length = _SAMPLED_CHARACTERS // max(1, len(texts))
        sample = "\n".join(text[:length] for text in texts)
        having = self._counts([sample], _lengths([sample]))[0].tolist()
        weights = np.array([_idf(len(sample) / _USUAL_CHARACTERS, each) for each in having])
        self.weights = weights / weights.sum()

    def values(self, sentences: Sequence[str]) -> list[float]:
        """Compute the share of the query that each sentence has, between 0 and 1."""
        characters = _lengths(sentences)
        counts = self._counts(sentences, characters)
        longer = _K1 * (1 - _B + _B * characters / _USUAL_CHARACTERS)  # (N,)
        found = np.flatnonzero(counts)
        sentence, term = np.divmod(found, max(1, len(self.terms)))
        frequency = counts.ravel()[found]
        shares = self.weights[term] * frequency / (frequency + longer[sentence])
        values: list[float] = np.bincount(sentence, shares, minlength=len(sentences)).tolist()
        return values

    def _counts(self, sentences: Sequence[str], characters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the terms of each sentence. Shapes: N, (N,) -> (N, T)."""
        letters = _bytes_of(" " + " ".join(sentences) + " " * _LETTERS)
        is_space = letters == _SPACE
        begins = np.flatnonzero(is_space[:-1] & ~is_space[1:]) + 1  # (W,), of words
        # Eight letters from each character on, without a copy.
        numbers = np.ndarray(len(letters) - _LETTERS + 1, _NUMBER, letters.data, strides=(1,))[begins]
        may_match = self._may_match[numbers & _PAIR]
        numbers, begins = numbers[may_match], begins[may_match]
        terms = len(self.terms)
        # With two dimensions, `nonzero` takes six times as long.
        found = np.flatnonzero(numbers[:, None] & self._masks == self._numbers)
        word, term = np.divmod(found, max(1, terms))
        ends = np.cumsum(characters + 1)  # each with the space before it
        of_sentences = np.searchsorted(ends, begins[word], side="right")
        flat = np.bincount(of_sentences * terms + term, minlength=len(sentences) * terms)
        counts = flat.reshape(len(sentences), terms)
        for place, its_letters in self._unspaced:
            counts[:, place] = [each.count(its_letters) for each in sentences]
        return counts


def _lengths(sentences: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))


def _bytes_of(text: str) -> NDArray[np.uint8]:
    """Write each character of a text as the byte of its small letter, or as a space."""
    if text.isascii():
        return np.frombuffer(text.encode().translate(_ascii_letters()), dtype=np.uint8)
    codes = np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype="<u4")
    return _letters().take(codes, mode="clip")


@cache
def _ascii_letters() -> bytes:
    return _letters()[:256].tobytes()


@cache
def _letters() -> NDArray[np.uint8]:
    """The byte of each character. Those of one script are as far apart as its small letters are."""
    characters = list(map(chr, range(2**16)))
    # One letter each: the small form of `İ` has a mark, too. Greek has another sigma at the end of a word.
    small = np.array([ord(each.lower()[0]) for each in characters])
    small[ord("ς")] = ord("σ")
    found = np.full(len(small), _SPACE, dtype=np.uint8)
    for word in _WORD.finditer("".join(characters)):
        own = small[word.start() : word.end()]
        found[word.start() : word.end()] = np.where(own < 128, own, own % 128 + 128)
    return found


def _idf(sentences: float, having: int) -> float:
    having = min(having, int(sentences))
    return math.log(1 + (sentences - having + 0.5) / (having + 0.5))

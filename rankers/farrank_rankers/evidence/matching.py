"""The values of sentences for a query: the words that they share, weighted by how rare these are.

A word of the query counts where it stands as it is, and, if it has four letters, again where its beginning
does (`resto` of "restore" in "restored"), so that inflected forms count half. ICU finds the query's words,
also in Chinese, Japanese and Thai. Terms of scripts without spaces are found anywhere in a text, others at
the beginning of a word.

The weights are those of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009): the
inverse frequency of a term in the documents, and its frequency in a sentence, saturated.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from icu4py.breakers import WordBreaker

# The letters of a word's beginning by which its forms are found: a usual length for truncation as stemming.
_STEM, _SHORTEST_STEM = 5, 4
# Anserini's k1 and b, as everywhere in this project, and the usual length of a sentence in characters.
_K1, _B, _USUAL_CHARACTERS = 0.9, 0.4, 120
# Letters, digits and the marks of scripts that have them, such as Hindi's vowels; apostrophes between them.
_LETTER = r"(?:[^\W_]|[\u0300-\u060b\u0610-\u061a\u0620-\u0963\u0966-\u1fff])"
_WORD = re.compile(rf"{_LETTER}+(?:['’]{_LETTER}+)*")
# Letters of scripts that put no space between words.
_UNSPACED = ("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"), ("\u2e80", "\ua4cf")
# Weights are estimated from this many characters of all documents, as many of each.
_SAMPLED_CHARACTERS = 32_768
# Each term costs a search through the texts; a query's further words hardly change an order.
_MOST_WORDS = 32


class Term(NamedTuple):
    """A word of a query as it is, or the beginning of one."""

    letters: str
    is_whole: bool


class QueryTerms:
    """The terms of a query, with their weights in some documents. `total` is the sum of the weights.

    `texts` are the documents, lowered. The number of sentences that have a term is estimated from the number
    of times that it stands in the documents' beginnings.
    """

    def __init__(self, query: str, texts: Sequence[str]) -> None:
        words = dict.fromkeys(
            word for each in WordBreaker(lowered(query), "en") for word in _WORD.findall(each)
        )
        known = list(words)[:_MOST_WORDS]
        terms = [Term(word, True) for word in known]
        terms += [Term(word[:_STEM], False) for word in known if len(word) >= _SHORTEST_STEM]
        self.terms = list(dict.fromkeys(terms))
        having = [0] * len(self.terms)
        sample = [text[: _SAMPLED_CHARACTERS // max(1, len(texts))] for text in texts]
        for place, term in enumerate(self.terms):
            having[place] = sum(text.count(term.letters) for text in sample)
        sentences = sum(map(len, sample)) / _USUAL_CHARACTERS
        self.weights = [_idf(sentences, each) for each in having]
        self.total = sum(self.weights)
        self._words = {term.letters: place for place, term in enumerate(self.terms) if term.is_whole}
        self._stems = {term.letters: place for place, term in enumerate(self.terms) if not term.is_whole}
        self._lengths = sorted(set(map(len, self._stems)))
        self._unspaced = [
            (place, term.letters)
            for place, term in enumerate(self.terms)
            if any(low <= term.letters[0] <= high for low, high in _UNSPACED)
        ]

    def counts(self, text: str, start: int, end: int) -> dict[int, int]:
        """Count the terms in a part of a lowered text: by its place, each term that it has."""
        own = text[start:end]
        counts: dict[int, int] = {}
        for word in _WORD.findall(own):
            if (place := self._words.get(word)) is not None:
                counts[place] = counts.get(place, 0) + 1
            for length in self._lengths:
                if (place := self._stems.get(word[:length])) is not None:
                    counts[place] = counts.get(place, 0) + 1
                    break
        for place, letters in self._unspaced:
            if times := own.count(letters):
                counts[place] = times
        return counts

    def value(self, counts: dict[int, int], characters: int) -> float:
        """The share of the query that a sentence has, between 0 and 1."""
        longer = _K1 * (1 - _B + _B * characters / _USUAL_CHARACTERS)
        found = sum(self.weights[place] * times / (times + longer) for place, times in counts.items())
        return found / self.total if self.total else 0.0


def lowered(text: str) -> str:
    """Make letters small; the length stays the same, so that places do."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)


def _idf(sentences: float, having: int) -> float:
    having = min(having, int(sentences))
    return math.log(1 + (sentences - having + 0.5) / (having + 0.5))

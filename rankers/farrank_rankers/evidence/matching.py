"""The values of sentences for a query: the words that they share, weighted by how rare these are.

A word of the query counts where it stands as it is, and again where its beginning does (`resto` of "restore"
in "restored"), so that inflected forms count half. ICU finds the query's words, also in Chinese, Japanese and
Thai. Terms of scripts without spaces are found anywhere in a text, others at the beginning of a word.

The weights are those of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009): the
inverse frequency of a term in the documents, and its frequency in a sentence, saturated.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from icu4py.breakers import WordBreaker

# The letters of a word's beginning by which its forms are found: a usual length for truncation as stemming.
_STEM = 5
# Anserini's k1 and b, as everywhere in this project, and the usual length of a sentence in characters.
_K1, _B, _USUAL_CHARACTERS = 0.9, 0.4, 120
# Letters of scripts that put no space between words.
_UNSPACED = ("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"), ("\u2e80", "\ua4cf")
# Each term costs a search through the texts; a query's further words hardly change an order.
_MOST_WORDS = 32


class Term(NamedTuple):
    """A word of a query as it is, or the beginning of one."""

    letters: str
    is_whole: bool


class QueryTerms:
    """The terms of a query, with their weights in some documents. `total` is the sum of the weights.

    `texts` are the documents, lowered. The number of sentences that have a term is estimated from the number
    of times that it stands in them.
    """

    def __init__(self, query: str, texts: Iterable[str]) -> None:
        words = dict.fromkeys(WordBreaker(lowered(query), "en"))
        known = [word for word in words if any(map(str.isalnum, word))][:_MOST_WORDS]
        self.terms = list(
            dict.fromkeys(term for word in known for term in (Term(word, True), Term(word[:_STEM], False)))
        )
        characters, having = 0, [0] * len(self.terms)
        for text in texts:
            characters += len(text)
            for place, term in enumerate(self.terms):
                having[place] += text.count(term.letters)
        self.weights = [_idf(characters / _USUAL_CHARACTERS, each) for each in having]
        self.total = sum(self.weights)

    def counts(self, text: str, start: int, end: int) -> dict[int, int]:
        """Count the terms in a part of a lowered text: by its place, each term that it has."""
        own = text[start:end]
        counts = {}
        for place, (letters, is_whole) in enumerate(self.terms):
            if letters not in own:
                continue
            unspaced = any(low <= letters[0] <= high for low, high in _UNSPACED)
            times = 0
            at = text.find(letters, start, end)
            while at >= 0:
                after = at + len(letters)
                begins = unspaced or at == start or not text[at - 1].isalnum()
                times += begins and (unspaced or not is_whole or after == end or not text[after].isalnum())
                at = text.find(letters, after, end)
            if times:
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

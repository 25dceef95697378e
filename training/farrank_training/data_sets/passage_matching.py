"""Find a passage in a later version of its document: by longest common substring, then subsequence."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil
from typing import Literal

from rapidfuzz.distance import LCSseq

# Shares of the passage's tokens that must be found; the ratio of a window's length to the passage's.
SUBSTRING = 0.8
SUBSEQUENCE = 0.7
WINDOW = 1.2


@dataclass(frozen=True, slots=True)
class Match:
    """A passage's place in a document: tokens [start, end), counted from 0."""

    start: int
    end: int
    how: Literal["substring", "subsequence"]


class PassageMatcher:
    """A document's tokens, in which passages are searched.

    Source: Boytsov et al., arXiv 2207.01262, online appendix, 1.4. It does not name its units of matching;
    here they are tokens.
    """

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._document = _as_text(token_ids)
        # One index of the document serves every passage. autojunk would ignore frequent tokens.
        self._substrings = SequenceMatcher(None, "", self._document, autojunk=False)

    def find(self, token_ids: Iterable[int]) -> Match | None:
        """Find the part of the document that it shares with a passage; None if they share too little.

        The match is a common substring of at least 0.8 of the passage's tokens, else a common subsequence of
        at least 0.7 of them in a window 1.2 times as long as the passage. The first of equal matches counts.
        """
        passage = _as_text(token_ids)
        if not passage:
            return None
        return self._substring(passage) or self._subsequence(passage)

    def _substring(self, passage: str) -> Match | None:
        self._substrings.set_seq1(passage)
        found = self._substrings.find_longest_match()
        if found.size < SUBSTRING * len(passage):
            return None
        return Match(found.b, found.b + found.size, "substring")

    def _subsequence(self, passage: str) -> Match | None:
        width = ceil(WINDOW * len(passage))
        common, place = 0, 0
        needed = ceil(SUBSEQUENCE * len(passage))
        for start in range(max(1, len(self._document) - width + 1)):
            window = self._document[start : start + width]
            # Below the cutoff the similarity is 0, which is found early.
            here = LCSseq.similarity(passage, window, score_cutoff=max(needed, common + 1))
            if here > common:
                common, place = int(here), start
        if not common:
            return None
        # The window is longer than the match: cut its end, then its beginning.
        window = self._document[place : place + width]

        def kept_until(end: int) -> int:
            return int(LCSseq.similarity(passage, window[:end]))

        end = bisect_left(range(len(window) + 1), common, key=kept_until)

        def kept_from_the_last(length: int) -> int:
            return int(LCSseq.similarity(passage, window[end - length : end]))

        length = bisect_left(range(end + 1), common, key=kept_from_the_last)
        return Match(place + end - length, place + end, "subsequence")


def _as_text(token_ids: Iterable[int]) -> str:
    """Map each token to one character: both algorithms are fastest on strings."""
    return "".join(map(chr, token_ids))

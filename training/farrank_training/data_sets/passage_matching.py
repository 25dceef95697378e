"""Find a passage in a document that changed since: by longest common substring, then subsequence."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil
from typing import Literal

from rapidfuzz.distance import LCSseq

# Shares of the passage's tokens that must be found; a window's length over the passage's.
SUBSTRING = 0.8
SUBSEQUENCE = 0.7
WINDOW = 1.2


@dataclass(frozen=True, slots=True)
class Match:
    """Where a passage lies in a document: tokens start up to end, without it. Tokens count from 0."""

    start: int
    end: int
    how: Literal["substring", "subsequence"]


class PassageMatcher:
    """A document's tokens, in which passages are looked for.

    Source: Boytsov et al., arXiv 2207.01262, online appendix, 1.4. It does not say in what units it matched;
    here they are tokens.
    """

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._document = _as_text(token_ids)
        # Its index of the document serves every passage. Nothing is "junk", however often it occurs.
        self._substrings = SequenceMatcher(None, "", self._document, autojunk=False)

    def find(self, token_ids: Iterable[int]) -> Match | None:
        """Find a passage, or None if too little of it is there; what is found is what both have in common.

        A common substring of 0.8 of the passage's tokens is taken; else a common subsequence of 0.7 of them,
        in a window of the document 1.2 times as long as the passage. Of equally good places the first counts.
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
            # What does not reach the cutoff is 0, and found out early.
            here = LCSseq.similarity(passage, window, score_cutoff=max(needed, common + 1))
            if here > common:
                common, place = int(here), start
        if not common:
            return None
        # The window is longer than what matched in it: cut off behind, then in front, what is not needed.
        window = self._document[place : place + width]

        def kept_until(end: int) -> int:
            return int(LCSseq.similarity(passage, window[:end]))

        end = bisect_left(range(len(window) + 1), common, key=kept_until)

        def kept_from_the_last(length: int) -> int:
            return int(LCSseq.similarity(passage, window[end - length : end]))

        length = bisect_left(range(end + 1), common, key=kept_from_the_last)
        return Match(place + end - length, place + end, "subsequence")


def _as_text(token_ids: Iterable[int]) -> str:
    """Write tokens as characters, one for each: both algorithms are fastest on strings."""
    return "".join(map(chr, token_ids))

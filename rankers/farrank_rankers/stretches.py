"""Tokenization of a long stretch of text without a place safe to cut, in windows of bounded size.

Each window begins at the start of a token of the previous window, some hundred tokens before its end. The two
are joined where at least AGREEING consecutive tokens are the same in both, with ids and character offsets.
The previous window's tokens after that place, which were read with too little text to their right, are
dropped, and so are the next window's tokens before it.

Guarantees of a join:

- BPE: it is exact if the words that contain the agreeing tokens are the same. A sequence of tokens is that of
a word if each pair of neighbours is the tokenization of that pair alone, and each pair is in one window.
- WordPiece: words are read separately, each from its start. A word too long for the vocabulary is one [UNK],
and so is a run of letters unknown to a unigram model: a token that fills a window and continues in the
next is one token.
- Unigram: the join is exact if the best path through the whole stretch meets the paths of both windows at one
of the places where tokens agree. Tests show that it does; it is not guaranteed.

Windows that do not agree are doubled, up to MAX_WINDOWS times their size. If they never agree, the stretch
is cut at a token's start anyway, so that no text can occupy a thread or its memory. The tokens near the cut
may then differ from those of the whole. This happens only in unnatural texts: hundreds of thousands of digits
that a pre-tokenizer groups from their end, of combining marks out of their canonical order, or of a repeated
character in a unigram model with several pieces of it (where the best path depends on rounding), and words
with thousands of characters in their middle that the normalizer drops.
"""

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from farrank_rankers.tokens import IntArray

# Characters of a window, which takes about 20 ms; dense scripts and emoji in bytes take three times that.
WINDOW = 16_384

# Windows that do not agree are doubled up to this many times the length.
MAX_WINDOWS = 8

# The next window begins this many tokens before the end of the previous one, at most half a window.
OVERLAP = 256

# Fractions of a window: its unreliable end, and the text with few tokens that counts as AGREEING.
MARGIN_PARTS = 16

# The number of consecutive tokens that must be the same.
AGREEING = 64

# A stride that is not a multiple of these distinguishes two windows that read a repeated group from its end.
_GROUPS = math.lcm(*range(2, 17))


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Consecutive tokens, with their places in the text. Shapes: (T,) each."""

    ids: IntArray
    starts: IntArray
    ends: IntArray

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.ids)

    def __getitem__(self, some: slice) -> "Tokens":
        """Take some of the tokens."""
        return Tokens(self.ids[some], self.starts[some], self.ends[some])

    def __eq__(self, other: object) -> bool:
        """Compare ids and places."""
        return isinstance(other, Tokens) and list(_keys(self)) == list(_keys(other))

    @classmethod
    def of(cls, encoding: Encoding, shift: int, skip: int = 0) -> "Tokens":
        """Take an encoding's tokens, without the first `skip`; `shift` is added to their places."""
        # numpy converts a flat sequence faster than a sequence of pairs.
        flat = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * len(encoding))
        places = flat.reshape(-1, 2)[skip:] + shift
        return cls(
            np.array(encoding.ids[skip:], dtype=np.int32),
            np.ascontiguousarray(places[:, 0]),
            np.ascontiguousarray(places[:, 1]),
        )


NOTHING = Tokens(*(np.empty(0, dtype=np.int32) for _ in range(3)))


def joined(parts: list[Tokens]) -> Tokens:
    """Concatenate tokens; `parts` is emptied, because there may be many."""
    columns = [[each.ids for each in parts], [each.starts for each in parts], [each.ends for each in parts]]
    parts.clear()
    return Tokens(*(np.concatenate([NOTHING.ids, *columns.pop(0)]) for _ in range(3)))


class TokenizedWindow(NamedTuple):
    """A tokenizer's result for a window; `word(token)` is a token's word number in the pre-tokenizer."""

    tokens: Tokens
    word: Callable[[int], int | None]


class Place(NamedTuple):
    """The end of a window, and whether the text may be cut there."""

    end: int
    is_safe: bool


# Tokenizes the text between two places, in one of several ways: 0 is for the text's beginning or after a
# place that is safe to cut; others begin in the middle of a word or of the text.
Encode = Callable[[int, int, int], TokenizedWindow]

# Finds the first place in a range where the text may be cut.
FindCut = Callable[[int, int], int | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window whose tokens are known to be right from `first` on, up to a place near its end.

    `begun` is the start of the token `first` if it began in an earlier window.
    """

    way: int
    start: int
    place: Place
    encoded: TokenizedWindow
    first: int = 0
    begun: int | None = None

    @property
    def tokens(self) -> Tokens:
        return self.encoded.tokens

    def between(self, first: int, end: int | None) -> Tokens:
        """Give some tokens; one that began before the window has its true start."""
        some = self.tokens[first:end]
        if self.begun is None or first > self.first or not len(some):
            return some
        starts = some.starts.copy()
        starts[0] = self.begun
        return replace(some, starts=starts)


@dataclass(frozen=True, slots=True)
class _Joint:
    """The start of the next window, and the token of this window from which the two are compared.

    One token fills the end of this window if `is_filled`; none does if `is_empty`: nothing begins before
    `believed`.
    """

    start: int
    token: int
    believed: int
    is_filled: bool = False
    is_empty: bool = False


class Stretch:
    """Reads a stretch from a place that is safe to cut to the next one, or to the text's end.

    `encode` tokenizes in `ways` ways (see `Encode`); `length` is the text's.
    """

    def __init__(self, encode: Encode, ways: int, find_cut: FindCut, length: int) -> None:
        self._encode, self._ways = encode, ways
        self._find_cut, self._length = find_cut, length

    def read(self, start: int) -> Generator[Tokens, None, int]:
        """Yield tokens in the text's order after each window, if any; return the end of the stretch."""
        here = self._window(
            0, start, Place(min(start + WINDOW, self._length), start + WINDOW >= self._length)
        )
        agreed = True
        while not here.place.is_safe:
            yield NOTHING
            most, parts, there, joined = (MAX_WINDOWS if agreed else 1), 1, here, None
            while True:
                joint = _joint(here, parts)
                place = self._place(here.place.end, _stride(parts * WINDOW))
                for way in range(1, self._ways):
                    there = self._window(way, joint.start, place)
                    joined = _joined(here, there, joint, parts)
                    yield NOTHING
                    if joined is not None:
                        break
                if joined is not None or 2 * parts > most:
                    break
                parts *= 2
                longer = self._longer(here, parts)
                yield NOTHING
                if longer is None:
                    break
                here = longer
                if here.place.is_safe:
                    break
            if here.place.is_safe:
                break
            agreed = joined is not None
            if joined is None:
                joined = joint.token + joint.is_filled, there
            end, there = joined
            yield here.between(here.first, end)
            here = there
        yield here.between(here.first, None)
        return here.place.end

    def _window(self, way: int, start: int, place: Place) -> _Window:
        return _Window(way, start, place, self._encode(way, start, place.end))

    def _place(self, behind: int, characters: int) -> Place:
        """Find the end of a window: the first safe place after another, if one is near."""
        end = behind + characters
        found = self._find_cut(behind, min(end, self._length))
        if found is not None:
            return Place(found, True)
        return Place(min(end, self._length), end >= self._length)

    def _longer(self, window: _Window, parts: int) -> _Window | None:
        """Read a window again, longer; None if that changes tokens known to be right."""
        longer = self._window(window.way, window.start, self._place(window.place.end, parts * WINDOW // 2))
        first, known, found = window.first, window.tokens, longer.tokens
        if first < len(known):
            same = first < len(found) and (known.ids[first], known.starts[first]) == (
                found.ids[first],
                found.starts[first],
            )
            if not same:
                return None
        return replace(longer, first=first, begun=window.begun)


def _stride(characters: int) -> int:
    """Find the largest stride up to this many characters that has no common factor with a short group."""
    return next(stride for stride in range(characters, 0, -1) if math.gcd(stride, _GROUPS) == 1)


def _joint(window: _Window, parts: int) -> _Joint:
    """Choose the start of the next window: a word's start if one is near, else a token's."""
    tokens, first = window.tokens, window.first
    half = (window.start + window.place.end) // 2
    believed = window.place.end - parts * WINDOW // MARGIN_PARTS
    believed = max(believed, half)
    starts = np.maximum.accumulate(tokens.starts[first:]) if first < len(tokens) else NOTHING.starts
    begins = first + int(np.searchsorted(starts, half))
    ends = first + int(np.searchsorted(starts, believed, side="right"))
    if begins == ends:
        if begins > first and (end := int(tokens.ends[begins - 1])) > half:
            if end >= believed:
                return _Joint(half, begins - 1, believed, is_filled=True)
            half = end
        return _Joint(half, begins, believed, is_empty=True)
    target = min(ends - 1, max(begins, len(tokens) - parts * OVERLAP))
    token = next(_word_starts(window, begins, target), None)
    if token is None:
        token = next(_clean_starts(tokens, begins, target), target)
    return _Joint(_beginning(tokens, token, first), token, believed)


def _clean_starts(tokens: Tokens, begins: int, target: int) -> Iterator[int]:
    """Go back from a token over tokens that begin where the previous one ends, or later."""
    for token in range(target, max(begins, 1, target - OVERLAP) - 1, -1):
        if tokens.ends[token - 1] <= tokens.starts[token]:
            yield token


def _word_starts(window: _Window, begins: int, target: int) -> Iterator[int]:
    """Go back over tokens that also begin a word."""
    word = window.encoded.word
    return (
        token
        for token in _clean_starts(window.tokens, begins, target)
        if word(token) is None or word(token) != word(token - 1)
    )


def _beginning(tokens: Tokens, token: int, first: int) -> int:
    """Find where a token begins, including its space, which its span may leave out."""
    start = int(tokens.starts[token])
    if token <= first:
        return start
    return min(start, max(int(tokens.ends[token - 1]), start - 1))


def _joined(here: _Window, there: _Window, joint: _Joint, parts: int) -> tuple[int, _Window] | None:
    """Count a window's tokens to keep, and find the continuation in the next; None if they disagree."""
    tokens, following = here.tokens, there.tokens
    if joint.is_empty:
        empty = not len(following) or int(following.starts[0]) >= joint.believed
        return (joint.token, there) if empty else None
    if joint.is_filled:
        goes_on = int(np.searchsorted(np.maximum.accumulate(following.starts), joint.believed, "right")) - 1
        same = goes_on >= 0 and following.ids[goes_on] == tokens.ids[joint.token]
        if not same or following.ends[goes_on] < joint.believed:
            return None
        begun = int(tokens.starts[joint.token])
        if joint.token == here.first and here.begun is not None:
            begun = here.begun
        return joint.token, replace(there, first=goes_on, begun=begun)
    overlapping = int(np.searchsorted(np.maximum.accumulate(following.starts), here.place.end))
    found = _agreement(tokens[joint.token :], following[:overlapping], parts * WINDOW // MARGIN_PARTS)
    if found is None:
        return None
    return joint.token + found[0], replace(there, first=found[1])


def _agreement(before: Tokens, after: Tokens, enough_characters: int) -> tuple[int, int] | None:
    """Find the longest run of tokens that are the same in both, as its first token in each.

    A run needs AGREEING tokens, or enough characters.
    """
    where = {key: place for place, key in enumerate(_keys(before))}
    best, run, last = (0, 0), 0, -2
    for number, key in enumerate(_keys(after)):
        place = where.get(key, -2)
        run = run + 1 if place == last + 1 and run else int(place >= 0)
        last = place
        best = max(best, (run, number))
    length, number = best
    if not length:
        return None
    begins = number - length + 1
    covered = int(after.ends[number] - after.starts[begins])
    if length < AGREEING and (length < 2 or covered < enough_characters):
        return None
    return where[_key_at(after, begins)], begins


def _key_at(tokens: Tokens, place: int) -> tuple[int, int, int, int]:
    return list(_keys(tokens[: place + 1]))[-1]


def _keys(tokens: Tokens) -> Iterator[tuple[int, int, int, int]]:
    """Make a key for each token: its id, its place and its number among tokens of the same place."""
    numbers = np.arange(len(tokens))
    begins = np.ones(len(tokens), dtype=bool)
    begins[1:] = (np.diff(tokens.starts) != 0) | (np.diff(tokens.ends) != 0)
    nth = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    columns = (tokens.ids, tokens.starts, tokens.ends, nth)
    return zip(*(column.tolist() for column in columns), strict=True)

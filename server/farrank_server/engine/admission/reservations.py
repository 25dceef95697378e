"""Is there room for a whole call, and can its deadline hold? Asked before any work is done for it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.admission.forecast import FloatArray, Shares, forecast
from farrank_server.errors import DeadlineExceeded, InvalidArgument, Reason, ResourceExhausted

# The measured speed may be wrong, and on an idle server a call costs nobody else: what seems to need a little
# more than its time is tried there.
BENEFIT_OF_DOUBT = 1.5


@dataclass(frozen=True, slots=True)
class Work:
    """What one ranker has to do for a call, estimated from the lengths of the texts until they are read.

    `chunks` are all that it scores, `tokens` those that it encodes: cached documents cost chunks alone.
    """

    ranker: str
    tokens: int
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a call asks for: its rankers' work, and characters that are to be read and to be held.

    `least_tokens` is a lower estimate that no measurement moves. Times are seconds of one clock.
    """

    work: Sequence[Work]
    unread: int
    held: int
    arrival_s: float
    deadline_s: float
    least_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All rankers' tokens."""
        return sum(each.tokens for each in self.work)


@dataclass(slots=True, eq=False)
class Outstanding:
    """What one ranker still has to do for an admitted call: a row of the table, -1 once it is given back."""

    row: int


@dataclass(slots=True, eq=False)
class Reservation:
    """An admitted call: the characters that it holds and has not read, and its work by ranker."""

    unread: int
    held: int
    outstanding: Mapping[str, Outstanding]


class Reservations:
    """Keeps count of outstanding work, admits a call as a whole or refuses it. Thread-safe.

    `speeds` are the rankers', `reading` is the tokenizer pool's in characters per second; one device serves
    all rankers. With N calls in flight an admission takes O(N log N).
    """

    def __init__(self, limits: LimitsConfig, speeds: Mapping[str, Speeds], reading: Speed) -> None:
        self._limits = limits
        self._reading = reading
        self._lock = threading.Lock()
        self._table = _Table(speeds)
        self._admitted: set[Reservation] = set()
        self._unread = 0
        self._held = 0

    def outstanding_tokens(self, ranker: str) -> int:
        """Tokens admitted and not yet encoded: counted where tokenized, estimated where not."""
        with self._lock:
            return self._table.tokens_left(ranker)

    def held_characters(self) -> int:
        """Characters of the texts of all admitted calls."""
        return self._held

    def admit(self, claim: Claim, now_s: float, *, instead_of: Reservation | None = None) -> Reservation:
        """Take a call in, if need be in the place of what was reserved for it before, which is given back.

        Raises: InvalidArgument if it is too large for any queue; DeadlineExceeded if it would be late even if
        nothing else ran; ResourceExhausted (with a hint when to come back) if there is no room for it now, or
        no time before its deadline or before those of calls admitted earlier.
        """
        if claim.least_tokens > self._limits.max_queued_tokens:
            raise InvalidArgument(
                f"documents: at least {claim.least_tokens} tokens together, more than max_queued_tokens "
                f"{self._limits.max_queued_tokens}; send fewer documents a call, or lower options.max_chunks"
            )
        with self._lock:
            if instead_of is not None:
                self._release(instead_of)
            self._check_deadline(claim, now_s)
            if self._admitted:
                self._check_room(claim)
                self._check_time(claim, now_s)
            rows = {work.ranker: Outstanding(self._table.add(work, claim)) for work in claim.work}
            reservation = Reservation(claim.unread, claim.held, rows)
            self._admitted.add(reservation)
            self._unread += claim.unread
            self._held += claim.held
            return reservation

    def read(self, reservation: Reservation, characters: int) -> None:
        """Note that so many characters of the call have been tokenized."""
        with self._lock:
            if reservation in self._admitted:
                reservation.unread -= characters
                self._unread -= characters

    def correct(self, outstanding: Outstanding, tokens: int, chunks: int) -> None:
        """Put counted numbers in the place of the estimates."""
        with self._lock:
            if outstanding.row >= 0:
                self._table.correct(outstanding.row, tokens, chunks)

    def done(self, outstanding: Outstanding, *, tokens: int = 0, chunks: int = 0) -> None:
        """Note that so many tokens of the call have been encoded, so many chunks scored."""
        with self._lock:
            if outstanding.row >= 0:
                self._table.done(outstanding.row, tokens, chunks)

    def release(self, reservation: Reservation) -> None:
        """Give back whatever the call still holds; it is answered, refused or gone."""
        with self._lock:
            self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        if reservation not in self._admitted:
            return
        self._admitted.remove(reservation)
        self._unread -= reservation.unread
        self._held -= reservation.held
        for each in reservation.outstanding.values():
            self._table.remove(each.row)
            each.row = -1

    def _check_deadline(self, claim: Claim, now_s: float) -> None:
        remaining_s = claim.deadline_s - now_s
        own_s = float(self._table.shares_of(claim).left_s.sum()) + claim.unread / self._reading.per_s
        if own_s > remaining_s * (1.0 if self._admitted else BENEFIT_OF_DOUBT):
            raise DeadlineExceeded(
                f"deadline: {_rounded(remaining_s)} s are left, and the call needs about {_rounded(own_s)} s "
                "at the measured speed; lower k (or send fewer documents) or max_chunks",
                reason=Reason.DEADLINE_TOO_SHORT,
            )

    def _check_room(self, claim: Claim) -> None:
        limits, tokens = self._limits, claim.tokens
        queued = self._table.tokens_left()
        excess = queued + tokens - limits.max_queued_tokens
        if excess > 0:
            own_s = float(self._table.shares_of(claim).left_s.sum())
            raise ResourceExhausted(
                f"the queue holds {queued} of {limits.max_queued_tokens} tokens: no room for {tokens}",
                reason=Reason.QUEUE_FULL,
                retry_after_ms=_milliseconds(own_s * excess / tokens),
            )
        if self._held + claim.held > limits.max_held_characters:
            raise ResourceExhausted(
                f"calls in flight hold {self._held} of {limits.max_held_characters} characters: "
                f"no room for {claim.held}",
                reason=Reason.TEXTS_FULL,
                retry_after_ms=1000,
            )

    def _check_time(self, claim: Claim, now_s: float) -> None:
        new = self._table.shares_of(claim)
        own_s = float(new.left_s.sum())
        reading_s = (max(0, self._unread) + claim.unread) / self._reading.per_s
        remaining_s = claim.deadline_s - now_s
        usable_s = remaining_s * self._limits.deadline_margin
        seen = forecast(self._table.shares(), new, now_s)
        done_after_s = seen.done_after_s + reading_s
        if done_after_s > usable_s:
            raise ResourceExhausted(
                f"the call would be done after about {done_after_s:.2f} s, its deadline is in "
                f"{remaining_s:.2f} s",
                reason=Reason.BACKLOG,
                retry_after_ms=_milliseconds(done_after_s - usable_s),
            )
        if seen.makes_late:
            raise ResourceExhausted(
                f"the call of about {own_s:.2f} s would make calls late that were admitted before it",
                reason=Reason.OTHERS_LATE,
                retry_after_ms=_milliseconds(own_s),
            )


class _Table:
    """The work of admitted calls, a row for each ranker of a call; in columns, so that numpy adds it up.

    A row that nobody uses has no work, and no deadline that could be missed.
    """

    def __init__(self, speeds: Mapping[str, Speeds]) -> None:
        self._speeds = list(speeds.values())
        self._number = {ranker: number for number, ranker in enumerate(speeds)}
        self._free: list[int] = []
        self._columns = _Columns.empty(0)

    def add(self, work: Work, claim: Claim) -> int:
        """Take in a ranker's work for a call; return its row."""
        if not self._free:
            rows = len(self._columns.deadline_s)
            self._columns = self._columns.followed_by(_Columns.empty(max(64, rows)))
            self._free = list(range(rows, len(self._columns.deadline_s)))
        row = self._free.pop()
        for column, value in zip(self._columns, self._values(work, claim), strict=True):
            column[row] = value
        return row

    def correct(self, row: int, tokens: int, chunks: int) -> None:
        """Put counts in the place of estimates; what is done already stays done."""
        columns = self._columns
        columns.tokens_left[row] += tokens - columns.tokens[row]
        columns.chunks_left[row] += chunks - columns.chunks[row]
        columns.tokens[row], columns.chunks[row] = tokens, chunks

    def done(self, row: int, tokens: int, chunks: int) -> None:
        """Take off what was encoded and scored."""
        self._columns.tokens_left[row] -= tokens
        self._columns.chunks_left[row] -= chunks

    def remove(self, row: int) -> None:
        """Free a row."""
        for column in self._columns:
            column[row] = 0.0
        self._columns.deadline_s[row] = np.inf
        self._free.append(row)

    def tokens_left(self, ranker: str | None = None) -> int:
        """Add up what is to be encoded, by one ranker or by all."""
        left = np.maximum(self._columns.tokens_left, 0.0)
        if ranker is not None:
            left = left[self._columns.ranker == self._number[ranker]]
        return round(float(left.sum()))

    def shares(self) -> Shares:
        """All work as claims on the device, at the speeds of now."""
        return self._shares(self._columns)

    def shares_of(self, claim: Claim) -> Shares:
        """The claims on the device that a new call would be."""
        return self._shares(_Columns(*np.array([self._values(work, claim) for work in claim.work]).T))

    def _values(self, work: Work, claim: Claim) -> tuple[float, ...]:
        number = self._number[work.ranker]
        return work.tokens, work.chunks, work.tokens, work.chunks, number, claim.arrival_s, claim.deadline_s

    def _shares(self, columns: "_Columns") -> Shares:
        costs = np.array([(1 / each.encoding.per_s, 1 / each.scoring.per_s) for each in self._speeds])
        token_s, chunk_s = costs[columns.ranker.astype(np.intp)].T  # (N,) each
        left_s = (
            np.maximum(columns.tokens_left, 0.0) * token_s + np.maximum(columns.chunks_left, 0.0) * chunk_s
        )
        all_s = columns.tokens * token_s + columns.chunks * chunk_s
        return Shares(left_s, columns.arrival_s + all_s, columns.deadline_s)


class _Columns(NamedTuple):
    """Shapes: (N,) each. What is left may be less than nothing where more was done than was estimated."""

    tokens_left: FloatArray
    chunks_left: FloatArray
    tokens: FloatArray
    chunks: FloatArray
    ranker: FloatArray
    arrival_s: FloatArray
    deadline_s: FloatArray

    @staticmethod
    def empty(rows: int) -> "_Columns":
        return _Columns(*np.concatenate((np.zeros((6, rows)), np.full((1, rows), np.inf))))

    def followed_by(self, other: "_Columns") -> "_Columns":
        return _Columns(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _rounded(seconds: float) -> str:
    """Write seconds for people: 94, 9.4, 0.094."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}" if seconds > 0 else "0"

"""Is there room for a whole call, and can its deadline hold? Asked before any work is done for it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.errors import DeadlineExceeded, InvalidArgument, Reason, ResourceExhausted

FloatArray = NDArray[np.float64]

# The measured speed may be wrong, and on an idle server a call costs nobody else: what seems to need a little
# more than its time is tried there.
BENEFIT_OF_DOUBT = 1.5

# The table of all work, a column for each ranker of a call. What is left may be less than nothing where more
# was done than was estimated. A column that nobody uses has no work, and no deadline that could be missed.
TOKENS_LEFT, CHUNKS_LEFT, TOKENS, CHUNKS, RANKER, ARRIVAL_S, DEADLINE_S = range(7)
UNUSED = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf)


@dataclass(frozen=True, slots=True)
class Work:
    """What one ranker has to do for a call, estimated from the lengths of the texts until they are read.

    `chunks` are all that it scores, `tokens` those that it encodes: cached documents cost chunks alone.
    `least_tokens` is a lower estimate that no measurement moves.
    """

    ranker: str
    tokens: int
    chunks: int = 0
    least_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a call asks for: its rankers' work, and characters that are to be read and to be held.

    Times are seconds of one clock.
    """

    work: Sequence[Work]
    unread: int
    held: int
    arrival_s: float
    deadline_s: float


class Shares(NamedTuple):
    """Claims on the device, one a ranker of a call: what is left of each, and when its last input is due.

    Inputs of a share are due one after another up to `due_s` (see `batching.batcher`), so what is left of it
    is due in the last `left_s` before that. Shapes: (N,) each, in seconds; times are of one clock.
    """

    left_s: FloatArray
    due_s: FloatArray
    deadline_s: FloatArray


@dataclass(slots=True, eq=False)
class Reservation:
    """An admitted call: its characters that are held and not read, and its rankers' columns of the table."""

    unread: int
    held: int
    columns: dict[str, int]


class Reservations:
    """Keeps count of outstanding work, admits a call as a whole or refuses it. Thread-safe.

    `speeds` are the rankers', `reading` is the tokenizer pool's in characters per second; one device serves
    all rankers. With N calls in flight an admission takes O(N log N). What is reported of a call that was
    released changes nothing.
    """

    def __init__(self, limits: LimitsConfig, speeds: Mapping[str, Speeds], reading: Speed) -> None:
        self._limits = limits
        self._speeds = list(speeds.values())
        self._number = {ranker: number for number, ranker in enumerate(speeds)}
        self._reading = reading
        self._lock = threading.Lock()
        self._table = np.empty((len(UNUSED), 0))
        self._free: list[int] = []
        self._admitted: set[Reservation] = set()
        self._unread = 0
        self._held = 0

    def outstanding_tokens(self, ranker: str) -> int:
        """Tokens admitted and not yet encoded: counted where tokenized, estimated where not."""
        with self._lock:
            return _tokens_left(self._table[:, self._table[RANKER] == self._number[ranker]])

    def held_characters(self) -> int:
        """Characters of the texts of all admitted calls."""
        return self._held

    def admit(self, claim: Claim, now_s: float, *, instead_of: Reservation | None = None) -> Reservation:
        """Take a call in, if need be in the place of what was reserved for it before, which is given back.

        Raises: InvalidArgument if it is too large for any queue; DeadlineExceeded if it would be late even if
        nothing else ran; ResourceExhausted (with a hint when to come back) if there is no room for it now, or
        no time before its deadline or before those of calls admitted earlier.
        """
        least_tokens = sum(work.least_tokens for work in claim.work)
        if least_tokens > self._limits.max_queued_tokens:
            raise InvalidArgument(
                f"documents: at least {least_tokens} tokens together, more than max_queued_tokens "
                f"{self._limits.max_queued_tokens}; send fewer documents a call, or lower options.max_chunks"
            )
        columns = np.array([self._column(work, claim) for work in claim.work]).T
        with self._lock:
            if instead_of is not None:
                self._release(instead_of)
            self._check(claim, columns, now_s)
            if len(self._free) < len(claim.work):
                used = self._table.shape[1]
                more = np.tile(np.array(UNUSED)[:, None], max(64, used, len(claim.work)))
                self._table = np.concatenate((self._table, more), axis=1)
                self._free += range(used, self._table.shape[1])
            places = {work.ranker: self._free.pop() for work in claim.work}
            self._table[:, list(places.values())] = columns
            reservation = Reservation(claim.unread, claim.held, places)
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

    def correct(self, reservation: Reservation, ranker: str, tokens: int, chunks: int) -> None:
        """Put counted numbers in the place of the estimates; what is done already stays done."""
        with self._lock:
            if ranker in reservation.columns:
                work = self._table[:, reservation.columns[ranker]]
                work[TOKENS_LEFT] += tokens - work[TOKENS]
                work[CHUNKS_LEFT] += chunks - work[CHUNKS]
                work[TOKENS], work[CHUNKS] = tokens, chunks

    def done(self, reservation: Reservation, ranker: str, *, tokens: int = 0, chunks: int = 0) -> None:
        """Note that so many tokens of the call have been encoded, so many chunks scored."""
        with self._lock:
            if ranker in reservation.columns:
                column = reservation.columns[ranker]
                self._table[TOKENS_LEFT, column] -= tokens
                self._table[CHUNKS_LEFT, column] -= chunks

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
        for column in reservation.columns.values():
            self._table[:, column] = UNUSED
            self._free.append(column)
        reservation.columns.clear()

    def _column(self, work: Work, claim: Claim) -> tuple[float, ...]:
        number = self._number[work.ranker]
        return work.tokens, work.chunks, work.tokens, work.chunks, number, claim.arrival_s, claim.deadline_s

    def _shares(self, table: FloatArray) -> Shares:
        """Work as claims on the device, at the speeds of now. Shape: table (7, N)."""
        rankers = table[RANKER].astype(np.intp)  # (N,)
        token_s = np.array([1 / each.encoding.per_s for each in self._speeds])[rankers]
        chunk_s = np.array([1 / each.scoring.per_s for each in self._speeds])[rankers]
        left_s = np.maximum(table[TOKENS_LEFT], 0.0) * token_s + np.maximum(table[CHUNKS_LEFT], 0.0) * chunk_s
        all_s = table[TOKENS] * token_s + table[CHUNKS] * chunk_s
        return Shares(left_s, table[ARRIVAL_S] + all_s, table[DEADLINE_S])

    def _alone_s(self, work: Work) -> float:
        speeds = self._speeds[self._number[work.ranker]]
        return work.tokens / speeds.encoding.per_s + work.chunks / speeds.scoring.per_s

    def _check(self, claim: Claim, columns: FloatArray, now_s: float) -> None:
        """Refuse a call that would be late, or for which there is no room. Raises: as `admit`."""
        limits = self._limits
        own_s = sum(map(self._alone_s, claim.work))
        remaining_s = claim.deadline_s - now_s
        alone_s = own_s + claim.unread / self._reading.per_s
        if alone_s > remaining_s * (1.0 if self._admitted else BENEFIT_OF_DOUBT):
            raise DeadlineExceeded(
                f"deadline: {_rounded(remaining_s)} s are left, and the call needs about {_rounded(alone_s)} "
                "s at the measured speed; lower k (or send fewer documents) or max_chunks",
                reason=Reason.DEADLINE_TOO_SHORT,
            )
        if not self._admitted:
            return
        queued, tokens = _tokens_left(self._table), sum(work.tokens for work in claim.work)
        excess = queued + tokens - limits.max_queued_tokens
        if tokens and excess > 0:
            raise _exhausted(
                f"the queue holds {queued} of {limits.max_queued_tokens} tokens: no room for {tokens}",
                Reason.QUEUE_FULL,
                own_s * excess / tokens,
            )
        if self._held + claim.held > limits.max_held_characters:
            raise _exhausted(
                f"calls in flight hold {self._held} of {limits.max_held_characters} characters: "
                f"no room for {claim.held}",
                Reason.TEXTS_FULL,
                1.0,
            )
        done_after_s, makes_late = forecast(self._shares(self._table), self._shares(columns), now_s)
        done_after_s += (max(0, self._unread) + claim.unread) / self._reading.per_s
        usable_s = remaining_s * limits.deadline_margin
        if done_after_s > usable_s:
            raise _exhausted(
                f"the call would be done after about {done_after_s:.2f} s, its deadline is in "
                f"{remaining_s:.2f} s",
                Reason.BACKLOG,
                done_after_s - usable_s,
            )
        if makes_late:
            raise _exhausted(
                f"the call of about {own_s:.2f} s would make calls late that were admitted before it",
                Reason.OTHERS_LATE,
                own_s,
            )


def _tokens_left(table: FloatArray) -> int:
    return round(float(np.maximum(table[TOKENS_LEFT], 0.0).sum()))


def _exhausted(message: str, reason: Reason, retry_after_s: float) -> ResourceExhausted:
    return ResourceExhausted(message, reason=reason, retry_after_ms=max(1, round(retry_after_s * 1000)))


def _rounded(seconds: float) -> str:
    """Write seconds for people: 94, 9.4, 0.094."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}" if seconds > 0 else "0"


def forecast(shares: Shares, new: Shares, now_s: float) -> tuple[float, bool]:
    """Say after how many seconds a new call would be done, and whether it would make another late.

    Work that is due before a share's last input is done before it. A call that is late already is not made
    late. Takes O(N log N).
    """
    before, added = _Backlog(shares), _Backlog(new)
    done_after_s = before.due_by(new.due_s) + added.due_by(new.due_s)  # (M,)
    until_deadline_s = shares.deadline_s - now_s  # (N,)
    alone_s = before.due_by(shares.due_s)  # (N,)
    with_new_s = alone_s + added.due_by(shares.due_s)
    makes_late = bool(((alone_s <= until_deadline_s) & (with_new_s > until_deadline_s)).any())
    return float(done_after_s.max()), makes_late


class _Backlog:
    """Seconds of work by when they are due: what is left of a share is due at one second a second."""

    def __init__(self, shares: Shares) -> None:
        # By a time t, the sum over shares of clip(t - begin, 0, left): those begun count from their begin,
        # and no longer from their end on.
        self._begins = np.sort(shares.due_s - shares.left_s)
        self._ends = np.sort(shares.due_s)
        self._begin_sums = np.concatenate(([0.0], np.cumsum(self._begins)))
        self._end_sums = np.concatenate(([0.0], np.cumsum(self._ends)))

    def due_by(self, times_s: FloatArray) -> FloatArray:
        """Shapes: (M,) -> (M,)."""
        begun = np.searchsorted(self._begins, times_s)
        ended = np.searchsorted(self._ends, times_s)
        counted: FloatArray = (begun - ended) * times_s - self._begin_sums[begun] + self._end_sums[ended]
        return counted

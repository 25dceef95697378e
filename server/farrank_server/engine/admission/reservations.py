"""Admission control: whether there is room for a whole call, and whether it can meet its deadline.

It is checked before any work is done for the call.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from farrank_calls.errors import DeadlineExceeded, InvalidArgument, Reason, ResourceExhausted
from farrank_calls.fairness.fair_order import NOBODY, QUANTUM_S, Account, CallPriority, FairOrder
from farrank_calls.fairness.forecast import Accounts, FloatArray, Forecast, Shares, forecast_among
from farrank_calls.fairness.shared_room import SharedRoom, within_share
from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed, Speeds

# The measured speed may be wrong, and on an idle server a call costs no other caller anything. There, a call
# that seems to need up to this many times its remaining time is tried.
BENEFIT_OF_DOUBT = 1.5

# Calls take turns on the tokenizer threads, this many seconds each.
READING_TURN_S = 0.01

# How far a caller may be ahead of its share of the tokenizer threads, in seconds of reading.
READING_QUANTUM_S = 5 * READING_TURN_S

# The table of all work has a column for each ranker of a call. The remaining work is negative if more was
# done than estimated. An unused column has no work and no deadline that could be missed.
TOKENS_LEFT, CHUNKS_LEFT, TOKENS, CHUNKS, RANKER, ARRIVAL_S, DEADLINE_S, ACCOUNT = range(8)
UNUSED = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf, 0.0)


@dataclass(frozen=True, slots=True)
class RankerWork:
    """One ranker's work for a call, estimated from the lengths of the texts until they are read.

    `chunks` counts all chunks that it scores, `tokens` the tokens that it encodes: a cached document costs
    only chunks. `least_tokens` is a lower bound that does not depend on measurements. `must_share` is the
    part that must be done by the deadline: of a call that reads in rounds, the first one.
    """

    ranker: str
    tokens: int
    chunks: int = 0
    least_tokens: int = 0
    must_share: float = 1.0


@dataclass(slots=True, eq=False)
class Reservation:
    """The resources that a call asks for, and holds once it is admitted.

    `work` is that of its rankers, `unread` and `held` are characters to read and to hold. Times are seconds
    of one clock. `columns` are its rankers' columns of the table.
    """

    work: Sequence[RankerWork]
    unread: int
    held: int
    arrival_s: float
    deadline_s: float
    account: Account = NOBODY
    columns: dict[str, int] = field(default_factory=dict)


class Reservations:
    """Counts outstanding work, and admits a call as a whole or refuses it. Thread-safe.

    `speeds` are those of the rankers. `reading` is the speed of the tokenizer pool in characters per second,
    all its `readers` together; calls take turns there. One device serves all rankers. With N calls in flight
    an admission takes O(N log N). Reports about a released call change nothing.
    """

    def __init__(
        self, limits: LimitsConfig, speeds: Mapping[str, Speeds], reading: Speed, readers: int = 1
    ) -> None:
        self._limits = limits
        self._speeds = list(speeds.values())
        self._number = {ranker: number for number, ranker in enumerate(speeds)}
        self._free_rankers: list[int] = []
        self._reading, self._readers = reading, readers
        self._lock = threading.Lock()
        self._table = np.empty((len(UNUSED), 0))
        self._free: list[int] = []
        self._admitted: set[Reservation] = set()
        self._unread = 0
        self._texts = SharedRoom(limits.max_held_characters)
        # The accounts of admitted calls: each account's number in the table, and its number of calls.
        self._accounts: dict[Account, list[int]] = {}
        self._free_numbers: list[int] = []
        # The order of the current device thread. It is replaced when another thread takes over.
        self.order = FairOrder(QUANTUM_S)

    def enter(self, ranker: str, speeds: Speeds) -> None:
        """Count work of one more ranker."""
        with self._lock:
            if self._free_rankers:
                self._number[ranker] = self._free_rankers.pop()
                self._speeds[self._number[ranker]] = speeds
            else:
                self._number[ranker] = len(self._speeds)
                self._speeds.append(speeds)

    def leave(self, ranker: str) -> None:
        """Forget a ranker of which no work is reserved."""
        with self._lock:
            self._free_rankers.append(self._number.pop(ranker))

    def outstanding_tokens(self, ranker: str) -> int:
        """Tokens admitted and not yet encoded: exact for tokenized texts, estimated for the others.

        A ranker that has left has none.
        """
        with self._lock:
            return _tokens_left(self._table[:, self._table[RANKER] == self._number.get(ranker, -1)])

    def outstanding_of(self, priority: CallPriority) -> int:
        """Tokens of one priority admitted and not yet encoded, all rankers together."""
        with self._lock:
            numbers = [number for each, (number, _) in self._accounts.items() if each.priority is priority]
            return _tokens_left(self._table[:, np.isin(self._table[ACCOUNT], numbers)])

    def held_characters(self) -> int:
        """The characters of the texts of all admitted calls."""
        return self._texts.held

    def admit(self, reservation: Reservation, now_s: float) -> Reservation:
        """Admit a call, and return its reservation.

        Raises: InvalidArgument if the call is too large for any queue; DeadlineExceeded if it would be late
        even if nothing else ran; ResourceExhausted (with a retry hint) if there is no room for it now, or
        none within the caller's share, or if it or a call admitted earlier would miss its deadline.
        """
        self._check_size(reservation.work)
        with self._lock:
            columns = self._columns(reservation)
            self._check(reservation, columns, now_s)
            self._take(reservation, columns)
        return reservation

    def resize(
        self, reservation: Reservation, work: Sequence[RankerWork], unread: int, held: int, now_s: float
    ) -> None:
        """Replace an admitted call's estimate by its size, once its documents are known.

        A call that is no larger than its estimate keeps its place. A larger one is checked as if it came now,
        and loses everything if it is refused.
        Raises: as `admit`.
        """
        self._check_size(work)
        with self._lock:
            fits = self._covers(reservation, work, unread, held)
            # Its own estimate is not counted against the call.
            self._release(reservation)
            reservation.work, reservation.unread, reservation.held = work, unread, held
            columns = self._columns(reservation)
            if not fits:
                self._check(reservation, columns, now_s)
            self._take(reservation, columns)

    def _check_size(self, work: Sequence[RankerWork]) -> None:
        """Refuse a call that is too large for any queue. Raises: InvalidArgument."""
        least_tokens = sum(each.least_tokens for each in work)
        if least_tokens > self._limits.max_queued_tokens:
            raise InvalidArgument(
                f"documents: at least {least_tokens} tokens together, more than max_queued_tokens "
                f"{self._limits.max_queued_tokens}; send fewer documents a call, or lower options.max_chunks"
            )

    def _covers(self, reservation: Reservation, work: Sequence[RankerWork], unread: int, held: int) -> bool:
        """Whether a call has reserved at least this much."""
        reserved = self._table[:, [reservation.columns[each.ranker] for each in work]]
        return (
            unread <= reservation.unread
            and held <= reservation.held
            and all(each.tokens <= most for each, most in zip(work, reserved[TOKENS], strict=True))
            and all(each.chunks <= most for each, most in zip(work, reserved[CHUNKS], strict=True))
        )

    def _take(self, reservation: Reservation, columns: FloatArray) -> None:
        """Count what the call asks for as taken."""
        account, work = reservation.account, reservation.work
        if account not in self._accounts:
            self._accounts[account] = [self._account_number(account), 0]
            if self._free_numbers:
                self._free_numbers.pop()
        self._accounts[account][1] += 1
        if len(self._free) < len(work):
            used = self._table.shape[1]
            more = np.tile(np.array(UNUSED)[:, None], max(64, used, len(work)))
            self._table = np.concatenate((self._table, more), axis=1)
            self._free += range(used, self._table.shape[1])
        reservation.columns = {each.ranker: self._free.pop() for each in work}
        self._table[:, list(reservation.columns.values())] = columns
        self._admitted.add(reservation)
        self._unread += reservation.unread
        self._texts.take(reservation.held, account)

    def read(self, reservation: Reservation, characters: int) -> None:
        """Record that this many characters of the call have been tokenized."""
        with self._lock:
            if reservation in self._admitted:
                reservation.unread -= characters
                self._unread -= characters

    def correct(self, reservation: Reservation, ranker: str, tokens: int, chunks: int) -> None:
        """Replace the estimates by counted numbers. Work already done stays counted as done."""
        with self._lock:
            if ranker in reservation.columns:
                work = self._table[:, reservation.columns[ranker]]
                work[TOKENS_LEFT] += tokens - work[TOKENS]
                work[CHUNKS_LEFT] += chunks - work[CHUNKS]
                work[TOKENS], work[CHUNKS] = tokens, chunks

    def done(self, reservation: Reservation, ranker: str, *, tokens: int = 0, chunks: int = 0) -> None:
        """Record that this many tokens of the call have been encoded and this many chunks scored."""
        with self._lock:
            if ranker in reservation.columns:
                column = reservation.columns[ranker]
                self._table[TOKENS_LEFT, column] -= tokens
                self._table[CHUNKS_LEFT, column] -= chunks

    def begin_again(self, reservation: Reservation, ranker: str) -> None:
        """Record that a ranker's finished work is lost and will be done again."""
        with self._lock:
            if ranker in reservation.columns:
                work = self._table[:, reservation.columns[ranker]]
                work[TOKENS_LEFT], work[CHUNKS_LEFT] = work[TOKENS], work[CHUNKS]

    def abandon(self, reservation: Reservation) -> None:
        """Release everything except the texts of an abandoned call, while a thread still reads them."""
        with self._lock:
            if reservation in self._admitted:
                self._unread -= reservation.unread
                reservation.unread = 0
                self._give_columns_back(reservation)

    def release(self, reservation: Reservation) -> None:
        """Release everything that the call still holds after its answer, its refusal or its abandonment."""
        with self._lock:
            self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        if reservation not in self._admitted:
            return
        self._admitted.remove(reservation)
        self._unread -= reservation.unread
        self._texts.take(-reservation.held, reservation.account)
        its = self._accounts[reservation.account]
        its[1] -= 1
        if not its[1]:
            del self._accounts[reservation.account]
            self._free_numbers.append(its[0])
        self._give_columns_back(reservation)

    def _account_number(self, account: Account) -> int:
        """Return the account's number, or the number that it would get."""
        if account in self._accounts:
            return self._accounts[account][0]
        return self._free_numbers[-1] if self._free_numbers else len(self._accounts)

    def _give_columns_back(self, reservation: Reservation) -> None:
        for column in reservation.columns.values():
            self._table[:, column] = UNUSED
            self._free.append(column)
        reservation.columns.clear()

    def _columns(self, reservation: Reservation) -> FloatArray:
        """Make the table's columns of a reservation, one for each ranker. Shape: (8, M)."""
        times = reservation.arrival_s, reservation.deadline_s
        account = self._account_number(reservation.account)
        rows = [(each.tokens, each.chunks, self._number[each.ranker]) for each in reservation.work]
        columns: FloatArray = np.array([(*row[:2], *row, *times, account) for row in rows], np.float64).T
        return columns

    def _shares(self, table: FloatArray) -> Shares:
        """Convert work to claims on the device, at the current speeds. Shape: table (8, N)."""
        rankers = table[RANKER].astype(np.intp)  # (N,)
        token_s = np.array([1 / each.encoding.per_s for each in self._speeds])[rankers]
        chunk_s = np.array([1 / each.scoring.per_s for each in self._speeds])[rankers]
        left_s = np.maximum(table[TOKENS_LEFT], 0.0) * token_s + np.maximum(table[CHUNKS_LEFT], 0.0) * chunk_s
        all_s = table[TOKENS] * token_s + table[CHUNKS] * chunk_s
        return Shares(left_s, table[ARRIVAL_S] + all_s, table[DEADLINE_S])

    def _reading_s(self, account: Account, characters: int) -> float:
        """Return after how many seconds this many characters of a new call are read.

        Each time the call has a turn, every other call has at most one with each reader: only a little of a
        large call is read before a small one is done. In the same way, another account's calls together get
        no more than its share.
        """
        per_s = self._reading.per_s
        before: float = max(0, self._unread)
        turns = self._readers * (characters + per_s / self._readers * READING_TURN_S)
        if before > turns:
            of = Counter[Account]()
            for each in self._admitted:
                of[each.account] += min(max(0, each.unread), turns)  # type: ignore[assignment]
            own = of.pop(account, 0) + characters
            most = own / account.weight + per_s * READING_QUANTUM_S
            others = sum(min(its, each.weight * most) for each, its in of.items())
            before = min(before, own - characters + others)
        return (before + characters) / per_s

    def _alone_s(self, work: RankerWork) -> float:
        speeds = self._speeds[self._number[work.ranker]]
        return work.tokens / speeds.encoding.per_s + work.chunks / speeds.scoring.per_s

    def _check(self, reservation: Reservation, columns: FloatArray, now_s: float) -> None:
        """Refuse a call that would be late, or for which there is no room. Raises: as `admit`."""
        limits = self._limits
        own_s = sum(map(self._alone_s, reservation.work))
        must_s = sum(self._alone_s(each) * each.must_share for each in reservation.work)
        remaining_s = reservation.deadline_s - now_s
        alone_s = must_s + reservation.unread / self._reading.per_s
        if alone_s > remaining_s * (1.0 if self._admitted else BENEFIT_OF_DOUBT):
            raise DeadlineExceeded(
                f"deadline: {_rounded(remaining_s)} s are left, and the call needs about {_rounded(alone_s)} "
                "s at the measured speed; lower k (or send fewer documents) or max_chunks",
                reason=Reason.DEADLINE_TOO_SHORT,
            )
        if not self._admitted:
            return
        tokens = sum(work.tokens for work in reservation.work)
        self._check_room(reservation, tokens, own_s)
        whole = seen = self._forecast(reservation, columns, now_s)
        if must_s < own_s:
            must = columns.copy()
            must[[TOKENS_LEFT, CHUNKS_LEFT, TOKENS, CHUNKS]] *= [each.must_share for each in reservation.work]
            seen = self._forecast(reservation, must, now_s)
        reading_s = self._reading_s(reservation.account, reservation.unread)
        usable_s = remaining_s * limits.deadline_margin
        done_after_s = seen.done_after_s + reading_s
        if done_after_s > usable_s:
            raise _exhausted(
                f"the call would be done after about {done_after_s:.2f} s, its deadline is in "
                f"{remaining_s:.2f} s",
                Reason.BACKLOG,
                done_after_s - usable_s,
            )
        if seen.part_after_s > usable_s:
            raise _exhausted(
                f"the call would be done after about {seen.part_after_s:.2f} s within its caller's share, "
                f"its deadline is in {remaining_s:.2f} s",
                Reason.SHARE,
                seen.part_after_s - usable_s,
            )
        if whole.makes_late:
            raise _exhausted(
                f"the call of about {own_s:.2f} s would make calls late that were admitted before it",
                Reason.OTHERS_LATE,
                own_s,
            )

    def _check_room(self, reservation: Reservation, tokens: int, own_s: float) -> None:
        """Refuse a call for which there is no room, or no room within its caller's share."""
        limits, account, texts = self._limits, reservation.account, self._texts
        left = np.bincount(self._owners(self._table), np.maximum(self._table[TOKENS_LEFT], 0.0))  # (A,)
        queued = round(float(left.sum()))
        excess = queued + tokens - limits.max_queued_tokens
        if tokens and excess > 0:
            alone = tokens > limits.max_queued_tokens
            hint = (
                "; documents: together they are more than max_queued_tokens, so that the call is admitted "
                "only while no other is in flight; send fewer documents a call, or lower options.max_chunks"
            )
            raise _exhausted(
                f"the queue holds {queued} of {limits.max_queued_tokens} tokens: no room for {tokens}"
                f"{hint if alone else ''}",
                Reason.QUEUE_FULL,
                own_s * excess / tokens,
            )
        if texts.is_full_for(reservation.held):
            raise _exhausted(
                f"calls in flight hold {texts.held} of {texts.size} characters: no room for "
                f"{reservation.held}",
                Reason.TEXTS_FULL,
                1.0,
            )
        mine = float(left[self._accounts[account][0]]) if account in self._accounts else 0.0
        of_batch = sum(
            float(left[number])
            for each, (number, _) in self._accounts.items()
            if each.priority is CallPriority.BATCH
        )
        size = limits.max_queued_tokens
        if tokens and not within_share(account, tokens, mine=mine, of_batch=of_batch, held=queued, size=size):
            raise _exhausted(
                f"the queue holds {queued} of {size} tokens, {mine:.0f} of them this caller's: {tokens} more "
                "are beyond its share",
                Reason.SHARE,
                own_s,
            )
        if not texts.shares(account, reservation.held):
            raise _exhausted(
                f"calls in flight hold {texts.held} of {texts.size} characters, {texts.of(account)} of them "
                f"this caller's: {reservation.held} more are beyond its share",
                Reason.SHARE,
                1.0,
            )

    def _forecast(self, reservation: Reservation, columns: FloatArray, now_s: float) -> Forecast:
        """Forecast a call in the fair order of the callers."""
        owner = int(columns[ACCOUNT, 0])
        count = max(owner, len(self._accounts) + len(self._free_numbers) - 1) + 1
        weights, leads_s, is_batch = np.ones(count), np.zeros(count), np.zeros(count, np.bool_)
        for each, number in ((reservation.account, owner), *((a, n) for a, (n, _) in self._accounts.items())):
            weights[number] = each.weight
            leads_s[number] = self.order.shares[each.priority].lead_s(each)
            is_batch[number] = each.priority is CallPriority.BATCH
        accounts = Accounts(weights, leads_s, is_batch, self.order.progress(reservation.account.priority))
        new = self._shares(columns)
        return forecast_among(
            self._shares(self._table), self._owners(self._table), new, owner, accounts, now_s
        )

    def _owners(self, table: FloatArray) -> NDArray[np.intp]:
        """Return the account number of each column. Shape: table (8, N) -> (N,)."""
        owners: NDArray[np.intp] = table[ACCOUNT].astype(np.intp)
        return owners


def _tokens_left(table: FloatArray) -> int:
    return round(float(np.maximum(table[TOKENS_LEFT], 0.0).sum()))


def _exhausted(message: str, reason: Reason, retry_after_s: float) -> ResourceExhausted:
    return ResourceExhausted(message, reason=reason, retry_after_ms=max(1, round(retry_after_s * 1000)))


def _rounded(seconds: float) -> str:
    """Format seconds for people: 94, 9.4, 0.094."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}" if seconds > 0 else "0"

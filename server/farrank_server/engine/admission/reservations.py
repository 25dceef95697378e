"""Is there room for a whole call, and can its deadline hold? Asked before any work is done for it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.forecast import Share, forecast
from farrank_server.errors import DeadlineExceeded, InvalidArgument, Reason, ResourceExhausted


@dataclass(frozen=True, slots=True)
class Request:
    """What admission knows of a call: its estimated tokens, and characters to be read and to be held.

    Times are seconds of one clock of the caller's.
    """

    ranker: str
    tokens: int
    unread: int
    held: int
    arrival_s: float
    deadline_s: float


@dataclass(slots=True, eq=False)
class Reservation:
    """An admitted request's share: how many tokens it has in all, and what is still to be done of it."""

    request: Request
    tokens: int
    tokens_left: int
    unread: int


class Admission:
    """Keeps count of outstanding work, admits a request as a whole or refuses it. Thread-safe.

    `speeds` gives each ranker's encoding speed in tokens per second, `reading` the tokenizer pool's in
    characters per second; one device serves all rankers.
    """

    def __init__(self, limits: LimitsConfig, speeds: Mapping[str, Speed], reading: Speed) -> None:
        self._limits = limits
        self._speeds = speeds
        self._reading = reading
        self._lock = threading.Lock()
        self._tickets: set[Reservation] = set()

    def outstanding_tokens(self, ranker: str) -> int:
        """Tokens admitted and not yet encoded: counted where tokenized, estimated where not."""
        with self._lock:
            return sum(each.tokens_left for each in self._tickets if each.request.ranker == ranker)

    def held_characters(self) -> int:
        """Characters of the texts of all admitted calls."""
        with self._lock:
            return self._held()

    def admit(self, request: Request, now_s: float) -> Reservation:
        """Take a request in.

        Raises: InvalidArgument if no queue could ever hold it; DeadlineExceeded if it would be late even if
        nothing else ran; ResourceExhausted (with a hint when to come back) if there is no room for it now, or
        no time before its deadline or before those of requests admitted earlier.
        """
        limit = self._limits.max_queued_tokens
        if request.tokens > limit:
            raise InvalidArgument(
                f"documents: about {request.tokens} tokens together, more than max_queued_tokens "
                f"{limit}; send fewer documents a call, or lower options.max_chunks"
            )
        with self._lock:
            # The measured speed may be wrong, and nothing corrects it while calls are refused: an idle
            # server always tries.
            if self._tickets:
                self._check_room(request)
                self._check_time(request, now_s)
            ticket = Reservation(request, request.tokens, request.tokens, request.unread)
            self._tickets.add(ticket)
            return ticket

    def read(self, ticket: Reservation, characters: int) -> None:
        """Note that so many characters of the request have been tokenized."""
        with self._lock:
            ticket.unread -= characters

    def correct(self, ticket: Reservation, tokens: int) -> None:
        """Put the counted number of tokens in the place of the estimate."""
        with self._lock:
            ticket.tokens_left += tokens - ticket.tokens
            ticket.tokens = tokens

    def encoded(self, ticket: Reservation, tokens: int) -> None:
        """Note that so many tokens of the request have been encoded."""
        with self._lock:
            ticket.tokens_left -= tokens

    def release(self, ticket: Reservation) -> None:
        """Give back whatever the request still holds; it is answered, refused or gone."""
        with self._lock:
            self._tickets.discard(ticket)

    def _check_room(self, request: Request) -> None:
        limits = self._limits
        queued = sum(max(0, each.tokens_left) for each in self._tickets)
        if queued + request.tokens > limits.max_queued_tokens:
            excess = queued + request.tokens - limits.max_queued_tokens
            raise ResourceExhausted(
                f"the queue holds {queued} of {limits.max_queued_tokens} tokens: "
                f"no room for {request.tokens}",
                reason=Reason.QUEUE_FULL,
                retry_after_ms=_milliseconds(excess / self._speeds[request.ranker].per_s),
            )
        held = self._held()
        if held + request.held > limits.max_held_characters:
            raise ResourceExhausted(
                f"calls in flight hold {held} of {limits.max_held_characters} characters: "
                f"no room for {request.held}",
                reason=Reason.TEXTS_FULL,
                retry_after_ms=1000,
            )

    def _check_time(self, request: Request, now_s: float) -> None:
        reading_s = sum(each.unread for each in self._tickets) / self._reading.per_s
        reading_s = max(0.0, reading_s) + request.unread / self._reading.per_s
        own_s = request.tokens / self._speeds[request.ranker].per_s
        remaining_s = request.deadline_s - now_s
        if own_s + request.unread / self._reading.per_s > remaining_s:
            raise DeadlineExceeded(
                f"deadline: {remaining_s:.3f} s are left, the call needs about {own_s:.3f} s even alone",
                reason=Reason.DEADLINE_TOO_SHORT,
            )
        new = Share(own_s, request.arrival_s + own_s, request.deadline_s)
        seen = forecast([self._share(each) for each in self._tickets], new, now_s)
        usable_s = remaining_s * self._limits.deadline_margin
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

    def _held(self) -> int:
        return sum(each.request.held for each in self._tickets)

    def _share(self, ticket: Reservation) -> Share:
        request, per_s = ticket.request, self._speeds[ticket.request.ranker].per_s
        due_s = request.arrival_s + ticket.tokens / per_s
        return Share(max(0, ticket.tokens_left) / per_s, due_s, request.deadline_s)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))

"""Is there room for a whole request, and can its deadline hold? Asked before any work is done for it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from farrank_server.config import LimitsConfig
from farrank_server.engine.speed import Speed
from farrank_server.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted

# An idle server refuses a call only if it would take this many times what its deadline leaves.
IDLE_OPTIMISM = 4.0


@dataclass(slots=True, eq=False)
class Ticket:
    """An admitted request's share of the queue: what of it is still to be read and to be encoded."""

    ranker: str
    estimated_tokens: int
    tokens: int
    characters: int


class Admission:
    """Keeps count of outstanding work, admits a request as a whole or refuses it. Thread-safe.

    `speeds` gives each ranker's encoding speed in tokens per second, `reading` the tokenizer pool's in
    characters per second; one device serves all rankers, so their backlogs add up.
    """

    def __init__(self, limits: LimitsConfig, speeds: Mapping[str, Speed], reading: Speed) -> None:
        self._limits = limits
        self._speeds = speeds
        self._reading = reading
        self._lock = threading.Lock()
        self._tokens = dict.fromkeys(speeds, 0)
        self._characters = 0
        self._tickets: set[Ticket] = set()

    def outstanding_tokens(self, ranker: str) -> int:
        """Tokens admitted and not yet encoded: counted where tokenized, estimated where not."""
        return self._tokens[ranker]

    def backlog_s(self) -> float:
        """How long the device and the tokenizers need for what is admitted already."""
        encoding = sum(tokens / self._speeds[ranker].per_s for ranker, tokens in self._tokens.items())
        return max(0.0, encoding) + self._characters / self._reading.per_s

    def admit(self, ranker: str, tokens: int, characters: int, remaining_s: float) -> Ticket:
        """Take in a request of so many (estimated) tokens whose deadline is `remaining_s` away.

        Raises: InvalidArgument if no queue could ever hold it, DeadlineExceeded if even an idle server
        would be late, ResourceExhausted (with a hint when to come back) if the queue is too long now.
        """
        limits = self._limits
        if tokens > limits.max_queued_tokens:
            raise InvalidArgument(
                f"documents: about {tokens} tokens together, more than max_queued_tokens "
                f"{limits.max_queued_tokens}; send fewer documents a call, or lower options.max_chunks"
            )
        own_s = tokens / self._speeds[ranker].per_s + characters / self._reading.per_s
        with self._lock:
            backlog_s = self.backlog_s()
            # The measured speed may be wrong, and nothing corrects it while every call is refused: an idle
            # server tries what it only probably cannot do in time.
            hopeless_s = remaining_s if self._tickets else remaining_s * IDLE_OPTIMISM
            if own_s > hopeless_s:
                raise DeadlineExceeded(
                    f"deadline: {remaining_s:.3f} s are left, the call needs about {own_s:.3f} s even alone",
                    reason="deadline_too_short",
                )
            queued = sum(self._tokens.values())
            if self._tickets and queued + tokens > limits.max_queued_tokens:
                excess = queued + tokens - limits.max_queued_tokens
                raise ResourceExhausted(
                    f"the queue holds {queued} of {limits.max_queued_tokens} tokens: no room for {tokens}",
                    reason="queue_full",
                    retry_after_ms=_milliseconds(excess / self._speeds[ranker].per_s),
                )
            usable_s = remaining_s * limits.deadline_margin
            if self._tickets and backlog_s + own_s > usable_s:
                raise ResourceExhausted(
                    f"a backlog of about {backlog_s:.2f} s leaves no time for this call of about "
                    f"{own_s:.2f} s before its deadline in {remaining_s:.2f} s",
                    reason="backlog",
                    retry_after_ms=_milliseconds(backlog_s + own_s - usable_s),
                )
            ticket = Ticket(ranker, tokens, tokens, characters)
            self._tickets.add(ticket)
            self._tokens[ranker] += tokens
            self._characters += characters
            return ticket

    def read(self, ticket: Ticket, characters: int) -> None:
        """Note that so many characters of the request have been tokenized."""
        with self._lock:
            if ticket in self._tickets:
                ticket.characters -= characters
                self._characters -= characters

    def add_tokens(self, ticket: Ticket, tokens: int) -> None:
        """Correct the outstanding tokens: up by what an estimate lacked, down by what was encoded."""
        with self._lock:
            if ticket in self._tickets:
                ticket.tokens += tokens
                self._tokens[ticket.ranker] += tokens

    def release(self, ticket: Ticket) -> None:
        """Give back whatever the request still holds; it is answered, refused or gone."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
                self._tokens[ticket.ranker] -= ticket.tokens
                self._characters -= ticket.characters


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))

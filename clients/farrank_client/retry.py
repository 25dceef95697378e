"""Retries of failed calls.

gRPC's own retries (a service config's `retryPolicy`) have two faults. They send a message that is too large
for the server five times, because its status is RESOURCE_EXHAUSTED, like that of a full queue. They also wait
for a pushback that ends after the deadline, so that the caller waits in vain and gets DEADLINE_EXCEEDED
instead of the server's reason. So the client retries itself, with the names and the meaning of gRFC A6.
Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
"""

import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from farrank_client.errors import FarrankError, Internal, ResourceExhausted, Unavailable

# Ray Serve's proxy reports a call whose replica died with INTERNAL and the message of Ray's ActorDiedError
# or, before Ray knows of the death, of its ActorUnavailableError. An actor that could not be created has
# another message, and stays an error.
_DEAD_ACTOR = re.compile(
    r"The actor (died unexpectedly before finishing this task\.|[0-9a-f]+ is unavailable: )"
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between attempts: the server's retry delay if it sent one, else exponential from 0.1 s.

    `max_attempts` includes the first attempt; 1 means no retry. Each pause grows by a random share of up to
    `jitter`, so that callers refused at the same time do not all retry at the same time.
    """

    max_attempts: int = 5
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    backoff_multiplier: float = 2.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts: {self.max_attempts} is not allowed; it must be at least 1")

    def pause_s(self, error: FarrankError, attempt: int) -> float | None:
        """Return the pause after the `attempt`-th failure, counted from 1; None: do not retry."""
        hint_s = error.retry_after_s
        is_gone = isinstance(error, Unavailable) or _is_dead_actor(error)
        if attempt >= self.max_attempts or (hint_s is not None and hint_s < 0):
            return None
        if is_gone and hint_s is None:
            # 2.0 ** 1100 would overflow; any ceiling is reached long before.
            backoff_s = self.initial_backoff_s * self.backoff_multiplier ** min(attempt - 1, 64)
            return min(backoff_s, self.max_backoff_s)
        # ResourceExhausted without a retry delay is not a full queue: gRPC reports a message that is too
        # large.
        return hint_s if is_gone or isinstance(error, ResourceExhausted) else None


def _is_dead_actor(error: FarrankError) -> bool:
    """Whether a replica on Ray died during the call; ranking has no side effects, so another may answer."""
    return isinstance(error, Internal) and _DEAD_ACTOR.match(error.message) is not None


DEFAULT_RETRY = RetryPolicy()
NO_RETRY = RetryPolicy(max_attempts=1)
# Only the deadline ends the wait; with a low ceiling the wait ends soon after the server is ready.
UNTIL_HEALTHY = RetryPolicy(max_attempts=sys.maxsize, initial_backoff_s=0.05, max_backoff_s=0.5)


class Attempts:
    """The attempts of one call under one deadline.

    `pause_s_after(error)` is also None if the pause would outlast the deadline, so that the caller gets the
    server's reason at once.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        timeout_s: float,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._policy = policy
        self._clock_s = clock_s
        self._uniform = uniform
        self._deadline_s = clock_s() + timeout_s
        self._failures = 0
        self._told = ""

    def remaining_s(self) -> float:
        """Return the time left for the next attempt."""
        return max(0.0, self._deadline_s - self._clock_s())

    def pause_s_after(self, error: FarrankError) -> float | None:
        """Count a failure and return the pause before the next attempt; None: give up.

        A server that has drained cannot be reached at the next attempt. The error's message then includes
        the server's earlier message.
        """
        self._failures += 1
        if error.reached_server:
            self._told = error.message
        elif self._told:
            error.message = f"{error.message}; before that: {self._told}"
            error.args = (error.message,)
        pause_s = self._policy.pause_s(error, self._failures)
        if pause_s is None:
            return None
        pause_s *= self._uniform(1.0, 1.0 + self._policy.jitter)
        return pause_s if pause_s < self.remaining_s() else None

"""The policy's choice of failures to retry, and of times, with a fake clock."""

import pytest

from farrank_client import (
    DeadlineExceeded,
    FarrankError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RetryPolicy,
    Unavailable,
)
from farrank_client.retry import UNTIL_HEALTHY, Attempts


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def attempts(policy: RetryPolicy, timeout_s: float, clock: Clock, stretch: float = 1.0) -> Attempts:
    return Attempts(
        policy, timeout_s, clock_s=clock, uniform=lambda low, high: low + (high - low) * (stretch - 1)
    )


def test_pauses_grow_to_their_ceiling() -> None:
    policy = RetryPolicy(max_attempts=6, initial_backoff_s=1, max_backoff_s=5, backoff_multiplier=2)

    assert [policy.pause_s(Unavailable("x"), n) for n in range(1, 7)] == [1, 2, 4, 5, 5, None]


@pytest.mark.parametrize("kind", [ResourceExhausted, Unavailable])
def test_the_servers_hint_is_honoured(kind: type[FarrankError]) -> None:
    assert RetryPolicy().pause_s(kind("x", retry_after_s=2.5), 1) == 2.5
    assert RetryPolicy().pause_s(kind("x", retry_after_s=0), 1) == 0
    assert RetryPolicy().pause_s(kind("x", retry_after_s=-1), 1) is None


def test_a_message_that_is_too_large_is_not_sent_again() -> None:
    assert RetryPolicy().pause_s(ResourceExhausted("larger than max"), 1) is None


@pytest.mark.parametrize("kind", [InvalidArgument, DeadlineExceeded, Internal, FarrankError])
def test_other_failures_are_final(kind: type[FarrankError]) -> None:
    assert RetryPolicy().pause_s(kind("x"), 1) is None
    assert RetryPolicy().pause_s(kind("x", retry_after_s=1), 1) is None


def test_pauses_are_stretched_never_shortened() -> None:
    policy = RetryPolicy(jitter=0.5)
    hint = ResourceExhausted("x", retry_after_s=2)

    assert attempts(policy, 60, Clock(), stretch=1.0).pause_s_after(hint) == 2
    assert attempts(policy, 60, Clock(), stretch=2.0).pause_s_after(hint) == 3


def test_a_pause_beyond_the_deadline_gives_up_at_once() -> None:
    clock = Clock()
    these = attempts(RetryPolicy(), 5, clock)

    assert these.pause_s_after(ResourceExhausted("x", retry_after_s=4)) == 4
    clock.now_s += 4
    assert these.remaining_s() == 1
    assert these.pause_s_after(ResourceExhausted("x", retry_after_s=4)) is None


def test_waiting_for_health_ends_with_the_deadline_alone() -> None:
    assert UNTIL_HEALTHY.pause_s(Unavailable("x"), 5000) == UNTIL_HEALTHY.max_backoff_s


def test_at_least_one_attempt() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RetryPolicy(max_attempts=0)


# Ray 2.60, ray/exceptions.py: ActorDiedError of a dead actor, ActorUnavailableError of one whose death is not
# known yet, and ActorDiedError of one that could not be created.
DIED = "The actor died unexpectedly before finishing this task.\n\tclass_name: ServeReplica\n\tactor_id: 1f"
GONE = (
    "The actor 14f8e39f1b96ac3edfa3580101000000 is unavailable: The actor is temporarily unavailable: "
    "RpcError: RPC error: Socket closed rpc_code: 14. The task may or may not have been executed on the "
    "actor."
)
NOT_CREATED = "The actor died because of an error raised in its creation task, ray::ServeReplica.__init__()"


def test_only_a_dead_actor_makes_an_internal_error_worth_another_attempt() -> None:
    for message in (DIED, GONE):
        assert RetryPolicy().pause_s(Internal(message), 1) == RetryPolicy().initial_backoff_s
    assert RetryPolicy().pause_s(Internal(DIED, retry_after_s=-1), 1) is None
    for message in (NOT_CREATED, f"a bug: {DIED}", f"a bug: {GONE}", "The actor died"):
        assert RetryPolicy().pause_s(Internal(message), 1) is None
    assert RetryPolicy().pause_s(InvalidArgument(DIED), 1) is None

"""Retries against a real server that fails a number of times and sends its pushback."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from farrank_client import Internal, ResourceExhausted, RetryPolicy, Unavailable

if TYPE_CHECKING:
    from support.scripted_server import Caller, ScriptedServer


def rerank(client: Any) -> Any:
    return client.rerank("q", ["x"])


def test_a_full_server_is_called_again_at_the_announced_time(call: Caller, scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback="200", times=2)

    assert call(scripted.target, rerank).ranker.name == "minilm"

    pauses_s = [later - earlier for earlier, later in pairwise(scripted.arrivals_s)]
    assert len(pauses_s) == 2
    assert all(0.19 < pause_s < 30 for pause_s in pauses_s)


def test_a_draining_server_is_asked_again(call: Caller, scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.UNAVAILABLE, times=2)

    call(scripted.target, rerank, timeout_s=9)

    assert len(scripted.requests) == 3
    first_s, *_, last_s = scripted.timeouts_s
    assert last_s < first_s - 0.2, "all attempts share one deadline"


@pytest.mark.parametrize("pushback", [None, "-1"])
def test_no_hint_and_a_refusing_one_are_final(
    call: Caller, scripted: ScriptedServer, pushback: str | None
) -> None:
    scripted.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback=pushback)

    with pytest.raises(ResourceExhausted):
        call(scripted.target, rerank)

    assert len(scripted.requests) == 1


def test_an_over_large_message_is_refused_once(call: Caller, scripted: ScriptedServer) -> None:
    started_s = time.monotonic()

    with pytest.raises(ResourceExhausted, match="larger than max") as caught:
        call(scripted.target, lambda client: client.rerank("q", ["x" * (17 * 2**20)]))

    assert caught.value.retry_after_s is None
    # The call was not sent again until its deadline of a minute.
    assert time.monotonic() - started_s < 50


def test_a_hint_beyond_the_deadline_is_passed_on_at_once(call: Caller, scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback="300000")
    started_s = time.monotonic()

    with pytest.raises(ResourceExhausted) as caught:
        call(scripted.target, rerank, timeout_s=200)

    assert caught.value.retry_after_s == 300
    assert time.monotonic() - started_s < 150


def test_attempts_are_counted(call: Caller, scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.UNAVAILABLE, "draining", times=9)

    with pytest.raises(Unavailable, match="draining"):
        call(scripted.target, rerank, retry=RetryPolicy(max_attempts=3, initial_backoff_s=0.01))

    assert len(scripted.requests) == 3


def test_wrong_requests_are_not_retried(call: Caller, scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.INVALID_ARGUMENT, "query: empty")

    with pytest.raises(Exception, match="query: empty"):
        call(scripted.target, rerank)

    assert len(scripted.requests) == 1


def test_calls_lost_with_a_dead_actor_of_ray_are_retried(call: Caller, scripted: ScriptedServer) -> None:
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: ServeReplica"
    scripted.fail(grpc.StatusCode.INTERNAL, died)

    assert call(scripted.target, rerank).ranker.name == "minilm"
    assert len(scripted.requests) == 2

    scripted.fail(grpc.StatusCode.INTERNAL, "a bug")
    with pytest.raises(Internal, match="a bug"):
        call(scripted.target, rerank)
    assert len(scripted.requests) == 3

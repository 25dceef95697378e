"""Failures as an application sees them."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import farrank_client
from farrank_client import DeadlineExceeded, FarrankError, ResourceExhausted, RetryPolicy, Unavailable
from support.scripted_server import ScriptedServer, start_scripted

if TYPE_CHECKING:
    from support.scripted_server import Caller

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("INVALID_ARGUMENT", "InvalidArgument"),
        ("NOT_FOUND", "NotFound"),
        ("RESOURCE_EXHAUSTED", "ResourceExhausted"),
        ("DEADLINE_EXCEEDED", "DeadlineExceeded"),
        ("UNAVAILABLE", "Unavailable"),
        ("UNAUTHENTICATED", "AccessDenied"),
        ("PERMISSION_DENIED", "AccessDenied"),
        ("UNIMPLEMENTED", "Unimplemented"),
        ("FAILED_PRECONDITION", "FailedPrecondition"),
        ("INTERNAL", "Internal"),
        ("DATA_LOSS", "FarrankError"),
    ],
)
def test_each_code_has_its_exception(call: Caller, scripted: ScriptedServer, code: str, name: str) -> None:
    scripted.fail(grpc.StatusCode[code], "the server's own words")

    with pytest.raises(FarrankError) as caught:
        call(scripted.target, lambda client: client.rankers(), retry=ONCE)

    assert type(caught.value) is getattr(farrank_client, name)
    assert caught.value.code is grpc.StatusCode[code]
    assert caught.value.message == str(caught.value) == "the server's own words"


@pytest.mark.parametrize(
    ("pushback", "retry_after_s"), [("1500", 1.5), ("-1", -1.0), ("soon", -1.0), (None, None)]
)
def test_the_hint_when_to_come_back(
    call: Caller, scripted: ScriptedServer, pushback: str | None, retry_after_s: float | None
) -> None:
    scripted.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback=pushback)

    with pytest.raises(ResourceExhausted) as caught:
        call(scripted.target, lambda client: client.rankers(), retry=ONCE)

    assert caught.value.retry_after_s == retry_after_s


def test_a_server_that_is_not_there(call: Caller) -> None:
    with pytest.raises(Unavailable):
        call("127.0.0.1:1", lambda client: client.rerank("q", ["x"]), retry=ONCE)


@pytest.mark.parametrize("is_of_the_call", [True, False])
def test_a_deadline_ends_a_call(call: Caller, scripted: ScriptedServer, is_of_the_call: bool) -> None:
    scripted.hold, timeout_s = True, 0.3

    # On a busy machine a call may take longer to arrive.
    while not scripted.arrived.is_set():
        deadline = {"timeout_s": timeout_s}
        of_the_call, of_the_client = (deadline, {}) if is_of_the_call else ({}, deadline)
        with pytest.raises(DeadlineExceeded):
            call(
                scripted.target,
                lambda client, its=of_the_call: client.rerank("q", ["x"], **its),
                **of_the_client,
            )
        timeout_s *= 4

    assert scripted.timeouts_s[0] < 50, "the call had the default of a minute"
    assert scripted.caller_left.wait(60)


def test_every_call_carries_a_deadline(call: Caller, scripted: ScriptedServer) -> None:
    def use(client: Any) -> Any:
        return client.rerank("q", ["x"])

    call(scripted.target, use)
    call(scripted.target, use, timeout_s=30)

    default_s, own_s = scripted.timeouts_s
    assert 45 < default_s <= 61
    # The wire rounds a timeout up by up to a hundredth.
    assert 15 < own_s <= 30.1


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(ResourceExhausted("no room", retry_after_s=1.5)))

    assert (error.message, error.retry_after_s) == ("no room", 1.5)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("127.0.0.1:1", r"cannot connect to 127\.0\.0\.1:1: no server listens there \(connection refused\)"),
        ("nowhere.invalid:1", "cannot connect to nowhere.invalid:1: there is no host with this name"),
        ("localhost:x", "cannot connect to localhost:x: its port is not a number"),
    ],
)
def test_a_server_that_cannot_be_reached_is_reported_in_one_line(
    call: Caller, target: str, message: str
) -> None:
    with pytest.raises(Unavailable, match=f"^{message}$"):
        call(target, lambda client: client.rankers(), retry=ONCE)


@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_url_is_no_target(call: Caller, scheme: str) -> None:
    with pytest.raises(ValueError, match=r"is a URL; give HOST:PORT, here 'localhost:50051'"):
        call(f"{scheme}://localhost:50051/", lambda client: client.rankers())


def test_a_servers_drain_and_its_end_are_both_reported(call: Caller) -> None:
    class Ending(threading.Event):
        def set(self) -> None:
            # From here on no connection is accepted, but this call still gets its answer.
            server.stop(60)
            super().set()

    scripted = ScriptedServer(arrived=Ending())
    server = start_scripted(scripted, None)
    scripted.fail(grpc.StatusCode.UNAVAILABLE, "the server is draining")

    def use(client: Any) -> Any:
        return client.rankers()

    patient = RetryPolicy(max_attempts=4, initial_backoff_s=0.4)
    with pytest.raises(Unavailable, match=r"no server listens there .*; before that: the server is draining"):
        call(scripted.target, use, retry=patient)

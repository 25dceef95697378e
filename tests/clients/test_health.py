"""The health check against the standard's own servicer."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from farrank_client import FarrankError, Unavailable
from support.waiting import when

if TYPE_CHECKING:
    from support.scripted_server import Caller, ScriptedServer


@pytest.mark.parametrize(("status", "healthy"), [("SERVING", True), ("NOT_SERVING", False)])
def test_the_status_is_understood(call: Caller, scripted: ScriptedServer, status: str, healthy: bool) -> None:
    scripted.set_health(status)

    assert call(scripted.target, lambda client: client.is_healthy()) is healthy


def test_an_absent_server_is_not_healthy(call: Caller) -> None:
    assert call("127.0.0.1:1", lambda client: client.is_healthy()) is False


def test_a_port_that_does_not_answer_is_not_healthy(call: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"

        assert call(target, lambda client: client.is_healthy(timeout_s=0.3)) is False


def test_waiting_ends_when_the_server_is_ready(call: Caller, scripted: ScriptedServer) -> None:
    scripted.set_health("NOT_SERVING")

    def become_ready() -> None:
        when(lambda: scripted.checks, lambda checks: checks > 1, pause_s=0.01)
        scripted.set_health("SERVING")

    ready = threading.Thread(target=become_ready)
    ready.start()

    # A client that did not notice it would wait for longer than a test may take.
    call(scripted.target, lambda client: client.wait_until_healthy(3600))

    ready.join()


def test_waiting_ends_with_the_last_reason(call: Caller, scripted: ScriptedServer) -> None:
    scripted.set_health("NOT_SERVING")
    timeout_s, said = 0.5, ""

    # On a busy machine the first answer may take longer.
    while "NOT_SERVING" not in said and timeout_s < 60:
        with pytest.raises(FarrankError) as caught:
            call(scripted.target, lambda client, timeout_s=timeout_s: client.wait_until_healthy(timeout_s))
        said, timeout_s = str(caught.value), 4 * timeout_s

    assert isinstance(caught.value, Unavailable)
    assert "NOT_SERVING" in said

"""The health check against the standard's own servicer."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from farrank_client import Unavailable

if TYPE_CHECKING:
    from support.scripted_server import Caller, ScriptedServer


@pytest.mark.parametrize(("status", "healthy"), [("SERVING", True), ("NOT_SERVING", False)])
def test_the_status_is_understood(call: Caller, scripted: ScriptedServer, status: str, healthy: bool) -> None:
    scripted.set_health(status)

    assert call(scripted.target, lambda client: client.is_healthy()) is healthy


def test_nobody_there_is_not_healthy(call: Caller) -> None:
    assert call("127.0.0.1:1", lambda client: client.is_healthy()) is False


def test_a_port_that_does_not_answer_is_not_healthy(call: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"

        assert call(target, lambda client: client.is_healthy(timeout_s=0.3)) is False


def test_waiting_ends_when_the_server_is_ready(call: Caller, scripted: ScriptedServer) -> None:
    scripted.set_health("NOT_SERVING")
    ready = threading.Timer(0.3, scripted.set_health, ["SERVING"])
    ready.start()
    started_s = time.monotonic()

    call(scripted.target, lambda client: client.wait_until_healthy(20))

    assert 0.2 < time.monotonic() - started_s < 15, "it waited on"
    ready.join()


def test_waiting_ends_with_the_last_reason(call: Caller, scripted: ScriptedServer) -> None:
    scripted.set_health("NOT_SERVING")

    with pytest.raises(Unavailable, match="NOT_SERVING"):
        call(scripted.target, lambda client: client.wait_until_healthy(0.5))

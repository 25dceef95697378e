"""deploy/envoy/envoy.yaml, run by Envoy itself with servers: calls that pass, and the choice of replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from farrank_bench.scaling.ways import envoy_before
from farrank_cli.spawn import spawned_server
from farrank_client import Client, DeadlineExceeded, FarrankError, ResourceExhausted, RetryPolicy
from support.scripted_server import ScriptedServer, start_scripted

SERVICE = "farrank.v1.RerankService"
ONCE = RetryPolicy(max_attempts=1)


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.02)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ScriptedServer, ScriptedServer, str]]:
    """Two healthy servers, and the address of Envoy in front of them."""
    scripted = ScriptedServer(), ScriptedServer()
    servers = [start_scripted(each, None) for each in scripted]
    for each in scripted:
        each.health.set(SERVICE, HealthCheckResponse.SERVING)
    with envoy_before([each.target for each in scripted], tmp_path) as address:
        yield (*scripted, address)
    for each, server in zip(scripted, servers, strict=True):
        each.caller_left.set()
        server.stop(0).wait()


def test_calls_pass_through_and_go_to_the_less_busy_replica(
    pair: tuple[ScriptedServer, ScriptedServer, str],
) -> None:
    first, second, address = pair
    with Client(address, retry=ONCE) as client:
        # The deadline passes, beyond Envoy's own 15 s, and so does the pushback.
        client.rerank("q", ["x"], timeout_s=60)
        (timeout_s,) = first.timeouts_s + second.timeouts_s
        assert 50 < timeout_s < 70, "gRPC rounds it up somewhat"
        for each in (first, second):
            each.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", pushback="2500")
        with pytest.raises(ResourceExhausted, match="no room") as refused:
            client.rerank("q", ["x"])
        assert refused.value.retry_after_s == 2.5
        assert len(first.requests) + len(second.requests) == 2, "it was tried again"
        for each in (first, second):
            each.failures.clear()

        # A replica with a call gets fewer other calls.
        first.hold = second.hold = True
        with ThreadPoolExecutor(1) as caller:
            held = caller.submit(client.rerank, "q", ["x"], timeout_s=600)
            until(lambda: len(first.requests) + len(second.requests) == 3)
            first.hold = second.hold = False
            busy = max((first, second), key=lambda each: each.arrivals_s[-1:])
            before = len(busy.requests)
            for _ in range(200):
                client.rerank("q", ["x"])
            assert len(busy.requests) - before < 80
            # A replica that reports to be unhealthy gets no calls.
            other = second if busy is first else first
            other.health.set(SERVICE, HealthCheckResponse.NOT_SERVING)
            until(lambda: _answered_by(client, busy, other))
            before = len(other.requests)
            for _ in range(50):
                client.rerank("q", ["x"])
            assert len(other.requests) == before
            busy.caller_left.set()
            held.result(60)

        # A deadline that passes also ends the call at the replica.
        busy.caller_left.clear()
        busy.hold, asked, timeout_s = True, len(busy.requests), 0.5
        # On a busy machine a call may take longer to arrive there.
        while len(busy.requests) == asked:
            with pytest.raises(DeadlineExceeded):
                client.rerank("q", ["x"], timeout_s=timeout_s)
            timeout_s *= 4
        assert busy.caller_left.wait(60)


def _answered_by(client: Client, wanted: ScriptedServer, other: ScriptedServer) -> bool:
    """Return whether one server alone answers ten calls in a row."""
    before = len(other.requests), len(wanted.requests)
    for _ in range(10):
        client.rerank("q", ["x"])
    return (len(other.requests), len(wanted.requests)) == (before[0], before[1] + 10)


def test_a_replica_that_drains_behind_envoy_loses_no_call(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=error"]
    with ExitStack() as opened, ThreadPoolExecutor(8) as callers:
        servers = [opened.enter_context(spawned_server(arguments)) for _ in range(2)]
        address = opened.enter_context(envoy_before([each.address for each in servers], tmp_path))
        ending = threading.Event()
        opened.callback(ending.set)
        client = opened.enter_context(Client(address))
        trying_once = opened.enter_context(Client(address, retry=ONCE))

        answered = [0] * 6

        def ask(number: int) -> None:
            while not ending.is_set():
                assert len(client.rerank("sea", ["the river", "the sea"]).results) == 2
                answered[number] += 1
                ending.wait(0.02)

        def until_each_has_ten_more() -> None:
            before = list(answered)
            until(
                lambda: (
                    all(now >= then + 10 for now, then in zip(answered, before, strict=True))
                    or any(each.done() for each in asking)
                )
            )

        def ask_once() -> set[str]:
            refusals: set[str] = set()
            while not ending.is_set():
                try:
                    trying_once.rerank("sea", ["the river", "the sea"])
                except FarrankError as error:
                    refusals.add(f"{type(error).__name__}: {error}")
                ending.wait(0.02)
            return refusals

        once = [callers.submit(ask_once) for _ in range(2)]
        asking = [callers.submit(ask, number) for number in range(6)]
        until_each_has_ten_more()
        servers[0].process.terminate()
        assert servers[0].process.wait(120) == 0
        until_each_has_ten_more()
        ending.set()
        for each in asking:
            each.result(60)
        # No call is cut off: calls without an answer are refused with the server's own message.
        refusals = set[str]().union(*(each.result(60) for each in once))
        assert refusals <= {"Unavailable: the server is draining; ask another replica"}

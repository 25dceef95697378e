"""The choice of a call's replica: the policy with its own clock and chance, and real servers on loopback."""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from farrank_client import (
    Client,
    DeadlineExceeded,
    RetryPolicy,
    Unavailable,
    balanced,
    balancing,
    lookup,
)
from farrank_client.balancing import AVOIDED_S, LATE_PROBES, PROBES, REPORT_S, Replicas, read_backlog_s
from support.scripted_server import ScriptedServer, start_scripted
from support.waiting import when

if TYPE_CHECKING:
    from support.scripted_server import Caller

SERVICE = "farrank.v1.RerankService"
ONCE = RetryPolicy(max_attempts=1)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def replicas(clock: Clock, count: int, most: int | None = None, seed: int = 1) -> Replicas[str]:
    made: Replicas[str] = Replicas(str, most, clock_s=clock, chance=random.Random(seed))
    made.update([f"10.0.0.{number}:1" for number in range(count)])
    return made


@pytest.mark.parametrize(
    ("value", "backlog_s"),
    [
        ("TEXT named_metrics.backlog_s=0.2500", 0.25),
        ("TEXT cpu_utilization=0.3, named_metrics.backlog_s=12, eps=1", 12.0),
        ("TEXT named_metrics.other_backlog_s=3", 0.0),
        ("TEXT named_metrics.backlog_s=x", 0.0),
        ("", 0.0),
    ],
)
def test_a_load_report_is_read(value: str, backlog_s: float) -> None:
    assert read_backlog_s([("other", "1"), ("endpoint-load-metrics", value)]) == backlog_s
    assert read_backlog_s(None) == 0.0


def test_the_least_backlog_is_chosen_and_own_calls_since_the_report_count_first(clock: Clock) -> None:
    known = replicas(clock, 3)
    first, second, third = known.all()
    for each, backlog_s in ((first, 0.3), (second, 0.1), (third, 0.2)):
        known.heard(each, known.asks(each), backlog_s)
    assert [known.begin([first, second, third]) for _ in range(4)] == [second, third, first, second]
    # A report that was requested after these calls includes them.
    known.heard(first, known.asks(first), 0.5)
    assert known.begin([first, second, third]) is first
    # A call that began between the request and the report may be missing in it.
    probe = known.asks(first)
    known.begin([first])
    known.heard(first, probe, 0.25)
    assert known.begin([first, second, third]) is third


def test_a_few_are_drawn_by_chance_then_all_others(clock: Clock) -> None:
    known = replicas(clock, 10)
    drawn = Counter(each.address for _ in range(500) for each in known.draw([]))
    assert sum(drawn.values()) == 500 * PROBES
    assert len(drawn) == 10
    first = known.draw([])
    assert {*first, *known.draw(first)} == {*known.all()}
    assert known.draw(known.all()) == []


def test_a_report_holds_for_a_moment(clock: Clock) -> None:
    known = replicas(clock, 2)
    replica = known.all()[0]
    assert not known.is_known(replica)
    known.heard(replica, known.asks(replica), 0.0)
    clock.now_s += REPORT_S * 0.9
    assert known.is_known(replica)
    clock.now_s += REPORT_S
    assert not known.is_known(replica)


def test_a_replica_that_refused_or_is_late_is_drawn_last_for_a_while(clock: Clock) -> None:
    known = replicas(clock, 2 * PROBES)
    refused, late, *others = known.all()
    gone = Unavailable("gone")
    known.refused(refused, known.asks(refused), gone)
    for _ in range(LATE_PROBES):
        probe = known.asks(late)
        # Several calls may wait for one answer.
        known.was_late(late, probe)
        known.was_late(late, probe)
        assert (late.avoided_until_s > clock()) == (late.late == LATE_PROBES)
    for _ in range(50):
        assert not {refused, late} & set(known.draw([]))
    for each in others[1:]:
        known.refused(each, known.asks(each), gone)
    assert others[0] in known.draw([])
    known.heard(late, known.asks(late), 0.0)
    assert {late, others[0]} <= set(known.draw([]))
    clock.now_s += AVOIDED_S
    assert any(refused in known.draw([]) for _ in range(200))


def test_a_client_keeps_its_part_of_many_replicas(clock: Clock) -> None:
    addresses = [f"10.0.0.{number}:1" for number in range(120)]
    used: Counter[str] = Counter()
    for seed in range(200):
        some = replicas(clock, 120, most=20, seed=seed)
        before = {each.address for each in some.all()}
        assert len(before) == 20
        used.update(before)
        # The subset loses each of the ten that go, and takes as many others.
        some.update(addresses[10:])
        assert before - {each.address for each in some.all()} == before & set(addresses[:10])
        assert len(some.all()) == 20
    # 200 x 20 / 120 clients each on average; only chance decides.
    assert max(used.values()) < 33 + 5 * math.sqrt(33)
    assert min(used.values()) > 33 - 5 * math.sqrt(33)


def test_a_removed_replica_is_closed_after_its_last_call(clock: Clock) -> None:
    known = replicas(clock, 3)
    replica = known.begin(known.all()[:1])
    gone = known.update(["10.0.0.9:1"])
    assert len(gone) == 2
    assert replica.wire not in gone
    assert known.end(replica) == replica.wire
    assert known.end(known.begin(known.all())) is None


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedServer]]:
    """Healthy servers that report their backlog. Calls wait for their answers, however long they take."""
    monkeypatch.setattr(balancing, "GRACE_S", 60.0)
    for module in (balancing, balanced):
        monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 60.0)
    with ExitStack() as stack:
        servers = []
        for _ in range(3):
            scripted = ScriptedServer(backlog_s=0.0)
            scripted.set_health("SERVING", SERVICE)
            server = start_scripted(scripted, None)
            stack.callback(server.stop, 0)
            servers.append(scripted)
        yield servers


def ask(times: int, **arguments: Any) -> Any:
    """Return a function that sends calls with either client, one after the other."""

    def use(client: Any) -> Any:
        if isinstance(client, Client):
            for _ in range(times):
                client.rerank("q", ["x"], **arguments)
            return None

        async def go() -> None:
            for _ in range(times):
                await client.rerank("q", ["x"], **arguments)

        return go()

    return use


def ask_until(holds: Callable[[], bool]) -> Any:
    """Return a function that sends calls with either client until a condition holds."""

    def use(client: Any) -> Any:
        if isinstance(client, Client):
            when(lambda: client.rerank("q", ["x"]), lambda _: holds(), pause_s=0.0)
            return None

        async def go() -> None:
            async with asyncio.timeout(120):
                while not holds():
                    await client.rerank("q", ["x"])

        return go()

    return use


def asked(servers: list[ScriptedServer]) -> list[int]:
    return [len(each.requests) for each in servers]


def test_calls_go_where_the_least_work_is(call: Caller, three: list[ScriptedServer]) -> None:
    three[0].backlog_s, three[1].backlog_s, three[2].backlog_s = 0.4, 0.2, 0.3
    call([each.target for each in three], ask(1))
    assert asked(three) == [0, 1, 0]
    assert three[1].metadata[0].get("farrank-timeout-ms")


def test_equal_replicas_share_calls(call: Caller, three: list[ScriptedServer]) -> None:
    call([each.target for each in three], ask(60))
    assert sum(asked(three)) == 60
    # By chance, one of them gets no call in one run of ten billion.
    assert min(asked(three)) > 0


def test_an_unhealthy_replica_gets_no_calls(call: Caller, three: list[ScriptedServer]) -> None:
    three[0].set_health("NOT_SERVING", SERVICE)
    # The second does not know the service, like a server without the requested ranker.
    three[1].health = type(three[1].health)()
    call([each.target for each in three], ask(5))
    assert asked(three) == [0, 0, 5]


def test_the_client_asks_for_the_health_that_was_named(call: Caller, three: list[ScriptedServer]) -> None:
    three[2].set_health("SERVING", f"{SERVICE}/rankers/minilm")
    call([each.target for each in three], ask(5), health_service=f"{SERVICE}/rankers/minilm")
    assert asked(three) == [0, 0, 5]


def test_without_a_healthy_one_the_last_reason_is_raised(call: Caller, three: list[ScriptedServer]) -> None:
    for each in three:
        each.set_health("NOT_SERVING", SERVICE)
    with pytest.raises(Unavailable, match=r"none of 3 replicas accepts calls.*NOT_SERVING"):
        call([each.target for each in three], ask(1), retry=ONCE)
    assert asked(three) == [0, 0, 0]


def test_one_that_cannot_be_reached_is_passed_over(call: Caller, three: list[ScriptedServer]) -> None:
    call(["127.0.0.1:1", three[0].target], ask(5), retry=ONCE)
    assert asked(three) == [5, 0, 0]
    with pytest.raises(Unavailable, match=r"none of 2 replicas accepts calls.*connection refused"):
        call(["127.0.0.1:1", "127.0.0.1:2"], ask(1), retry=ONCE)


def test_one_that_says_nothing_is_not_waited_for(
    call: Caller, three: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "GRACE_S", 0.025)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        call([address, three[0].target], ask(5), retry=ONCE)
        assert asked(three) == [5, 0, 0]
        with pytest.raises(DeadlineExceeded, match="no replica has answered"):
            call([address, address.replace("127.0.0.1", "127.0.0.2")], ask(1, timeout_s=0.3), retry=ONCE)


def test_calls_that_come_together_share_the_answers(call: Caller, three: list[ScriptedServer]) -> None:
    def use(client: Any) -> Any:
        if isinstance(client, Client):
            with ThreadPoolExecutor(50) as pool:
                list(pool.map(lambda _: client.rerank("q", ["x"]), range(200)))
            return None

        async def go() -> None:
            await asyncio.gather(*(client.rerank("q", ["x"]) for _ in range(200)))

        return go()

    for each in three:
        each.most_checks = 1
    call([each.target for each in three], use, retry=ONCE)
    assert sum(asked(three)) == 200
    # Each gets as many calls as the others, except while reports change: none has any work.
    assert min(asked(three)) > 20
    assert sum(each.checks for each in three) < 200


def test_a_server_that_reports_no_load_is_used(call: Caller, three: list[ScriptedServer]) -> None:
    for each in three:
        each.backlog_s = None
    call([each.target for each in three], ask(60))
    assert sum(asked(three)) == 60
    assert min(asked(three)) > 0


def test_a_service_config_of_the_callers_own_is_grpcs(call: Caller, three: list[ScriptedServer]) -> None:
    three[0].backlog_s = three[1].backlog_s = 9.0
    config = '{"loadBalancingConfig": [{"round_robin": {}}]}'
    # gRPC leaves out replicas that are not connected yet.
    all_asked = ask_until(lambda: min(asked(three)) > 0)
    call([each.target for each in three], all_asked, options=[("grpc.service_config", config)])


def test_a_name_is_looked_up_and_again(
    call: Caller, three: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(three[0].target.rpartition(":")[2])
    lookups: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        lookups.append(host)
        hosts = ["127.0.0.1"] if len(lookups) == 1 else ["127.0.0.1", "127.0.0.2"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(lookup, "NAME_LOOKUP_S", 0.0)
    call(f"dns:///rerank.test:{port}", ask_until(lambda: len(lookups) > 1 and len(three[0].requests) > 1))
    assert asked(three)[1:] == [0, 0]
    assert set(lookups) == {"rerank.test"}


def test_a_name_without_addresses(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Unavailable, match=r"cannot connect to rerank\.test: the name has no") as caught:
        call("dns:///rerank.test:1", ask(1), retry=ONCE)
    assert not caught.value.reached_server


def test_at_least_one_replica() -> None:
    with pytest.raises(ValueError, match="max_replicas: 0 is not allowed; it must be at least 1"):
        Client(["127.0.0.1:1", "127.0.0.1:2"], max_replicas=0)


def test_a_call_that_a_dead_replica_took_with_it_is_answered_elsewhere(
    call: Caller, three: list[ScriptedServer]
) -> None:
    three[0].backlog_s = three[1].backlog_s = 0.5
    three[2].fail(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    call([each.target for each in three], ask(1))
    assert sum(asked(three)) == 2

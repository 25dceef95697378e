"""Calls through the chart's Envoy, run by the real program: TLS, drains and failing replicas."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from farrank_cli.spawn import spawned_server
from farrank_client import Client, ResourceExhausted, RetryPolicy, Tls, Unavailable
from support.envoys import configuration, container, running_envoy
from support.helm_chart import Rendered, Values
from support.scripted_server import ScriptedServer, start_scripted
from support.service_address import service_address

SERVICE = "farrank.v1.RerankService"
ONCE = RetryPolicy(max_attempts=1)
ENVOY: Values = {"envoy": {"enabled": True}}
PLAIN = Rendered(ENVOY)
WITH_TLS = Rendered({**ENVOY, "tls": {"secretName": "certificate"}})
FROM_AUTHORITY = Rendered(
    {
        **ENVOY,
        "tls": {"secretName": "certificate", "authorityKey": "ca.crt", "serverName": "farrank.test"},
    }
)


def wait_until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.02)


@contextmanager
def scripted_servers(
    count: int, credentials: grpc.ServerCredentials | None = None
) -> Iterator[list[ScriptedServer]]:
    scripted = [ScriptedServer() for _ in range(count)]
    servers = [start_scripted(each, credentials) for each in scripted]
    for each in scripted:
        each.health.set(SERVICE, HealthCheckResponse.SERVING)
    try:
        yield scripted
    finally:
        for each, server in zip(scripted, servers, strict=True):
            each.caller_left.set()
            server.stop(0).wait()


class Secret:
    """A secret of the type kubernetes.io/tls, mounted as by Kubernetes: its files change together."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        folder.mkdir()
        self.renew()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(Path("..data", name))

    def renew(self) -> None:
        """Replace the certificate by one of another authority."""
        self._number += 1
        version = self.folder / f"..{self._number}"
        version.mkdir()
        authority = trustme.CA()
        issued = authority.issue_cert("farrank.test")
        (version / "tls.crt").write_bytes(issued.cert_chain_pems[0].bytes())
        (version / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (version / "ca.crt").write_bytes(authority.cert_pem.bytes())
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")

    def trusted(self) -> Tls:
        """Return the certificates that a caller trusts now."""
        return Tls(ca=(self.folder / "..data" / "ca.crt").resolve(), server_name="farrank.test")

    def credentials(self) -> grpc.ServerCredentials:
        pair = (self.folder / "tls.key").read_bytes(), (self.folder / "tls.crt").read_bytes()
        return grpc.ssl_server_credentials([pair])


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "secret")


def test_one_call_in_plain_text_and_the_other_pages(tmp_path: Path) -> None:
    with (
        scripted_servers(2) as servers,
        running_envoy(PLAIN, [each.target for each in servers], tmp_path) as envoy,
    ):
        with Client(envoy.address, retry=ONCE) as client:
            client.wait_until_healthy(60)
            client.rerank("q", ["x"])
        assert _page(f"{envoy.status_url}/ready") == (200, "LIVE\n")
        # A call needs one healthy replica; the health check of the other may still be in flight.
        healthy = 'envoy_cluster_membership_healthy{envoy_cluster_name="replicas"} 2'
        wait_until(lambda: healthy in _page(f"{envoy.status_url}/metrics")[1])
        assert _page(f"{envoy.status_url}/metrics")[0] == 200
        # The rest of the administration interface, and requests that change something, stay inside the pod.
        assert _page(f"{envoy.status_url}/config_dump")[0] == 404
        assert _page(f"{envoy.status_url}/quitquitquit", method="POST")[0] == 404
        assert _page(f"{envoy.status_url}/metrics", method="POST")[0] == 404


def _page(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, ""


@pytest.mark.parametrize("rendered", [WITH_TLS, FROM_AUTHORITY], ids=["tls.crt alone", "ca.crt and a name"])
def test_one_call_with_tls_on_both_sides(rendered: Rendered, secret: Secret, tmp_path: Path) -> None:
    if rendered is WITH_TLS:
        # As `kubectl create secret tls` writes it.
        (secret.folder / "ca.crt").unlink()
    tls = secret.trusted()
    with (
        scripted_servers(2, secret.credentials()) as servers,
        running_envoy(rendered, [each.target for each in servers], tmp_path, secret.folder) as envoy,
        Client(envoy.address, retry=ONCE, tls=tls) as client,
    ):
        client.wait_until_healthy(60)
        client.rerank("q", ["x"])


def test_a_replica_with_another_certificate_gets_no_call(secret: Secret, tmp_path: Path) -> None:
    credentials = secret.credentials()
    secret.renew()
    tls = secret.trusted()
    with (
        scripted_servers(1, credentials) as (server,),
        running_envoy(WITH_TLS, [server.target], tmp_path, secret.folder) as envoy,
        Client(envoy.address, retry=ONCE, tls=tls) as client,
    ):
        wait_until(lambda: envoy.stat("cluster.replicas.ssl.fail_verify_error") > 0)
        with pytest.raises(Unavailable):
            client.rerank("q", ["x"], timeout_s=60)
        assert server.requests == []


def test_a_renewed_certificate_is_used_on_both_sides(
    secret: Secret, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    arguments = [
        f"--ranker=maxp={tiny_rankers['maxp']}",
        "--log-level=error",
        f"--set=listen.tls.certificate={secret.folder / 'tls.crt'}",
        f"--set=listen.tls.private_key={secret.folder / 'tls.key'}",
        # Envoy reconnects to the replica all the time.
        "--set=listen.max_connection_age_s=1",
    ]
    old = secret.trusted()
    with (
        spawned_server(arguments) as server,
        running_envoy(WITH_TLS, [server.address], tmp_path, secret.folder) as envoy,
    ):
        with Client(envoy.address, tls=old) as client:
            client.wait_until_healthy(60)
            client.rerank("q", ["x"])
        secret.renew()
        with Client(envoy.address, tls=secret.trusted(), retry=ONCE) as client:
            wait_until(lambda: _answers(client))
            before = envoy.stat("cluster.replicas.upstream_cx_total")
            wait_until(
                lambda: _answers(client) and envoy.stat("cluster.replicas.upstream_cx_total") >= before + 3
            )
        with Client(envoy.address, tls=old, retry=ONCE) as client, pytest.raises(Unavailable):
            client.rerank("q", ["x"])


def _answers(client: Client) -> bool:
    try:
        return len(client.rerank("q", ["x"]).results) == 1
    except Unavailable:
        return False


class Load:
    """Callers that call one address until they are stopped. Each returns the number of its answers."""

    def __init__(self, stack: ExitStack, address: str, callers: int) -> None:
        self.answers, self._ending = 0, threading.Event()
        client = stack.enter_context(Client(address, retry=ONCE))
        client.wait_until_healthy(60)
        pool = stack.enter_context(ThreadPoolExecutor(callers))
        stack.callback(self._ending.set)
        self._asking: list[Future[None]] = [pool.submit(self._ask, client) for _ in range(callers)]

    def _ask(self, client: Client) -> None:
        while not self._ending.wait(0.01):
            assert len(client.rerank("sea", ["the river", "the sea"], timeout_s=60).results) == 2
            self.answers += 1

    def wait_for(self, answers: int) -> None:
        """Wait for a number of further answers. Raises: the error of a caller."""
        wanted = self.answers + answers
        wait_until(lambda: self.answers >= wanted or any(each.done() for each in self._asking))
        for each in self._asking:
            if each.done():
                each.result()

    def end(self) -> None:
        """End all callers. Raises: the error of a caller."""
        self._ending.set()
        for each in self._asking:
            each.result(90)


@pytest.fixture(scope="module")
def servers(tiny_rankers: dict[str, Path]) -> Iterator[list[tuple[str, subprocess.Popen[str]]]]:
    """Two real servers: address and process."""
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=error"]
    with ExitStack() as opened:
        started = [opened.enter_context(spawned_server(arguments)) for _ in range(2)]
        yield [(each.address, each.process) for each in started]


def test_a_proxy_that_its_service_forgot_is_left_by_its_callers(
    servers: list[tuple[str, subprocess.Popen[str]]], tmp_path: Path
) -> None:
    """The pod's preStop only sleeps. SIGTERM, which ends Envoy with its calls, then meets no call.

    Callers try once, at the address of a service that no longer has the proxy.
    """
    rendered = Rendered({"envoy": {"enabled": True, "connectionSeconds": 2}})
    assert container(rendered)["lifecycle"]["preStop"].keys() == {"sleep"}
    replicas = [address for address, _ in servers]
    with ExitStack() as opened:
        proxies = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            proxies.append(opened.enter_context(running_envoy(rendered, replicas, tmp_path / name)))
        one, other = proxies
        service = opened.enter_context(service_address([one.address]))
        # Opened after the service, so that it ends before it.
        load = Load(opened, service.address, 6)
        load.wait_for(50)
        service.servers = [other.address]
        wait_until(lambda: one.stat("http.calls.downstream_cx_active") == 0)
        assert one.stat("http.calls.downstream_rq_total") >= 50
        one.process.terminate()
        one.process.wait(60)
        load.wait_for(50)
        load.end()


def test_a_long_call_outlives_its_connections_age(tmp_path: Path) -> None:
    rendered = Rendered({"envoy": {"enabled": True, "connectionSeconds": 1}})
    (config,) = (
        each["filter_chains"][0]["filters"][0]["typed_config"]
        for each in configuration(rendered)["static_resources"]["listeners"]
        if each["name"] == "calls"
    )
    drain_s = float(config["drain_timeout"].removesuffix("s"))
    with (
        scripted_servers(1) as (server,),
        running_envoy(rendered, [server.target], tmp_path) as envoy,
        Client(envoy.address, retry=ONCE) as client,
        ThreadPoolExecutor(1) as caller,
    ):
        client.wait_until_healthy(60)
        server.hold = True
        held = caller.submit(client.rerank, "q", ["x"], timeout_s=60)
        assert server.arrived.wait(60)
        reached = envoy.stat("http.calls.downstream_cx_max_duration_reached")
        wait_until(lambda: envoy.stat("http.calls.downstream_cx_max_duration_reached") > reached)
        # Envoy would also cut the call after this time.
        time.sleep(drain_s + 2)
        server.caller_left.set()
        assert held.result(60).ranker.name == "minilm"


def test_a_replica_that_is_stopped_costs_no_call(
    servers: list[tuple[str, subprocess.Popen[str]]], tmp_path: Path
) -> None:
    """The other replica answers the calls of the stopped one, although their callers try only once."""
    with ExitStack() as opened:
        envoy = opened.enter_context(running_envoy(PLAIN, [address for address, _ in servers], tmp_path))
        load = Load(opened, envoy.address, 4)
        load.wait_for(50)
        opened.callback(os.kill, servers[0][1].pid, signal.SIGCONT)
        os.kill(servers[0][1].pid, signal.SIGSTOP)
        wait_until(lambda: envoy.stat("cluster.replicas.membership_healthy") == 1)
        load.wait_for(50)
        load.end()


def test_half_sent_health_checks_take_no_replica_away(
    servers: list[tuple[str, subprocess.Popen[str]]], tmp_path: Path
) -> None:
    with ExitStack() as opened:
        envoy = opened.enter_context(running_envoy(PLAIN, [address for address, _ in servers], tmp_path))
        load = Load(opened, envoy.address, 2)
        attacker = opened.enter_context(grpc.insecure_channel(envoy.address))
        check = attacker.stream_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        never = threading.Event()
        opened.callback(never.set)
        half_sent = [check.future(_after(never)) for _ in range(900)]
        wait_until(lambda: envoy.stat("http.calls.downstream_rq_active") >= 900)
        load.wait_for(100)
        # On a busy machine one check may be late, but no more than one.
        wait_until(lambda: envoy.stat("cluster.replicas.membership_healthy") == 2)
        load.end()
        # Envoy does not keep half-sent checks for long, either.
        for each in half_sent:
            with pytest.raises(grpc.RpcError):
                each.result(60)


def _after(event: threading.Event) -> Iterator[HealthCheckRequest]:
    event.wait()
    yield HealthCheckRequest()


def test_an_answer_of_unavailable_is_asked_of_another_and_a_refusal_is_not(tmp_path: Path) -> None:
    with (
        scripted_servers(2) as (first, second),
        running_envoy(PLAIN, [first.target, second.target], tmp_path) as envoy,
        Client(envoy.address, retry=ONCE) as client,
    ):
        client.wait_until_healthy(60)
        first.fail(grpc.StatusCode.UNAVAILABLE, "draining", times=100)
        for _ in range(20):
            client.rerank("q", ["x"])
        assert first.requests, "it was asked"
        for each in (first, second):
            each.failures.clear()
            each.requests.clear()
            each.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", pushback="2500")
        with pytest.raises(ResourceExhausted, match="no room"):
            client.rerank("q", ["x"])
        assert len(first.requests) + len(second.requests) == 1


def test_where_no_replica_is_healthy_all_are_asked(tmp_path: Path) -> None:
    """A replica's refusal gives the reason, and checks that all fail may be wrong."""
    with (
        scripted_servers(2) as servers,
        running_envoy(PLAIN, [each.target for each in servers], tmp_path) as envoy,
        Client(envoy.address, retry=ONCE) as client,
    ):
        client.wait_until_healthy(60)
        for each in servers:
            each.health.set(SERVICE, HealthCheckResponse.NOT_SERVING)
        # Envoy's threads learn of it up to a second later.
        wait_until(
            lambda: bool(client.rerank("q", ["x"])) and envoy.stat("cluster.replicas.lb_healthy_panic") > 0
        )


def test_a_proxy_holds_no_more_calls_than_it_may(tmp_path: Path) -> None:
    rendered = Rendered({"envoy": {"enabled": True, "maxRequests": 1}})
    with (
        scripted_servers(1) as (server,),
        running_envoy(rendered, [server.target], tmp_path) as envoy,
        Client(envoy.address, retry=ONCE) as client,
        ThreadPoolExecutor(1) as caller,
    ):
        client.wait_until_healthy(60)
        server.hold = True
        held = caller.submit(client.rerank, "q", ["x"], timeout_s=60)
        assert server.arrived.wait(60)
        with pytest.raises(Unavailable, match="overflow"):
            client.rerank("q", ["x"], timeout_s=60)
        server.caller_left.set()
        held.result(60)

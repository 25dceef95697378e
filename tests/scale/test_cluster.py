"""The application on a real cluster: it answers like a server, while nodes die and versions change.

One cluster serves all tests in their order: each begins with the state that the previous one left.
"""

import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farrank_cli.exit_codes import TRY_AGAIN
from farrank_cli.spawn import spawned_server
from farrank_client import Client, FarrankError, RetryPolicy
from farrank_client.errors import DeadlineExceeded, ResourceExhausted
from farrank_server.config.schema import ServerConfig
from farrank_settings import sources
from farrank_settings.errors import ConfigError
from support.commands import Outcome
from support.waiting import when

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="needs the ray extra: pip install 'farrank[ray]'",
)

NAME = "farrank"
QUERY = "which river reaches the sea"
DOCUMENTS = ["The river rises in the mountains and reaches the sea. " * 30, "Bread is baked from flour."]
LONG = ["A ship sails over the sea towards the harbour. " * 100] * 60
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(scope="module")
def up(cluster: Any, config: ServerConfig) -> Callable[..., None]:
    """Bring the application up, or change it."""
    from farrank_scale.application import Scale
    from farrank_scale.cluster import bring_up

    def bring(changed: ServerConfig = config, **scale: Any) -> None:
        # On one machine the nodes share its ports, so there is one proxy.
        bring_up(changed, Scale(**scale), NAME, head_only=True)

    with pytest.MonkeyPatch.context() as patch:
        # As on a machine on which the proxies take longer to start than Serve waits for them.
        for module in ("api", "client"):
            patch.setattr(f"ray.serve._private.{module}.HTTP_PROXY_TIMEOUT", 0.1)
        bring(replicas=1)
    return bring


@pytest.fixture
def client(up: object, ports: list[int]) -> Iterator[Client]:
    with Client(f"127.0.0.1:{ports[0]}") as opened:
        yield opened


@pytest.fixture
def once(up: object, ports: list[int]) -> Iterator[Client]:
    """Return a client that never retries."""
    with Client(f"127.0.0.1:{ports[0]}", retry=ONCE) as opened:
        yield opened


@contextmanager
def called(client: Client, callers: int = 2, documents: list[str] = DOCUMENTS) -> Iterator[Counter[str]]:
    """Call repeatedly until the block is left. Counts the ends of calls by the name of the error."""
    ends, stop = Counter[str](), threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                client.rerank(QUERY, documents, timeout_s=600)
                ends["OK"] += 1
            except FarrankError as error:
                ends[f"{type(error).__name__}: {error}"] += 1
            time.sleep(0.02)

    with ThreadPoolExecutor(callers) as pool:
        calling = [pool.submit(call) for _ in range(callers)]
        try:
            yield ends
        finally:
            stop.set()
        for each in calling:
            each.result()


def described() -> dict[str, Any]:
    from farrank_scale.cluster import describe

    return describe(NAME)


def wait_for_replicas(count: int) -> list[dict[str, Any]]:
    """Wait until exactly this many replicas exist, without ending ones. Returns their descriptions."""

    def are_there(told: dict[str, Any]) -> bool:
        return len(told["replicas"]) == count and told["states"] == {"RUNNING": count}

    return list(when(described, are_there)["replicas"])


def calls_answered() -> dict[str, float]:
    """Return the number of answered calls of each replica, from its metrics page."""
    from farrank_scale.cluster import targets

    answered = {}
    for each in targets(NAME):
        with urllib.request.urlopen(f"http://{each['targets'][0]}/metrics") as page:
            lines = page.read().decode().splitlines()
        answered[each["labels"]["replica"]] = sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("farrank_requests_total{") and 'code="OK"' in line
        )
    return answered


def _told_by_all() -> list[dict[str, Any]]:
    """Return the replicas' descriptions, or none while one of them is dead and Serve has not noticed."""
    from ray.exceptions import RayError

    try:
        return list(described()["replicas"])
    except (RayError, TimeoutError):
        return []


def test_it_answers_as_a_server_does(client: Client, config: ServerConfig) -> None:
    assert client.is_healthy()
    through = client.rerank(QUERY, DOCUMENTS, return_chunk_scores=True)
    with (
        spawned_server([f"--ranker=tiny={config.rankers['tiny'].source}", "--threads=1"]) as server,
        Client(server.address) as direct,
    ):
        expected = direct.rerank(QUERY, DOCUMENTS, return_chunk_scores=True)
        assert [each.index for each in through.results] == [each.index for each in expected.results]
        for one, other in zip(through.results, expected.results, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert len(one.chunks) == len(other.chunks)
        assert through.ranker.version == expected.ranker.version
        assert client.rankers().limits == direct.rankers().limits
        for wrong in ({"query": "", "documents": ["a"]}, {"query": "a", "documents": ["a"], "ranker": "b"}):
            with pytest.raises(FarrankError) as told:
                direct.rerank(**wrong)  # type: ignore[arg-type]
            with pytest.raises(type(told.value)) as told_through:
                client.rerank(**wrong)  # type: ignore[arg-type]
            assert str(told_through.value) == str(told.value)


def test_a_replica_that_is_full_says_when_to_come_back(
    once: Client, ports: list[int], config: ServerConfig
) -> None:
    calls = config.limits.max_concurrent_calls
    with ThreadPoolExecutor(2 * calls) as pool:
        ends = [pool.submit(once.rerank, QUERY, LONG) for _ in range(2 * calls)]
        errors = [error for each in ends if (error := each.exception()) is not None]
    assert 1 <= len(errors) <= calls
    for error in errors:
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after_s
    # A caller that returns at the announced time is served.
    again = RetryPolicy(max_attempts=100)
    with Client(f"127.0.0.1:{ports[0]}", retry=again) as patient, ThreadPoolExecutor(calls + 1) as pool:
        assert len(list(pool.map(lambda _: patient.rerank(QUERY, LONG), range(calls + 1)))) == calls + 1


def test_admission_sees_the_deadline(client: Client) -> None:
    with pytest.raises(DeadlineExceeded, match=r"^deadline: .* and the call needs about"):
        client.rerank(QUERY, [2 * each for each in LONG] * 16, timeout_s=3)
    with pytest.raises(DeadlineExceeded):
        client.rerank(QUERY, DOCUMENTS, timeout_s=0.0001)


def test_a_timeout_that_is_none_is_refused(up: object, ports: list[int]) -> None:
    import grpc

    from farrank.v1 import rerank_pb2 as pb

    with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        call: Any = channel.unary_unary("/farrank.v1.RerankService/ListRankers")
        with pytest.raises(grpc.RpcError) as told:
            call(pb.ListRankersRequest().SerializeToString(), metadata=(("farrank-timeout-ms", "1.5 h"),))
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (told.value.details() or "").startswith("farrank-timeout-ms: '1.5 h' is not allowed")


def test_http_goes_through_serve_too(client: Client, ports: list[int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/health") as answer:
        assert answer.read() == b'{"status":"serving"}'
    body = b'{"query": "river", "documents": ["a river", "bread"]}'
    asked = urllib.request.Request(
        f"http://127.0.0.1:{ports[1]}/v2/rerank", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200


def test_two_replicas_share_calls_and_each_shows_its_metrics(
    client: Client, up: Callable[..., None], tmp_path: Path
) -> None:
    from farrank_scale.cluster import write_targets

    (before,) = described()["replicas"]
    with called(client) as ends:
        up(replicas=2)
        found = wait_for_replicas(2)
    assert set(ends) == {"OK"}
    # Only the number has changed: the first replica still exists.
    assert before["replica"] in {each["replica"] for each in found}
    assert len({each["node"] for each in found}) == 2
    assert write_targets(NAME, tmp_path / "targets.json") == 2
    answered = calls_answered()
    assert set(answered) == {each["replica"] for each in found}
    # Both get calls, whichever node has the proxy.
    with called(client, 4) as ends:
        when(calls_answered, lambda told: min(told[each] - answered[each] for each in answered) >= 20)
    assert set(ends) == {"OK"}


def test_a_node_that_dies_takes_no_call_with_it_that_can_be_retried(client: Client, cluster: Any) -> None:
    (other,) = cluster.worker_nodes
    before = {each["replica"] for each in wait_for_replicas(2)}
    with called(client) as ends:
        cluster.remove_node(other, allow_graceful=False)
        # The head has room for a new replica, once Serve has noticed the loss.
        when(_told_by_all, lambda told: len({each["replica"] for each in told} - before) == 1)
    assert ends["OK"] > 20
    # The client repeats the calls that were in flight there, and those that came before Serve noticed.
    assert set(ends) == {"OK"}, ends


def test_a_replica_that_goes_answers_what_it_holds(
    once: Client, up: Callable[..., None], config: ServerConfig
) -> None:
    # Calls of a second and more, as many as one replica takes: both have some when one of them has to end.
    with called(once, config.limits.max_concurrent_calls, LONG) as ends:
        when(described, lambda told: min(each["backlog_s"] for each in told["replicas"]) > 0)
        up(replicas=1)
        wait_for_replicas(1)
    assert set(ends) == {"OK"}
    assert ends["OK"] > config.limits.max_concurrent_calls


def test_a_new_version_of_a_ranker_comes_without_an_error(
    once: Client, up: Callable[..., None], config: ServerConfig, tiny_rankers: dict[str, Path]
) -> None:
    (before,) = described()["replicas"]
    other = replace(config.rankers["tiny"], source=str(tiny_rankers["firstp"]))
    delays = {"upscale_delay_s": 0.5, "downscale_delay_s": 0.5}
    with called(once) as ends:
        up(
            replace(config, rankers={"tiny": other}),
            replicas=1,
            max_replicas=2,
            target_backlog_s=0.2,
            **delays,
        )
        (after,) = wait_for_replicas(1)
    assert set(ends) == {"OK"}
    assert after["rankers"]["tiny"] != before["rankers"]["tiny"]
    assert once.rankers().rankers[0].family == "firstp"


def test_a_backlog_brings_a_second_replica_that_goes_when_there_is_none(client: Client) -> None:
    (before,) = described()["replicas"]
    with called(client, 3, LONG) as ends:
        found = wait_for_replicas(2)
    assert set(ends) == {"OK"}
    assert before["replica"] in {each["replica"] for each in found}
    wait_for_replicas(1)


def test_up_shows_how_far_it_is_and_ends_after_a_bound(
    up: Callable[..., None],
    config: ServerConfig,
    cluster: Any,
    node: dict[str, Any],
    tmp_path: Path,
    farrank: Callable[..., Outcome],
) -> None:
    file = tmp_path / "farrank.yaml"
    file.write_text(sources.to_yaml(config, ()))
    command = ("scale", "up", "--config", file, "--head-only", "--replicas")
    # An earlier test has removed it.
    if not cluster.worker_nodes:
        cluster.add_node(num_cpus=1, **node)
    # Another configuration runs, and its replica ends when both of these are ready: three CPUs have no more
    # room.
    up(replicas=2)

    more = farrank(*command, 3)
    assert more.exit_code == 0, more.err
    # The first lines may be about the previous number.
    shown = [line for line in more.err.splitlines() if " of 3 replicas are ready" in line]
    assert any(
        re.search(r"; \d waits? for a node with 1 CPU free \(the cluster has ", line) for line in shown
    )

    # There will be no room, however long it waits.
    late = farrank(*command, 6, "--timeout", 5)
    assert late.exit_code == TRY_AGAIN
    line = "3 of 6 replicas are ready on 127.0.0.1; 3 wait for a node with 1 CPU free"
    line += " (the cluster has 0 of 3 CPUs free)"
    assert late.err.splitlines()[-2:] == [
        line,
        f"farrank: not ready after 5 s: {line}. Ray Serve continues: `farrank scale status` shows its "
        "progress; request less with --replicas, --cpus or --gpus, or wait longer with --timeout",
    ]
    up(replicas=1)


def test_configurations_beyond_serve_are_refused(config: ServerConfig, tmp_path: Path) -> None:
    from farrank_scale.application import Scale, application, from_file
    from farrank_server.config.schema import TlsConfig

    with_tls = replace(config, listen=replace(config.listen, tls=TlsConfig(tmp_path / "a", tmp_path / "b")))
    with pytest.raises(ConfigError, match=r"^listen\.tls: "):
        application(with_tls, Scale())
    with pytest.raises(ConfigError, match=r"^replicas: 0 is not allowed; it must be at least 1"):
        Scale(replicas=0)
    with pytest.raises(ConfigError, match=r"^replicas: 3 is not allowed; .* 3 to max_replicas 2"):
        Scale(replicas=3, max_replicas=2)
    with pytest.raises(ConfigError, match=r"^args\.replica: there is no such key"):
        from_file({"replica": 2})
    with pytest.raises(ConfigError, match=r"listen\.prot: there is no such key"):
        from_file({"set": {"listen.prot": 1}})


def test_an_application_that_is_not_there(up: object) -> None:
    from farrank_scale.cluster import ClusterError, take_down

    with pytest.raises(ClusterError, match="no application 'other' on this cluster; known are: farrank"):
        take_down("other")

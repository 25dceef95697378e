"""A search process that hangs is detected, reported, killed and replaced; other calls are not affected."""

import asyncio
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_calls.errors import FarrankError
from farrank_first_stage import lucene_host
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.lucene_host import SearchState
from farrank_first_stage.stages import open_first_stages
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.engine_bench import until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SEARCHES = "farrank.v1.RerankService/SearchAndRerank"


@pytest.fixture
def config(tiny_rankers: dict[str, Path], toy_index: Path) -> ServerConfig:
    return ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}, hang_after_s=5.0),
    )


def unwritten_bytes(replica: Replica) -> int:
    """Return the number of bytes that wait for the pipe of the search process."""
    process = replica.indexes._now.first_stages.lucene._process
    assert process is not None
    return process._stdin.transport.get_write_buffer_size() + sum(
        len(str(request)) for request in process._unwritten.values()
    )


async def test_a_stopped_process_is_reported_killed_and_replaced(
    config: ServerConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lucene_host, "TICK_S", 0.1)
    caplog.set_level(logging.INFO)
    search = pb.SearchAndRerankRequest(query="alpha")
    rerank = pb.RerankRequest(query="sea", documents=[pb.Document(text="a river")])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        health = health_pb2_grpc.HealthStub(channel)
        watched = aiter(health.Watch(health_pb2.HealthCheckRequest(service=SEARCHES)))
        assert (await anext(watched)).status == SERVING
        before = await service.SearchAndRerank(search, timeout=120)
        hung = replica.indexes._now.first_stages.lucene.process_id
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        waiting = asyncio.ensure_future(service.SearchAndRerank(search, timeout=120))
        async with asyncio.timeout(120):
            assert (await anext(watched)).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await waiting
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "grpc-retry-pushback-ms" in dict(refused.value.trailing_metadata() or ())
        # Calls that bring documents are answered, and load balancers send them here.
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        assert len((await service.Rerank(rerank, timeout=120)).results) == 1
        assert "the search process has not answered for" in caplog.text
        count = replica.metrics.registry.get_sample_value
        assert count("farrank_search_process_ends_total", {"reason": "hung"}) == 1
        assert count("farrank_search_process_ends_total", {"reason": "ended"}) == 0
        assert count("farrank_search_process_down") == 1
        async with asyncio.timeout(120):
            assert (await anext(watched)).status == SERVING
        assert count("farrank_search_process_down") == 0
        after = await service.SearchAndRerank(search, timeout=120)
        assert after.results == before.results


async def test_searches_given_up_while_the_process_reads_nothing_leave_no_bytes(config: ServerConfig) -> None:
    search = pb.SearchAndRerankRequest(query="alpha " * 40_000)
    # Longer than the test stops the process, which must not count as hung and be killed.
    config = replace(config, first_stage=replace(config.first_stage, hang_after_s=60.0))
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        pid = replica.indexes._now.first_stages.lucene.process_id
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            calls = [asyncio.ensure_future(service.SearchAndRerank(search, timeout=120)) for _ in range(100)]
            await until(lambda: replica.indexes._now.first_stages.lucene.requests_in_flight == 100)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            await until(lambda: replica.indexes._now.first_stages.lucene.requests_in_flight == 0)
            # One request that is half in the pipe, and the rest of a pipe, out of 24 MB of requests.
            assert unwritten_bytes(replica) < 2**20
        finally:
            os.kill(pid, signal.SIGCONT)
        found = await service.SearchAndRerank(pb.SearchAndRerankRequest(query="sigma"), timeout=120)
        assert [each.id for each in found.results] == ["other"]


async def test_threads_that_end_no_search_are_a_hung_process(
    odd_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lucene_host, "TICK_S", 0.01)
    monkeypatch.setattr(lucene_host, "STUCK_AFTER_HANGS", 0.0)  # so short that any running search exceeds it
    told: list[SearchState] = []
    config = FirstStageConfig(indexes={"odd": Bm25Config(odd_index)}, search_threads=1)
    stages: Any = open_first_stages(config, on_state=told.append)
    await stages.start()
    try:
        async with asyncio.timeout(120):
            while SearchState.HUNG not in told:
                searches = [stages.search("odd", "hugedoc", 10, 30.0) for _ in range(4)]
                for each in await asyncio.gather(*searches, return_exceptions=True):
                    assert not isinstance(each, BaseException) or isinstance(each, FarrankError)
        assert told[:2] == [SearchState.UP, SearchState.HUNG]
    finally:
        await stages.stop()

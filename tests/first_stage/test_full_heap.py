"""A search process whose heap stays full is reported, killed and replaced; one with a large search is not."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_calls.errors import ResourceExhausted, Unavailable
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.lucene_host import SearchState
from farrank_first_stage.stages import open_first_stages
from farrank_lucene import heap_watch
from farrank_lucene.heap_watch import Heap, HeapWatch
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support import sick_search_child

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SEARCHES = "farrank.v1.RerankService/SearchAndRerank"


async def statuses(channel: grpc.aio.Channel) -> AsyncIterator[int]:
    health = health_pb2_grpc.HealthStub(channel)
    async for told in health.Watch(health_pb2.HealthCheckRequest(service=SEARCHES)):
        yield told.status


async def test_a_process_whose_heap_stays_full_is_reported_killed_and_replaced(
    tiny_rankers: dict[str, Path],
    toy_index: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sick_search_child.use_it(monkeypatch)
    caplog.set_level(logging.INFO)
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}),
    )
    search = pb.SearchAndRerankRequest(query="alpha")
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        watched = statuses(channel)
        assert await anext(watched) == SERVING
        before = await service.SearchAndRerank(search, timeout=120)
        sick = replica.indexes._now.first_stages.lucene.process_id
        assert sick is not None
        os.kill(sick, signal.SIGUSR1)
        # It fills its heap before it reads the request.
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.SearchAndRerank(search, timeout=120)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        count = replica.metrics.registry.get_sample_value
        async with asyncio.timeout(120):
            assert await anext(watched) == NOT_SERVING
            assert count("farrank_search_process_ends_total", {"reason": "heap_full"}) == 1
            assert count("farrank_search_process_ends_total", {"reason": "ended"}) == 0
            assert "the search process keeps Java's heap full: " in caplog.text
            assert await anext(watched) == SERVING
        after = await service.SearchAndRerank(search, timeout=120)
        assert after.results == before.results
        assert replica.indexes._now.first_stages.lucene.process_id != sick


async def test_texts_beyond_the_heap_fail_their_searches_only(odd_index: Path) -> None:
    told: list[SearchState] = []
    config = FirstStageConfig(indexes={"odd": Bm25Config(odd_index)})
    stage = open_first_stages(config, heap_mib=24, on_state=told.append)
    await stage.start()
    try:
        pid = stage.lucene.process_id
        for _ in range(4):
            with pytest.raises(ResourceExhausted, match="ask for fewer"):
                await stage.search("odd", "hugedoc", 10, 60)
        assert await stage.search("odd", "volcano", 10, 60)
        assert (stage.lucene.process_id, told) == (pid, [SearchState.UP])
    finally:
        await stage.stop()


async def test_a_crash_of_java_is_logged_and_leaves_no_files(
    toy_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = asyncio.Event()
    stage = open_first_stages(
        FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}),
        on_state=lambda state: ended.set() if state is SearchState.ENDED else None,
    )
    await stage.start()
    try:
        assert stage.lucene.process_id is not None
        os.kill(stage.lucene.process_id, signal.SIGSEGV)
        async with asyncio.timeout(120):
            await ended.wait()
            with pytest.raises(Unavailable):
                await stage.search("toy", "alpha", 10, 60)
        assert "A fatal error has been detected by the Java Runtime Environment" in caplog.text
        assert os.listdir() == []
    finally:
        await stage.stop()


class Bytes:
    """A heap of 100 bytes, of which 20 are in use at first."""

    def __init__(self) -> None:
        self.in_use, self.collections = 20, 0

    def watch(self) -> HeapWatch:
        return HeapWatch(Heap(self.collect, lambda: 100))

    def collect(self) -> int:
        self.collections += 1
        return self.in_use


@pytest.mark.parametrize(("in_use", "is_full"), [(10, False), (39, False), (40, True), (100, True)])
def test_full_is_a_quarter_of_what_was_free_at_first(in_use: int, is_full: bool) -> None:
    heap = Bytes()
    watch = heap.watch()
    heap.in_use = in_use
    assert (watch.check() is not None) == is_full


def test_no_second_look_follows_at_once() -> None:
    heap = Bytes()
    watch = heap.watch()
    assert watch.check() is None
    heap.in_use = 100
    assert watch.check() is None
    assert heap.collections == 2


def test_a_look_waits_for_searches_that_run_and_holds_others_back() -> None:
    heap = Bytes()
    watch = heap.watch()
    order: list[str] = []

    def search() -> None:
        with watch.search():
            order.append("searched")

    with watch.search():
        looking = threading.Thread(target=lambda: order.append(str(watch.check())))
        looking.start()
        while not watch._is_checking:
            pass
        other = threading.Thread(target=search)
        other.start()
        other.join(0.05)
        assert (order, heap.collections) == ([], 1)
    looking.join(60)
    other.join(60)
    assert (sorted(order), heap.collections) == (["None", "searched"], 2)


def test_a_search_that_does_not_end_delays_others_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_watch, "LONGEST_WAIT_S", 0.01)
    heap = Bytes()
    watch = heap.watch()
    heap.in_use = 100
    with watch.search():
        assert watch.check() is None
        with watch.search():
            assert heap.collections == 1
    # It does not count as a measurement.
    assert watch.check() is not None

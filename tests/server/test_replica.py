"""What a replica tells its callers and its load balancer over real sockets while its device is not ready."""

import asyncio
import gc
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Runtime
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.device import supervision, watchdog
from farrank_server.replica import Replica
from support.engine_bench import TEXTS, Faulty

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_hung_device_is_told_to_callers_and_to_health_until_it_is_back(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "TICK_S", 0.02)
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)
    hung, may_load = threading.Event(), threading.Event()

    def hang(inputs: Sequence[EncoderInput]) -> None:
        hung.wait(60)

    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(hang_after_s=0.3),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        assert replica.metrics_url is None
        ranker = replica.engine.loaded["maxp"]
        ranker.runtime, load = Faulty(ranker.runtime, hang), ranker.load

        def load_later() -> Runtime:
            may_load.wait(60)
            return load()

        ranker.load = load_later
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        health = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(health)).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as answer:
            await service.Rerank(request, timeout=30)
        assert answer.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await anext(health)).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="brought back") as refused:
            await service.Rerank(request, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "grpc-retry-pushback-ms" in dict(refused.value.trailing_metadata())
        may_load.set()
        async with asyncio.timeout(30):
            assert (await anext(health)).status == SERVING
        assert len((await service.Rerank(request, timeout=30)).results) == len(TEXTS)
        hung.set()


async def test_full_collections_are_rare_while_it_serves(tiny_rankers: dict[str, Path]) -> None:
    """One with 1,000 calls in flight holds the event loop up for 20 to 80 ms."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    async with Replica(config):
        assert gc.get_threshold() == (*before[:2], 1000)
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before

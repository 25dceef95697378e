"""The service over real sockets in this process: a real engine with tiny rankers, candidates from memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2_grpc
from farrank_server.config.schema import ListenConfig, ServerConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.handlers import handlers
from support.engine_bench import Wrapped, opened_bench
from support.memory_first_stage import MemoryFirstStage, in_memory


@pytest.fixture
def first_stage() -> MemoryFirstStage:
    return MemoryFirstStage()


@pytest_asyncio.fixture
async def stub(tiny_rankers: dict[str, Path], first_stage: MemoryFirstStage) -> AsyncIterator[Any]:
    config = ServerConfig()
    async with opened_bench(tiny_rankers, Wrapped) as bench:
        endpoint = GrpcListener(ListenConfig(port=0, metrics_port=None), config.limits)
        service = RerankService(config, bench.engine, await in_memory(bench, first_stage), bench.metrics)
        guard = Guard(Endpoint.GRPC, bench.metrics, {"maxp", "biencoder", "both"}, "maxp")
        unread = UnreadAnswers(config.limits, bench.metrics)
        await endpoint.open(
            handlers(service, guard, config.limits, unread, ReceivingBudget(config.limits, bench.metrics))
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.port}") as channel:
            yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        await endpoint.close(0)
        unread.close()

"""The service over real sockets in this process: a real engine with tiny rankers, candidates from memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2_grpc
from farrank_server.config.schema import ListenConfig, ServerConfig
from farrank_server.first_stage import Candidate, FirstStage, IndexDescription, find_index
from farrank_server.listen import GrpcListener
from farrank_server.wire.guard import Guard
from farrank_server.wire.servicer import RerankServicer
from support.engine_bench import Wrapped, opened_bench


class MemoryFirstStage(FirstStage):
    """Finds the documents that share a word with the query, in the order in which they stand."""

    def __init__(self) -> None:
        self.texts = {"rhine": "the river Rhine", "bread": "flour and salt", "sea": "a river reaches the sea"}
        self.mean_characters = 20
        self.asked: list[tuple[str, str, int]] = []

    def describe(self) -> tuple[IndexDescription, ...]:
        return (IndexDescription("things", 1000, "bm25(k1=0.9,b=0.4)", self.mean_characters),)

    async def search(self, index: str, query: str, k: int, timeout_s: float) -> list[Candidate]:
        assert timeout_s > 0
        self.asked.append((find_index(self.describe(), index).name, query, k))
        found = [key for key, text in self.texts.items() if set(text.split()) & set(query.split())]
        return [Candidate(key, self.texts[key], 3.0 - place) for place, key in enumerate(found[:k])]


@pytest.fixture
def first_stage() -> MemoryFirstStage:
    return MemoryFirstStage()


@pytest_asyncio.fixture
async def stub(tiny_rankers: dict[str, Path], first_stage: MemoryFirstStage) -> AsyncIterator[Any]:
    config = ServerConfig()
    async with opened_bench(tiny_rankers, Wrapped) as bench:
        door = GrpcListener(ListenConfig(port=0, metrics_port=None), config.limits)
        servicer = RerankServicer(config, bench.engine, first_stage, bench.metrics)
        await door.open(Guard(bench.metrics, {"maxp", "biencoder", "both"}, "maxp").handlers(servicer))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
            yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        await door.close(0)

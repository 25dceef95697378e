"""A served ranker with further versions, over real sockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_first_stage.config import FirstStageConfig
from farrank_server.config.schema import LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.engine_bench import TEXTS

DOCUMENTS = [pb.Document(id=f"d{n}", text=text) for n, text in enumerate(TEXTS)]


@dataclass(slots=True)
class Served:
    replica: Replica
    stub: Any

    async def ask(self, query: str = "river", ranker: str = "") -> pb.RerankResponse:
        request = pb.RerankRequest(query=query, documents=DOCUMENTS, options=pb.RerankOptions(ranker=ranker))
        answer = await self.stub.Rerank(request, timeout=120)
        assert isinstance(answer, pb.RerankResponse)
        return answer

    def metric(self, name: str, **labels: str) -> float | None:
        return self.replica.metrics.registry.get_sample_value(f"farrank_{name}", labels)


def configured(rankers: Mapping[str, Path], **more: Any) -> ServerConfig:
    return ServerConfig(
        rankers={name: RankerConfig(str(folder)) for name, folder in rankers.items()},
        listen=replace(ListenConfig(port=0, metrics_port=None), **more.pop("listen", {})),
        limits=LimitsConfig(**more.pop("limits", {})),
        first_stage=FirstStageConfig(indexes={}),
        **more,
    )


@asynccontextmanager
async def serving(config: ServerConfig) -> AsyncIterator[Served]:
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        yield Served(replica, rerank_pb2_grpc.RerankServiceStub(channel))  # type: ignore[no-untyped-call]

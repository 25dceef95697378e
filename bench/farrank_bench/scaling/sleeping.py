"""A real server with a device that sleeps for as long as a device would compute.

Two cores cannot show the behaviour of eight devices. Here all parts of a server are real: sockets, admission,
tokenizing, batching, the device's thread, answers. Only the runtime is replaced. It sleeps for each token of
a batch, and an input's score is the number of its tokens, so that a caller can tell whether the answer
belongs to its call. With calls of even size, the longest input fills a batch and the shortest fills more than
half of one, so that a batch is one call. With mixed sizes, a batch is a small call or a tenth of a large one.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from unittest.mock import patch

import grpc
import torch

from farrank_bench.scaling.calls import MAX_TOKENS, QUERY_TOKENS, SPECIAL_TOKENS
from farrank_calls.telemetry.config import LoggingConfig
from farrank_rankers.family import EvidenceKind
from farrank_rankers.features import Features
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import ServableRanker
from farrank_runtimes.runtime import Capabilities, CompletedBatch, DocumentScores
from farrank_server.config.schema import BatchingConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.loaded import loading
from farrank_server.listen import GrpcListener
from farrank_server.replica import Replica
from farrank_server.run import set_up_process
from farrank_settings.checked import at_least

# Only this ranker's reader is used.
SOURCE = "embedded:firstp"
# The interval of a replica's load reports, which gRPC's weighted round robin reads.
REPORT_S = 0.1
# Added to the backlog, because gRPC gives a replica that reports no utilization the average weight.
IDLE_S = 0.05

# The speed of a device that takes no time.
UNBOUNDED_TOKENS_PER_S = 1e7


@dataclass(frozen=True, slots=True)
class SleepingConfig(ServerConfig):
    """A server's configuration, and the seconds that its device sleeps for each token."""

    token_s: float = at_least(0, 0.002)


def sleeping_config(
    token_s: float, *, batch_documents: int = 1, port: int = 0, drain_timeout_s: float = 2.0
) -> SleepingConfig:
    """Configure a server with one sleeping ranker, on loopback, without metrics and HTTP."""
    ranker = RankerConfig(
        source=SOURCE,
        max_query_tokens=QUERY_TOKENS,
        max_document_tokens=MAX_TOKENS - QUERY_TOKENS - SPECIAL_TOKENS,
    )
    return SleepingConfig(
        rankers={"sleeping": ranker},
        listen=ListenConfig(port=port, metrics_port=None, drain_timeout_s=drain_timeout_s),
        batching=BatchingConfig(max_batch_tokens=MAX_TOKENS * batch_documents),
        logging=LoggingConfig(level="error"),
        cache_bytes=0,
        token_s=token_s,
    )


class SleepingRuntime:
    """A runtime that only sleeps: a batch takes `token_s` for each token of its inputs."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def encode(self, inputs: Sequence[EncoderInput]) -> CompletedBatch:
        """Sleep. An input's only feature is its number of tokens. Raises: ValueError without inputs."""
        if not inputs:
            raise ValueError("inputs is empty; a batch needs at least 1")
        began_s = time.perf_counter()
        tokens = [each.tokens for each in inputs]
        if self._token_s:
            time.sleep(self._token_s * sum(tokens))
        rows = Features(torch.tensor(tokens, dtype=torch.float32)[:, None]).rows()
        return CompletedBatch(rows, time.perf_counter() - began_s)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Score each document with the largest feature of its chunks. Shapes: documents D times (C, 1)."""
        chunks = [document.vectors[:, 0].tolist() for document in documents]
        return DocumentScores([max(each) for each in chunks], chunks)

    def warm_up(self) -> float:
        """Return the known speed, in tokens per second."""
        return 1 / self._token_s if self._token_s else UNBOUNDED_TOKENS_PER_S

    def capabilities(self) -> Capabilities:
        """Describe the runtime."""
        return Capabilities("sleeping", "cpu", "fp32", MAX_TOKENS)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def sleep_instead(token_s: float) -> None:
    """Make this process's servers open every ranker with a runtime that sleeps."""

    def open_sleeping(source: str, overrides: Overrides, **_: object) -> ServableRanker:
        reader, runtime = open_reader(source, **overrides), SleepingRuntime(token_s)
        return ServableRanker(reader, "sleeping", "sleeping", EvidenceKind.CHUNK_SCORE, runtime, "it sleeps")

    patch.object(loading, "open_ranker_runtime", open_sleeping).start()


def report_load_to_grpc() -> None:
    """Make this process's servers stream load reports, only for gRPC's `weighted_round_robin`.

    A replica's weight is its calls per second over its utilization: 1 over the backlog in seconds.
    Source: gRFC A51 and A58; xds/service/orca/v3/orca.proto, xds/data/orca/v3/orca_load_report.proto.
    """
    report_load = GrpcListener.report_load

    def report(self: GrpcListener, backlog_s: Callable[[], float]) -> None:
        async def stream(_: bytes, __: object) -> AsyncIterator[bytes]:
            while True:
                # Two doubles: rps_fractional is field 6, application_utilization field 9.
                yield struct.pack("<BdBd", 6 << 3 | 1, 1.0, 9 << 3 | 1, backlog_s() + IDLE_S)
                await asyncio.sleep(REPORT_S)

        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
        methods = {"StreamCoreMetrics": handler}
        service = grpc.method_handlers_generic_handler("xds.service.orca.v3.OpenRcaService", methods)
        self.server.add_generic_rpc_handlers((service,))
        report_load(self, backlog_s)

    patch.object(GrpcListener, "report_load", report).start()


def serve_sleeping(asked: Connection, config: SleepingConfig) -> None:
    """Run one replica: send its address when it is healthy, and serve until this process is killed."""
    set_up_process()
    sleep_instead(config.token_s)
    report_load_to_grpc()

    async def serve() -> None:
        async with Replica(replace(config, listen=replace(config.listen, port=0))) as replica:
            asked.send(replica.address)
            await asyncio.Event().wait()

    asyncio.run(serve())

"""A real engine with tiny rankers, whose runtimes a test wraps to delay, fail or observe batches."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.batcher import Batcher
from farrank_runtimes.runtime import Capabilities, DocumentScores, Encoding, Runtime
from farrank_server.config.schema import (
    BatchingConfig,
    DepthConfig,
    DeviceConfig,
    LimitsConfig,
    RankerConfig,
    ServerConfig,
)
from farrank_server.engine.call import QueuedInput, RerankCall, RerankResult, text_documents
from farrank_server.engine.device.device_loop import DeviceState, DeviceThread
from farrank_server.engine.device.work_queue import Inputs
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.engine.loaded.ranker import LoadedEnsemble, Scorer
from farrank_server.metrics import Metrics

QUERY = "where does the river rise"
TEXTS = tuple(f"the river rises in the mountains {'and goes on ' * n}" for n in range(12))
POISON = "xylophone"
POISON_ID = 8516  # "##yl", which no other text here contains

R = TypeVar("R", bound=Runtime)


def longest(inputs: Sequence[EncoderInput]) -> int:
    """Return the number of tokens of the longest input."""
    return max(each.tokens for each in inputs)


class Wrapped:
    """A runtime that passes everything on. Subclasses change parts of it."""

    def __init__(self, inner: Runtime) -> None:
        self.inner = inner

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        return self.inner.encode(inputs)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        return self.inner.score(documents, queries)

    def warm_up(self) -> float:
        return self.inner.warm_up()

    def capabilities(self) -> Capabilities:
        return self.inner.capabilities()

    def close(self) -> None:
        self.inner.close()


class Faulty(Wrapped):
    """A runtime that passes every batch to a test first, which may fail it."""

    def __init__(self, inner: Runtime, before: Callable[[Sequence[EncoderInput]], None]) -> None:
        super().__init__(inner)
        self.before = before
        self.batches: list[tuple[int, int]] = []

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        self.before(inputs)
        self.batches.append((len(inputs), longest(inputs)))
        return self.inner.encode(inputs)


@dataclass
class Bench(Generic[R]):
    """An engine with one pair ranker, one dual one and both as an ensemble, and a way to call it."""

    engine: Engine
    runtimes: dict[str, R]
    metrics: Metrics

    async def rerank(
        self,
        texts: tuple[str, ...] = TEXTS,
        *,
        ranker: str = "maxp",
        timeout_s: float = 60.0,
        max_chunks: int | None = None,
        depth: DepthConfig | None = None,
        comparable_scores: bool = False,
    ) -> RerankResult:
        now_s, documents = time.monotonic(), text_documents(texts)
        call = RerankCall(ranker, QUERY, documents, max_chunks, now_s, now_s + timeout_s, depth=depth)
        return await self.engine.rerank(replace(call, comparable_scores=comparable_scores))

    def is_ready(self) -> bool:
        """Return whether the device takes calls."""
        return self.engine.device.state is DeviceState.READY

    def batcher(self, ranker: str = "maxp") -> Batcher[QueuedInput]:
        """Return a ranker's queue, which the device's thread owns."""
        return self.engine.device.loop.work.queues[ranker].batcher

    def waiting(self, ranker: str = "maxp") -> int:
        """Count the pending inputs, including those in the inbox."""
        messages = self.engine.device.loop.inbox.peek()
        arrived = [each for each in messages if isinstance(each, Inputs) and each.call.ranker.name == ranker]
        return len(self.batcher(ranker)) + sum(len(each.inputs) for each in arrived)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def opened_bench(
    tiny_rankers: dict[str, Path], wrap: Callable[[Runtime], R], hang_after_s: float = 600.0, **limits: int
) -> AsyncIterator[Bench[R]]:
    """Open an engine whose runtimes are wrapped."""
    config = ServerConfig(
        # Inputs are queued as soon as they are read, not in rounds, unless a call asks for them. The limit
        # lets tests see that a cut is named.
        rankers={
            "maxp": RankerConfig(
                str(tiny_rankers["maxp"]), depth=DepthConfig("all"), max_document_tokens=1431
            ),
            "biencoder": RankerConfig(str(tiny_rankers["biencoder"])),
        },
        batching=BatchingConfig(max_batch_tokens=1024),
        device=DeviceConfig(hang_after_s=hang_after_s),
        limits=LimitsConfig(**limits),
    )
    cache, metrics = DocumentCache(config.cache_bytes), Metrics()
    lanes = [lane for scorer in load_rankers(config, cache) for lane in scorer.members]
    runtimes = {lane.name: wrap(lane.runtime) for lane in lanes}
    for lane in lanes:
        lane.runtime = runtimes[lane.name]
        lane.capabilities = lane.runtime.capabilities()
        lane.policy = replace(lane.policy, packed=lane.capabilities.packed)
    scorers: list[Scorer] = [*lanes, LoadedEnsemble("both", tuple(lanes))]
    engine = Engine(config, scorers, DeviceThread(), cache, metrics)
    try:
        yield Bench(engine, runtimes, metrics)
    finally:
        engine.close()


Before = Callable[[Sequence[EncoderInput]], None]
OpenBench = Callable[..., AbstractAsyncContextManager[Bench[Faulty]]]


def scores(outcome: RerankResult | BaseException) -> list[float]:
    assert isinstance(outcome, RerankResult)
    return [document.score for document in outcome.documents]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110  # what is waited for happens on other threads
            await asyncio.sleep(0.01)

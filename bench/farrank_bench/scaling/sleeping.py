"""A device that sleeps as long as one would compute, under a real server.

Two cores cannot show what eight devices do. Here all of a server is as it is: sockets, admission, tokenizing,
batching, the device's thread, answers. Only the runtime is not: it sleeps for each token of a batch, and an
input's score is the number of its tokens, so that whoever asks can tell whether the answer is to that call.
The longest input fills a batch, and the shortest more than half of one: a batch is one call.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from unittest.mock import patch

import torch

from farrank_rankers.family import EvidenceKind
from farrank_rankers.features import Features
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import ServableRanker
from farrank_runtimes.runtime import Capabilities, DocumentScores, Encoded
from farrank_server.config.checked import at_least
from farrank_server.config.schema import (
    BatchingConfig,
    ListenConfig,
    LoggingConfig,
    RankerConfig,
    ServerConfig,
)
from farrank_server.engine.rankers import loading
from farrank_server.replica import Replica
from farrank_server.run import set_process_up

# Only how it reads texts is used.
SOURCE = "embedded:firstp"
QUERY_TOKENS, SPECIAL_TOKENS = 1, 3
MAX_TOKENS = 64
MIN_TOKENS = MAX_TOKENS // 2 + 1

# What is said of a device that takes no time.
UNBOUNDED_TOKENS_PER_S = 1e7


@dataclass(frozen=True, slots=True)
class SleepingConfig(ServerConfig):
    """A server's configuration, and for how many seconds its device sleeps for each token."""

    token_s: float = at_least(0, 0.002)


def sleeping_config(token_s: float, *, port: int = 0, drain_timeout_s: float = 2.0) -> SleepingConfig:
    """A server of one sleeping ranker, on loopback, without metrics and HTTP."""
    ranker = RankerConfig(
        source=SOURCE,
        max_query_tokens=QUERY_TOKENS,
        max_document_tokens=MAX_TOKENS - QUERY_TOKENS - SPECIAL_TOKENS,
    )
    return SleepingConfig(
        rankers={"sleeping": ranker},
        listen=ListenConfig(port=port, metrics_port=None, drain_timeout_s=drain_timeout_s),
        batching=BatchingConfig(max_batch_tokens=MAX_TOKENS),
        logging=LoggingConfig(level="error"),
        cache_bytes=0,
        token_s=token_s,
    )


class SleepingRuntime:
    """A runtime that computes nothing. Inputs take `token_s` for each of their tokens, one after another."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoded:
        """Sleep; the only feature of an input is its number of tokens. Raises: ValueError without inputs."""
        if not inputs:
            raise ValueError("inputs is empty; a batch needs at least 1")
        began_s = time.perf_counter()
        tokens = [each.tokens for each in inputs]
        if self._token_s:
            time.sleep(self._token_s * sum(tokens))
        rows = Features(torch.tensor(tokens, dtype=torch.float32)[:, None]).rows()
        return Encoded(rows, time.perf_counter() - began_s)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Give each document the feature of its best chunk. Shapes: documents D times (C, 1)."""
        chunks = [document.vectors[:, 0].tolist() for document in documents]
        return DocumentScores([max(each) for each in chunks], chunks)

    def warm_up(self) -> float:
        """Give its speed, which is known, in tokens per second."""
        return 1 / self._token_s if self._token_s else UNBOUNDED_TOKENS_PER_S

    def capabilities(self) -> Capabilities:
        """What is said of it."""
        return Capabilities("sleeping", "cpu", "fp32", MAX_TOKENS)

    def close(self) -> None:
        """Nothing is held."""


def sleep_instead(token_s: float) -> None:
    """Have this process's servers open every ranker with a runtime that sleeps."""

    def open_sleeping(source: str, overrides: Overrides, **_: object) -> ServableRanker:
        reader, runtime = open_reader(source, **overrides), SleepingRuntime(token_s)
        return ServableRanker(reader, "sleeping", EvidenceKind.CHUNK_SCORE, runtime, "it sleeps")

    patch.object(loading, "open_ranker_runtime", open_sleeping).start()


def serve_sleeping(told: Connection, config: SleepingConfig) -> None:
    """Be one replica: tell the address when it is healthy, and serve until this process is ended."""
    set_process_up()
    sleep_instead(config.token_s)

    async def serve() -> None:
        async with Replica(replace(config, listen=replace(config.listen, port=0))) as replica:
            told.send(replica.address)
            await asyncio.Event().wait()

    asyncio.run(serve())

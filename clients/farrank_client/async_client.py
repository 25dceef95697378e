"""The asyncio client: the same calls, awaited."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc

from farrank_client import calls
from farrank_client.calls import Answer, Call, Documents, Response
from farrank_client.catalog import Catalog
from farrank_client.errors import DeadlineExceeded, FarrankError, Unavailable
from farrank_client.ranking import Ranking, ScoreScale
from farrank_client.retry import DEFAULT_RETRY, NO_RETRY, UNTIL_HEALTHY, Attempts, RetryPolicy
from farrank_client.transport import (
    KEEPALIVE_S,
    AsyncGrpcTransport,
    AsyncTransport,
    ChannelOption,
    Metadata,
    Tls,
    channel_credentials,
    channel_options,
)


class AsyncClient:
    """Talks to one server from one event loop. Close it, or use it in an `async with`.

    Cancelling a task that waits for a call cancels the call, so that the server drops its work.

    `timeout_s` is the deadline of every call that brings none of its own, retries included. `transport`
    replaces the network (see `farrank_client.testing`). Calls raise what the tree in `errors` shows.
    `keepalive_s` is how often a waiting call asks whether its connection lives (None: never).
    Raises: ValueError for a URL as `target`, or both `tls` and `credentials`; OSError if a file of `tls`
    cannot be read.
    """

    def __init__(
        self,
        target: str = "localhost:50051",
        *,
        timeout_s: float = 60.0,
        retry: RetryPolicy = DEFAULT_RETRY,
        tls: Tls | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        keepalive_s: float | None = KEEPALIVE_S,
        options: Sequence[ChannelOption] = (),
        transport: AsyncTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._retry = retry
        if transport is None:
            every_option = channel_options(keepalive_s=keepalive_s, tls=tls, extra=options)
            chosen = channel_credentials(target, tls, credentials)
            channel = (
                grpc.aio.insecure_channel(target, every_option)
                if chosen is None
                else grpc.aio.secure_channel(target, chosen, every_option)
            )
            transport = AsyncGrpcTransport(channel, metadata)
        self._transport = transport

    async def rerank(
        self,
        query: str,
        documents: Documents,
        *,
        ranker: str | None = None,
        top_n: int | None = None,
        max_chunks: int | None = None,
        return_texts: bool = False,
        return_chunk_scores: bool = False,
        score_scale: ScoreScale | None = None,
        count_tokens_cut: bool = False,
        timeout_s: float | None = None,
    ) -> Ranking:
        """Order documents by a query, reading each as a whole.

        `documents` are texts, `Document`s, pairs (id, text), mappings with `text` and maybe `id`, or one
        mapping of ids to texts. All are scored; `top_n` limits what is returned, `max_chunks` what is read of
        each. Scores are the ranker's own, for a cross-encoder logits: `score_scale=ScoreScale.SIGMOID` puts
        them between 0 and 1. `count_tokens_cut` makes `Result.tokens_cut` exact, at the price of tokenizing
        documents to their end.
        Raises: TypeError for what is no document; FarrankError where the call fails.
        """
        options = calls.options_to_pb(
            ranker=ranker,
            top_n=top_n,
            max_chunks=max_chunks,
            return_texts=return_texts,
            return_chunk_scores=return_chunk_scores,
            score_scale=score_scale,
            count_tokens_cut=count_tokens_cut,
        )
        return await self._perform(calls.rerank(query, documents, options), timeout_s)

    async def search_and_rerank(
        self,
        query: str,
        *,
        index: str | None = None,
        k: int | None = None,
        ranker: str | None = None,
        top_n: int | None = None,
        max_chunks: int | None = None,
        return_texts: bool = False,
        return_chunk_scores: bool = False,
        score_scale: ScoreScale | None = None,
        count_tokens_cut: bool = False,
        timeout_s: float | None = None,
    ) -> Ranking:
        """Search an index of the server for `k` candidates and order them like `rerank`."""
        options = calls.options_to_pb(
            ranker=ranker,
            top_n=top_n,
            max_chunks=max_chunks,
            return_texts=return_texts,
            return_chunk_scores=return_chunk_scores,
            score_scale=score_scale,
            count_tokens_cut=count_tokens_cut,
        )
        return await self._perform(calls.search_and_rerank(query, index, k, options), timeout_s)

    async def rankers(self, *, timeout_s: float | None = None) -> Catalog:
        """List the server's rankers, indexes and limits."""
        return await self._perform(calls.rankers(), timeout_s)

    async def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Ask once whether the server takes work; no answer in time is a no."""
        try:
            await self._perform(calls.check_health(), timeout_s, NO_RETRY)
        except (Unavailable, DeadlineExceeded):
            return False
        return True

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Wait until the server takes work, as after its start.

        Raises: Unavailable or DeadlineExceeded, with the last reason, if it does not in time.
        """
        await self._perform(calls.check_health(), timeout_s, UNTIL_HEALTHY)

    async def close(self) -> None:
        """End calls in flight and let go of the connection."""
        await self._transport.close_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _perform(
        self, call: Call[Response, Answer], timeout_s: float | None, retry: RetryPolicy | None = None
    ) -> Answer:
        attempts = Attempts(retry or self._retry, self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                response = await self._transport.call_async(
                    call.method, call.request, call.response_type, timeout_s=attempts.remaining_s()
                )
                return call.read(response)
            except FarrankError as error:
                pause_s = attempts.pause_s_after(error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

"""Farrank itself, over gRPC, by its own client."""

from collections.abc import Sequence

from farrank_client import AsyncClient, FarrankError, RetryPolicy
from farrank_loadtest.targets import Answer, Document, TargetError, scores_by_index

_STAGES = ("total", "tokenization", "queue", "inference", "aggregation")
_COUNTS = ("chunks", "cached_chunks", "pairs", "padded_tokens")


class FarrankTarget:
    """Asks a Farrank server at `host:port`.

    Nothing is retried: what the server refuses is what is measured. Documents travel without their ids and
    are told apart by their place, as the wire allows: a workload may hold the same one twice.
    """

    def __init__(self, location: str) -> None:
        self._client = AsyncClient(location, retry=RetryPolicy(max_attempts=1))

    async def rerank(
        self, query: str, documents: Sequence[Document], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents; the server's own times and counts come with the answer."""
        texts = [document.text for document in documents]
        try:
            ranking = await self._client.rerank(query, texts, ranker=ranker, timeout_s=timeout_s)
        except FarrankError as error:
            raise TargetError(error.code.name, error.message) from error
        scored = ((result.index, result.score) for result in ranking.results)
        stages_s = {stage: getattr(ranking.timings, f"{stage}_ns") / 1e9 for stage in _STAGES}
        counts = {name: getattr(ranking.usage, name) for name in _COUNTS}
        return Answer(scores_by_index(scored, len(documents)), stages_s, counts)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()

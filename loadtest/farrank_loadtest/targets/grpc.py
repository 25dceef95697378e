"""Farrank over gRPC, through its own client."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from farrank_client import AsyncClient, FarrankError, InvalidArgument, Priority, Ranking, RetryPolicy
from farrank_loadtest.depths import Depth
from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.targets import Answer, CandidateDocument, TargetError, scores_by_index

_STAGES = ("total", "tokenization", "queue", "inference", "aggregation")
_COUNTS = ("chunks", "cached_chunks", "pairs", "padded_tokens")


class FarrankTarget:
    """Calls a Farrank server at `host:port`.

    Nothing is retried, because refusals are measured. Documents are sent without ids and identified by their
    index, as the API allows: a workload may hold the same document twice. `priority` is that of all calls,
    `interactive` or `batch`; without one the server assumes interactive. `depth` is that of all calls, too;
    without one each ranker has its own.
    """

    def __init__(
        self,
        location: str,
        api_key: str | None = None,
        priority: str | None = None,
        depth: Depth | None = None,
    ) -> None:
        self._location = location
        self._api_key = api_key
        self._priority = None if priority is None else Priority[priority.upper()]
        self._depth = depth
        self._client = AsyncClient(location, retry=RetryPolicy(max_attempts=1), api_key=api_key)

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents; the server's own times and counts come with the answer."""
        texts = [document.text for document in documents]
        with _target_errors():
            ranking = await self._client.rerank(
                query,
                texts,
                ranker=ranker,
                priority=self._priority,
                depth=self._depth,
                timeout_s=timeout_s,
            )
        indexes = (result.index for result in ranking.results)
        scored = zip(indexes, ranking.run_scores(), strict=True)
        stages_s = {stage: getattr(ranking.timings, f"{stage}_ns") / 1e9 for stage in _STAGES}
        counts = {name: getattr(ranking.usage, name) for name in _COUNTS}
        return Answer(scores_by_index(scored, len(documents)), stages_s, counts)

    async def search(
        self, query: str, *, index: str, k: int | None, ranker: str, timeout_s: float
    ) -> Ranking:
        """Rerank the documents that the server finds in its index.

        Raises: TargetError if the call fails.
        """
        with _target_errors():
            return await self._client.search_and_rerank(
                query,
                index=index,
                k=k,
                ranker=ranker,
                priority=self._priority,
                depth=self._depth,
                timeout_s=timeout_s,
            )

    async def versions(self, rankers: Sequence[str], timeout_s: float) -> dict[str, str]:
        """Ask for the rankers' versions.

        Raises: TargetFailed if the server has no such ranker or cannot be reached.
        """
        try:
            async with AsyncClient(self._location, api_key=self._api_key) as client:
                catalog = await client.rankers(timeout_s=timeout_s)
        except FarrankError as error:
            raise TargetFailed(error.message, error.code.name) from error
        held = {each.name: each.version for each in catalog.rankers}
        if unknown := [name for name in rankers if name not in held]:
            named = ", ".join(map(repr, unknown))
            raise TargetFailed(f"has no ranker {named}, only {', '.join(held)}", "NOT_FOUND")
        return {name: held[name] for name in rankers}

    async def can_be_adaptive(self, ranker: str, timeout_s: float) -> bool:
        """Whether the server reads with this ranker in rounds; it refuses a call with a ranker that cannot.

        Raises: TargetFailed if the call fails for another reason.
        """
        try:
            async with AsyncClient(self._location, api_key=self._api_key) as client:
                await client.rerank("depth", ["depth"], ranker=ranker, depth="adaptive", timeout_s=timeout_s)
        except InvalidArgument:
            return False
        except FarrankError as error:
            raise TargetFailed(error.message, error.code.name) from error
        return True

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


@contextmanager
def _target_errors() -> Iterator[None]:
    try:
        yield
    except FarrankError as error:
        raise TargetError(error.code.name, error.message) from error

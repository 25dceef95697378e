"""Order every query's candidates by a ranker of the server."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farrank_client import AsyncClient, FarrankError
from farrank_loadtest.accuracy.candidates import Candidates
from farrank_loadtest.accuracy.in_flight import ask_all
from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.targets import Answer, Target, TargetError
from farrank_loadtest.trec import Run, rank

# Accuracy does not hurry: a server that is full, or restarts, is asked again.
_ASK_AGAIN = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "HTTP 429", "HTTP 503"})
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the server is asked: so many calls in flight, each with this deadline; `progress` gets counts."""

    in_flight: int
    timeout_s: float
    progress: Callable[[int], None]


async def rerank_run(
    target: Target, ranker: str, candidates: Sequence[Candidates], pace: Pace, finished: Run
) -> None:
    """Put each query into `finished` as soon as it is ranked, so that who interrupts keeps what was done.

    Raises: TargetFailed, with the query, at the first one that fails: a mean over the others would not be the
        ranker's.
    """

    async def ask(each: Candidates) -> None:
        answer = await _patiently(target, ranker, each, pace.timeout_s)
        doc_ids = (document.doc_id for document in each.documents)
        finished[each.query_id] = rank(each.query_id, zip(doc_ids, answer.scores, strict=True))
        pace.progress(len(finished))

    await ask_all(candidates, ask, in_flight=pace.in_flight)


async def search_run(
    client: AsyncClient,
    ranker: str,
    queries: Mapping[str, str],
    index: str,
    k: int | None,
    pace: Pace,
    finished: Run,
    first_stage: Run,
) -> None:
    """Let the server find the candidates in its index, and keep both orders of each query.

    Raises: TargetFailed as `rerank_run`.
    """

    async def ask(query: tuple[str, str]) -> None:
        query_id, text = query
        try:
            ranking = await client.search_and_rerank(
                text, index=index, k=k, ranker=ranker, timeout_s=pace.timeout_s
            )
        except FarrankError as error:
            raise _failed(ranker, query_id, error.code.name, error.message) from error
        finished[query_id] = rank(query_id, ((each.id, each.score) for each in ranking.results))
        first_stage[query_id] = rank(
            query_id, ((each.id, each.first_stage_score or 0.0) for each in ranking.results)
        )
        pace.progress(len(finished))

    await ask_all(queries.items(), ask, in_flight=pace.in_flight)


async def _patiently(target: Target, ranker: str, candidates: Candidates, timeout_s: float) -> Answer:
    for pause_s in (*_PAUSES_S, None):
        try:
            return await target.rerank(
                candidates.query, candidates.documents, ranker=ranker, timeout_s=timeout_s
            )
        except TargetError as error:
            if pause_s is None or error.status not in _ASK_AGAIN:
                raise _failed(ranker, candidates.query_id, error.status, error.message) from error
            await asyncio.sleep(pause_s)
    raise AssertionError("the last attempt answers or raises")


def _failed(ranker: str, query_id: str, status: str, message: str) -> TargetFailed:
    said = " ".join(message.split())
    return TargetFailed(f"ranker {ranker!r}, query {query_id!r}: {said} [{status}]", status)

"""Let a server rerank a test set with one ranker after the other, and write every run to a file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from farrank_loadtest.accuracy.test_set import RETRIEVER, Model, Runs, TestSet
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_loadtest.targets import Target, TargetError
from farrank_loadtest.targets.address import open_target
from farrank_loadtest.targets.grpc import FarrankTarget
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import calls_of_run
from farrank_trec import Run, ScoredDoc, rank, write_run
from farrank_trec.errors import InputError

# An accuracy test can wait: calls to a server that is overloaded or restarting are retried.
_ASK_AGAIN = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "HTTP 429", "HTTP 503"})
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
Ask = Callable[[str], Awaitable[list[ScoredDoc]]]


@dataclass(frozen=True, slots=True)
class RunMaker:
    """Asks one server for rankers' runs, `in_flight` queries at a time, and writes each run to `folder`.

    With an `index`, the server finds `k` candidates in it, or its default number without a `k`. `begun` gets
    the ranker and its number of queries, and returns a callback for the number done. `kept` lists every
    written file, complete or not, with the number of queries done and the total.
    """

    address: str
    allow_remote: bool
    in_flight: int
    timeout_s: float
    folder: Path
    begun: Callable[[str, int], Callable[[int], None]]
    index: str | None = None
    k: int | None = None
    api_key: str | None = field(default=None, repr=False)
    kept: list[tuple[Path, int, int]] = field(default_factory=list)

    async def rerank(self, target: Target, ranker: str, calls: Sequence[Call], part: str) -> Run:
        """Rerank the calls' documents.

        Raises: TargetFailed, with the query, at the first query that fails after all retries: a mean over the
            others would not be the ranker's. Finished queries are written even then.
        """
        by_id = {call.query_id: call for call in calls}

        async def ask(query_id: str) -> list[ScoredDoc]:
            call = by_id[query_id]
            answer = await target.rerank(call.query, call.documents, ranker=ranker, timeout_s=self.timeout_s)
            doc_ids = (document.doc_id for document in call.documents)
            return rank(query_id, zip(doc_ids, answer.scores, strict=True))

        return await self._run(ranker, list(by_id), ask, part)

    async def search(
        self, target: FarrankTarget, ranker: str, queries: Mapping[str, str], part: str, first_stage: Run
    ) -> Run:
        """Let the server find the candidates; the first stage's order goes into `first_stage`.

        Raises: TargetFailed as `rerank`.
        """

        async def ask(query_id: str) -> list[ScoredDoc]:
            found = await target.search(
                queries[query_id], index=self.index or "", k=self.k, ranker=ranker, timeout_s=self.timeout_s
            )
            first_stage[query_id] = rank(
                query_id, ((each.id, each.first_stage_score or 0.0) for each in found)
            )
            return rank(query_id, ((each.id, each.score) for each in found))

        return await self._run(ranker, list(queries), ask, part)

    async def _run(self, ranker: str, query_ids: Sequence[str], ask: Ask, part: str) -> Run:
        finished: Run = {}
        waiting, told = iter(query_ids), self.begun(ranker, len(query_ids))

        async def keep_asking() -> None:
            for query_id in waiting:
                finished[query_id] = await _patiently(ranker, query_id, ask)
                told(len(finished))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.in_flight):
                    group.create_task(keep_asking())
        except* Exception as failures:
            raise failures.exceptions[0] from None
        finally:
            run = self.keep(ranker, part, finished, query_ids)
        return run

    def keep(self, tag: str, part: str, finished: Run, query_ids: Iterable[str]) -> Run:
        """Write the finished part of a run, in the order of the queries; an empty run is not written."""
        order = list(query_ids)
        run = {query_id: finished[query_id] for query_id in order if query_id in finished}
        if run:
            path = self.folder / f"{quote(tag, safe='')}{part}.trec"
            write_run(path, run, tag=tag)
            self.kept.append((path, len(run), len(order)))
        return run


async def _patiently(ranker: str, query_id: str, ask: Ask) -> list[ScoredDoc]:
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            return await ask(query_id)
        except TargetError as error:
            pause_s = next(pauses_s, None)
            if pause_s is None or error.status not in _ASK_AGAIN:
                said = f"ranker {ranker!r}, query {query_id!r}: {error.message}"
                raise TargetFailed(said, error.status) from error
            await asyncio.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class RerankedRuns:
    """All runs by model, the retriever's first, and notes that a reader of the figures must know.

    `versions` are the rankers'; a peer, which has one ranker, reports none.
    """

    runs: Runs
    versions: Mapping[str, str]
    notes: Sequence[str]


async def rerank_models(
    maker: RunMaker,
    models: Sequence[Model],
    test_set: TestSet,
    *,
    collection: Sequence[Path] = (),
    skip_missing: bool = False,
) -> RerankedRuns:
    """Let the server rerank every part of the test set with every ranker of the models.

    The candidates are the parts' own, with texts from `collection`, unless the maker has an index.
    Raises: InputError if a text is missing without `skip_missing`; LoadtestError if the address is wrong, or
        an index is given and the server is not Farrank; TargetFailed if the server lacks a ranker, and as
        `RunMaker`'s methods.
    """
    # Two models may share a seed.
    rankers = list(dict.fromkeys(ranker for model in models for ranker in model.rankers))
    retrieved: list[Run] = []
    by_ranker: dict[str, list[Run]] = {ranker: [] for ranker in rankers}
    notes: list[str] = []
    target = open_target(maker.address, allow_remote=maker.allow_remote, api_key=maker.api_key)
    try:
        versions = (
            await target.versions(rankers, maker.timeout_s) if isinstance(target, FarrankTarget) else {}
        )
        for number, part in enumerate(test_set.parts, start=1):
            suffix = f".{number}" if len(test_set.parts) > 1 else ""
            if maker.index is not None:
                if not isinstance(target, FarrankTarget):
                    raise LoadtestError(f"target {maker.address!r}: only a Farrank server searches an index")
                found: Run = {}
                for ranker, made in by_ranker.items():
                    made.append(await maker.search(target, ranker, part.queries, suffix, found))
                retrieved.append(maker.keep("first-stage", suffix, found, part.queries))
                continue
            calls, missing = calls_of_run(part.candidates, part.queries, collection)
            if missing and not skip_missing:
                files = ", ".join(map(str, collection))
                raise InputError(f"{files}: {missing} (--skip-missing reranks without them)")
            if missing:
                notes.append(f"Missing texts were not reranked; the retriever's row has them: {missing}.")
            for ranker, made in by_ranker.items():
                made.append(await maker.rerank(target, ranker, calls, suffix))
            retrieved.append(part.candidates)
    finally:
        await target.close()
    runs = {
        model.name: [by_ranker[ranker] for ranker in model.rankers] or test_set.runs[model.name]
        for model in models
    }
    return RerankedRuns({RETRIEVER: [retrieved], **runs}, versions, notes)

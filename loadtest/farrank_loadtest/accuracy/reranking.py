"""Let a server rerank a test set by one ranker after the other, and keep every run in a file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from farrank_client import AsyncClient, FarrankError
from farrank_loadtest.accuracy.evaluation import ModelRuns
from farrank_loadtest.accuracy.test_set import RETRIEVER, Model, Part, RankerModel
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_loadtest.targets import Answer, Target, TargetError
from farrank_loadtest.targets.address import TargetAddress, open_target, permitted_address
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import calls_of_run
from farrank_trec import Run, rank, write_run
from farrank_trec.errors import InputError

Asked = TypeVar("Asked")


async def ask_all(asked: Iterable[Asked], ask: Callable[[Asked], Awaitable[None]], *, in_flight: int) -> None:
    """Ask everything in order, `in_flight` at a time; the first failure cancels the others and is raised."""
    waiting = iter(asked)

    async def keep_asking() -> None:
        for each in waiting:
            await ask(each)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(keep_asking())
    except* Exception as failures:
        raise failures.exceptions[0] from None


# Accuracy does not hurry: a server that is full, or restarts, is asked again.
_ASK_AGAIN = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "HTTP 429", "HTTP 503"})
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the server is asked: so many calls in flight, each with this deadline; `progress` gets counts."""

    in_flight: int
    timeout_s: float
    progress: Callable[[int], None]


async def rerank_run(target: Target, ranker: str, calls: Sequence[Call], pace: Pace, finished: Run) -> None:
    """Put each query into `finished` as soon as it is ranked, so that who interrupts keeps what was done.

    Raises: TargetFailed, with the query, at the first one that fails: a mean over the others would not be the
        ranker's.
    """

    async def ask(call: Call) -> None:
        answer = await _patiently(target, ranker, call, pace.timeout_s)
        doc_ids = (document.doc_id for document in call.documents)
        finished[call.query_id] = rank(call.query_id, zip(doc_ids, answer.scores, strict=True))
        pace.progress(len(finished))

    await ask_all(calls, ask, in_flight=pace.in_flight)


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


async def _patiently(target: Target, ranker: str, call: Call, timeout_s: float) -> Answer:
    for pause_s in (*_PAUSES_S, None):
        try:
            return await target.rerank(call.query, call.documents, ranker=ranker, timeout_s=timeout_s)
        except TargetError as error:
            if pause_s is None or error.status not in _ASK_AGAIN:
                raise _failed(ranker, call.query_id, error.status, error.message) from error
            await asyncio.sleep(pause_s)
    raise AssertionError("the last attempt answers or raises")


def _failed(ranker: str, query_id: str, status: str, message: str) -> TargetFailed:
    said = " ".join(message.split())
    return TargetFailed(f"ranker {ranker!r}, query {query_id!r}: {said} [{status}]", status)


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run that was written; it is whole if `queries` reaches `of`."""

    path: Path
    queries: int
    of: int


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Which server is asked how, and where the runs go."""

    target: str
    allow_remote: bool
    in_flight: int
    timeout_s: float
    folder: Path


class RunMaker:
    """Asks one server for the runs of several rankers; `kept` lists what was written, also when cut short."""

    def __init__(self, settings: RunSettings, progress: Callable[[str, int, int], None]) -> None:
        self._settings = settings
        self._progress = progress
        self.kept: list[KeptRun] = []

    async def versions(self, rankers: Sequence[str]) -> dict[str, str]:
        """Ask a Farrank server for the rankers' versions; peers hold one ranker and tell none.

        Raises: TargetFailed if the server has no such ranker or cannot be asked.
        """
        address = self._address()
        if address.protocol != "farrank":
            return {}
        async with AsyncClient(address.location, timeout_s=self._settings.timeout_s) as client:
            try:
                catalog = await client.rankers()
            except FarrankError as error:
                said = " ".join(error.message.split())
                raise TargetFailed(f"{said} [{error.code.name}]", error.code.name) from error
        held = {each.name: each.version for each in catalog.rankers}
        if unknown := [name for name in rankers if name not in held]:
            named = ", ".join(map(repr, unknown))
            raise TargetFailed(f"holds no ranker {named}, only {', '.join(held)}", "NOT_FOUND")
        return {name: held[name] for name in rankers}

    async def rerank(self, rankers: Sequence[str], calls: Sequence[Call], part: str) -> list[Run]:
        """Rerank the calls' documents by each ranker.

        Raises: TargetFailed at the first call that fails for good.
        """
        runs = []
        target = open_target(self._settings.target, allow_remote=self._settings.allow_remote)
        try:
            for ranker in rankers:
                finished: Run = {}
                order = [each.query_id for each in calls]
                try:
                    pace = self._pace(ranker, len(order))
                    await rerank_run(target, ranker, calls, pace, finished)
                finally:
                    runs.append(self._keep(ranker, part, finished, order))
        finally:
            await target.close()
        return runs

    async def search(
        self, rankers: Sequence[str], queries: Mapping[str, str], index: str, k: int | None, part: str
    ) -> tuple[Run, list[Run]]:
        """Search and rerank by each ranker: the first stage's run, and theirs.

        Raises: LoadtestError if the target has no search; TargetFailed at the first call that fails for good.
        """
        address = self._address()
        if address.protocol != "farrank":
            raise LoadtestError(f"target {self._settings.target!r}: only a Farrank server searches an index")
        runs = []
        first_stage: Run = {}
        order = list(queries)
        async with AsyncClient(address.location) as client:
            for ranker in rankers:
                finished: Run = {}
                try:
                    pace = self._pace(ranker, len(queries))
                    await search_run(client, ranker, queries, index, k, pace, finished, first_stage)
                finally:
                    runs.append(self._keep(ranker, part, finished, order))
        return self._keep("first-stage", part, first_stage, order), runs

    def _address(self) -> TargetAddress:
        return permitted_address(self._settings.target, allow_remote=self._settings.allow_remote)

    def _pace(self, ranker: str, queries: int) -> Pace:
        return Pace(
            self._settings.in_flight,
            self._settings.timeout_s,
            lambda done: self._progress(ranker, done, queries),
        )

    def _keep(self, ranker: str, part: str, finished: Run, order: Sequence[str]) -> Run:
        run = {query_id: finished[query_id] for query_id in order if query_id in finished}
        if run:
            path = self._settings.folder / f"{quote(ranker, safe='')}{part}.trec"
            write_run(path, run, tag=ranker)
            self.kept.append(KeptRun(path, len(run), len(order)))
        return run


@dataclass(frozen=True, slots=True)
class FirstStage:
    """Where candidates come from: the parts' own, with texts out of `collection`, or the server's `index`.

    `k` is how many the server looks for there; None leaves that to it.
    """

    collection: Sequence[Path] = ()
    skip_missing: bool = False
    index: str | None = None
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Reranked:
    """The first stage's run of each part, the runs by ranker, and what a reader of figures must know."""

    retrieved: Sequence[Run]
    by_ranker: Mapping[str, Sequence[Run]]
    versions: Mapping[str, str]
    notes: Sequence[str]


async def rerank_models(
    maker: RunMaker, models: Sequence[Model], parts: Sequence[Part], first_stage: FirstStage
) -> Reranked:
    """Let the server rerank every part by every ranker of the models.

    What was finished is written even where this raises.
    Raises: InputError if a text is missing and `skip_missing` is off; LoadtestError as `RunMaker`'s methods.
    """
    named = (ranker for model in models if isinstance(model, RankerModel) for ranker in model.rankers)
    rankers = list(dict.fromkeys(named))  # Two models may share a seed.
    versions = await maker.versions(rankers)
    retrieved: list[Run] = []
    by_ranker: dict[str, list[Run]] = {ranker: [] for ranker in rankers}
    notes: list[str] = []
    for number, part in enumerate(parts, start=1):
        suffix = f".{number}" if len(parts) > 1 else ""
        if first_stage.index is not None:
            found, runs = await maker.search(rankers, part.queries, first_stage.index, first_stage.k, suffix)
        else:
            found = part.candidates
            calls, missing = calls_of_run(found, part.queries, first_stage.collection)
            if missing and not first_stage.skip_missing:
                files = ", ".join(map(str, first_stage.collection))
                raise InputError(f"{files}: {missing} (--skip-missing reranks without them)")
            if missing:
                notes.append(f"Reranked without what is missing, which the retriever's row has: {missing}.")
            runs = await maker.rerank(rankers, calls, suffix)
        retrieved.append(found)
        for ranker, run in zip(rankers, runs, strict=True):
            by_ranker[ranker].append(run)
    return Reranked(retrieved, by_ranker, versions, notes)


def gather(
    models: Sequence[Model], read: Mapping[str, tuple[tuple[Run, ...], ...]], reranked: Reranked | None
) -> list[ModelRuns]:
    """Put all runs under their models' names: the retriever's first, where anything was reranked."""
    runs = [ModelRuns(RETRIEVER, (tuple(reranked.retrieved),))] if reranked else []
    for model in models:
        if isinstance(model, RankerModel):
            made = reranked.by_ranker if reranked else {}
            runs.append(ModelRuns(model.name, tuple(tuple(made[ranker]) for ranker in model.rankers)))
        else:
            runs.append(ModelRuns(model.name, read[model.name]))
    return runs

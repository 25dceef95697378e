"""Let a server rerank a test set with one ranker after the other, and write every run to a file."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from farrank_loadtest.accuracy.test_set import RETRIEVER, Model, Runs, TestSet
from farrank_loadtest.depths import Depth, depth_text
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_loadtest.kept_files import writing_to
from farrank_loadtest.targets import Target, TargetError
from farrank_loadtest.targets.address import open_target
from farrank_loadtest.targets.grpc import FarrankTarget
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import calls_of_run
from farrank_trec import Run, ScoredDoc, rank, read_run, write_run
from farrank_trec.errors import InputError
from farrank_trec.unfinished_run import UnfinishedRun, asked_of

# An accuracy test can wait: calls to a server that is overloaded or restarting are retried.
_ASK_AGAIN = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "HTTP 429", "HTTP 503"})
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
Ask = Callable[[str], Awaitable[list[ScoredDoc]]]


@dataclass(frozen=True, slots=True)
class RunMaker:
    """Asks one server for rankers' runs, `in_flight` queries at a time, and writes each run to `folder`.

    With an `index`, the server finds `k` candidates in it, or its default number without a `k`. `begun` gets
    the run's tag and its number of queries, and returns a callback for the number done. With `resume`,
    queries that a run in `folder` holds are not asked again. `kept` lists every written file, complete or
    not, with the number of queries done and the total.
    """

    address: str
    allow_remote: bool
    in_flight: int
    timeout_s: float
    folder: Path
    begun: Callable[[str, int], Callable[[int], None]]
    index: str | None = None
    k: int | None = None
    resume: bool = False
    api_key: str | None = field(default=None, repr=False)
    kept: list[tuple[Path, int, int]] = field(default_factory=list)

    async def rerank(
        self, target: Target, ranker: str, calls: Sequence[Call], part: str, tag: str = ""
    ) -> Run:
        """Rerank the calls' documents. `tag` names the run; it is the ranker's name if it is empty.

        Raises: TargetFailed, with the query, at the first query that fails after all retries: a mean over the
            others would not be the ranker's. Finished queries are written even then.
        """
        by_id = {call.query_id: call for call in calls}

        async def ask(query_id: str) -> list[ScoredDoc]:
            call = by_id[query_id]
            answer = await target.rerank(call.query, call.documents, ranker=ranker, timeout_s=self.timeout_s)
            doc_ids = (document.doc_id for document in call.documents)
            return rank(query_id, zip(doc_ids, answer.scores, strict=True))

        asked = {
            query_id: asked_of(call.query, (each.doc_id for each in call.documents))
            for query_id, call in by_id.items()
        }
        kept = self._kept(tag or ranker, part)
        for query_id, call in by_id.items():
            if {each.doc_id for each in kept.get(query_id, ())} != {each.doc_id for each in call.documents}:
                kept.pop(query_id, None)
        return await self._run(ranker, list(by_id), ask, part, tag or ranker, kept, asked)

    async def search(
        self,
        target: FarrankTarget,
        ranker: str,
        queries: Mapping[str, str],
        part: str,
        first_stage: Run,
        tag: str = "",
    ) -> Run:
        """Let the server find the candidates; the first stage's order goes into `first_stage`.

        Raises: TargetFailed as `rerank`.
        """

        async def ask(query_id: str) -> list[ScoredDoc]:
            found = await target.search(
                queries[query_id], index=self.index or "", k=self.k, ranker=ranker, timeout_s=self.timeout_s
            )
            doc_ids = [each.id for each in found.results]
            first = (each.first_stage_score or 0.0 for each in found.results)
            first_stage[query_id] = rank(query_id, zip(doc_ids, first, strict=True))
            return rank(query_id, zip(doc_ids, found.run_scores(), strict=True))

        return await self._run(ranker, list(queries), ask, part, tag or ranker, {}, {})

    def _kept(self, tag: str, part: str) -> Run:
        """Read the queries of an earlier run, if it is resumed."""
        path = self._path(tag, part)
        return read_run(path) if self.resume and path.exists() else {}

    def _path(self, tag: str, part: str) -> Path:
        return self.folder / f"{quote(tag, safe='@,=')}{part}.trec"

    async def _run(
        self,
        ranker: str,
        query_ids: Sequence[str],
        ask: Ask,
        part: str,
        tag: str,
        finished: Run,
        asked: Mapping[str, str],
    ) -> Run:
        path = self._path(tag, part)
        # Its file keeps the finished queries of a program that is killed; `versions.json` has the rankers'.
        with UnfinishedRun(path, {"tag": tag}, resume=self.resume, asked=asked) as unfinished:
            unfinished.finished = finished = {**finished, **unfinished.finished}
            waiting = iter([query_id for query_id in query_ids if query_id not in finished])
            told = self.begun(tag, len(query_ids))

            async def keep_asking() -> None:
                for query_id in waiting:
                    unfinished.add(query_id, await _patiently(ranker, query_id, ask))
                    told(len(finished))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.in_flight):
                        group.create_task(keep_asking())
            except* Exception as failures:
                raise failures.exceptions[0] from None
            finally:
                run = unfinished.publish(query_ids, tag)
                self._note(path, run, query_ids)
        return run

    def keep(self, tag: str, part: str, run: Run, query_ids: Collection[str]) -> Run:
        """Write the finished part of a run, in the order of the queries; an empty run is not written."""
        run = {query_id: run[query_id] for query_id in query_ids if query_id in run}
        path = self._path(tag, part)
        if run:
            write_run(path, run, tag=tag)
        self._note(path, run, query_ids)
        return run

    def _note(self, path: Path, run: Run, query_ids: Collection[str]) -> None:
        if run:
            self.kept.append((path, len(run), len(query_ids)))


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


VERSIONS = "versions.json"


async def _versions(
    maker: RunMaker, targets: Mapping[Depth | None, Target], rankers: Sequence[str]
) -> dict[str, str]:
    """Ask a Farrank server for the rankers' versions, and compare them with those of the runs to resume.

    Raises: LoadtestError if the runs to resume are of other versions; TargetFailed as `FarrankTarget`.
    """
    target = next(iter(targets.values()))
    if not isinstance(target, FarrankTarget):
        return {}
    versions = await target.versions(list(dict.fromkeys(rankers)), maker.timeout_s)
    path = maker.folder / VERSIONS
    kept: dict[str, str] = {}
    with writing_to(maker.folder):
        if maker.resume and path.exists():
            kept = json.loads(path.read_text("utf-8"))
        for ranker, version in versions.items():
            if kept.get(ranker, version) != version:
                raise LoadtestError(
                    f"{path}: the runs of {ranker} are of version {kept[ranker]}, and the server's is "
                    f"{version}: the two do not mix; name another folder"
                )
    return versions


def _write_versions(maker: RunMaker, versions: Mapping[str, str]) -> None:
    with writing_to(maker.folder):
        maker.folder.mkdir(parents=True, exist_ok=True)
        path = maker.folder / VERSIONS
        kept = json.loads(path.read_text("utf-8")) if maker.resume and path.exists() else {}
        path.write_text(json.dumps(kept | dict(versions), indent=1) + "\n", "utf-8")


def run_tag(ranker: str, depth: Depth | None) -> str:
    """Name a run: `maxp`, or `maxp@adaptive,chunks=4`."""
    return ranker if depth is None else f"{ranker}@{depth_text(depth)}"


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
    asked = list(dict.fromkeys((ranker, model.depth) for model in models for ranker in model.rankers))
    retrieved: list[Run] = []
    made: dict[tuple[str, Depth | None], list[Run]] = {each: [] for each in asked}
    notes: list[str] = []
    async with AsyncExitStack() as opened:
        targets: dict[Depth | None, Target] = {}
        for depth in dict.fromkeys(depth for _, depth in asked):
            targets[depth] = open_target(
                maker.address, allow_remote=maker.allow_remote, api_key=maker.api_key, depth=depth
            )
            opened.push_async_callback(targets[depth].close)
        versions = await _versions(maker, targets, [ranker for ranker, _ in asked])
        for number, part in enumerate(test_set.parts, start=1):
            suffix = f".{number}" if len(test_set.parts) > 1 else ""
            if maker.index is not None:
                found: Run = {}
                for ranker, depth in asked:
                    target = targets[depth]
                    if not isinstance(target, FarrankTarget):
                        raise LoadtestError(
                            f"target {maker.address!r}: only a Farrank server searches an index"
                        )
                    tag = run_tag(ranker, depth)
                    run = await maker.search(target, ranker, part.queries, suffix, found, tag)
                    made[ranker, depth].append(run)
                retrieved.append(maker.keep("first-stage", suffix, found, part.queries))
                continue
            calls, missing = calls_of_run(part.candidates, part.queries, collection)
            if missing and not skip_missing:
                files = ", ".join(map(str, collection))
                raise InputError(f"{files}: {missing} (--skip-missing reranks without them)")
            if missing:
                notes.append(f"Missing texts were not reranked; the retriever's row has them: {missing}.")
            _write_versions(maker, versions)
            for ranker, depth in asked:
                run = await maker.rerank(targets[depth], ranker, calls, suffix, run_tag(ranker, depth))
                made[ranker, depth].append(run)
            retrieved.append(part.candidates)
    runs = {
        model.name: [made[ranker, model.depth] for ranker in model.rankers] or test_set.runs[model.name]
        for model in models
    }
    return RerankedRuns({RETRIEVER: [retrieved], **runs}, versions, notes)

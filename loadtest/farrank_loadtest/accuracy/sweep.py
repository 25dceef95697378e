"""Rerank a whole test set by one ranker after the other, and keep every run in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from farrank_client import AsyncClient, FarrankError
from farrank_loadtest.accuracy.candidates import Candidates
from farrank_loadtest.accuracy.reranking import Pace, rerank_run, search_run
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_loadtest.targets.address import TargetAddress
from farrank_loadtest.targets.open import open_target, permitted_address
from farrank_loadtest.trec import Run, write_run


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run that was written; it is whole if `queries` reaches `of`."""

    path: Path
    queries: int
    of: int


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Which server is asked how, and where the runs go."""

    target: str
    allow_remote: bool
    in_flight: int
    timeout_s: float
    folder: Path


class Sweep:
    """Asks one server for the runs of several rankers; `kept` lists what was written, also when cut short."""

    def __init__(self, settings: SweepSettings, progress: Callable[[str, int, int], None]) -> None:
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

    async def rerank(self, rankers: Sequence[str], candidates: Sequence[Candidates], part: str) -> list[Run]:
        """Rerank the candidates by each ranker.

        Raises: TargetFailed at the first call that fails for good.
        """
        runs = []
        target = open_target(self._settings.target, allow_remote=self._settings.allow_remote)
        try:
            for ranker in rankers:
                finished: Run = {}
                order = [each.query_id for each in candidates]
                try:
                    pace = self._pace(ranker, len(order))
                    await rerank_run(target, ranker, candidates, pace, finished)
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

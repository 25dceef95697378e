"""Several first stages as one: each finds or scores candidates, and their results become one ranking."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from farrank_calls.errors import Gone
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.config import IndexConfig
from farrank_first_stage.kinds import CheckContext, Kind, StageContext
from farrank_settings.checked import at_least
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_indexes.stored_documents import DocumentStores

Answer = TypeVar("Answer")
Method = Literal["rrf", "linear", "mean"]
Scale = Literal["raw", "min_max"]

# One first stage's scores of a query's documents, by doc_id.
Scores = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FusionConfig(IndexConfig):
    """Several indexes of the same documents, searched at once, with their rankings fused into one.

    `of` names them. Each contributes its best `depth` documents, or as many as are requested if those are
    more. With `rrf` a document's score is the sum of 1 / (`rrf_k` + its rank) over the indexes (Cormack et
    al., SIGIR 2009). With `linear` it is the weighted sum of its scores there (`weights`, in the order of
    `of`; equal by default), and with `mean` their mean. `scores` is the scale of these: `raw`, unchanged (as
    papers fuse BM25 and cosine), or `min_max`, where for each query an index's lowest score becomes 0 and its
    highest 1. For a document that an index has not found, it adds 0 with `rrf`, and otherwise the lowest
    score among its results.

    With `candidates`, only that index of `of` is searched, and the others score its results. For a document
    that an index would not find, it adds 0 with `rrf`, and counts a score of 0 otherwise.
    """

    kind: str = field(default="fusion", kw_only=True)
    of: tuple[str, ...] = field(
        metadata={
            "holds": lambda names: len(names) > 1 and len(set(names)) == len(names),
            "allowed": "the names of two or more indexes, each once",
        }
    )
    method: Method = "rrf"
    rrf_k: int = at_least(1, 60)
    depth: int = at_least(1, 1000)
    weights: tuple[float, ...] | None = None
    scores: Scale | None = None
    candidates: str | None = None

    def __post_init__(self) -> None:
        """Check the settings also against each other."""
        IndexConfig.__post_init__(self)
        problems = []
        if self.weights is not None and self.method != "linear":
            problems.append(f"weights: need the method linear; the method is {self.method}")
        elif self.weights is not None and len(self.weights) != len(self.of):
            problems.append(
                f"weights: has {len(self.weights)} entries for the {len(self.of)} indexes of 'of'"
            )
        elif self.weights is not None and not any(self.weights):
            problems.append("weights: are all 0; at least one must be above 0")
        if self.scores is not None and self.method == "rrf":
            problems.append("scores: need the method linear or mean; rrf uses ranks")
        if self.candidates is not None and self.candidates not in self.of:
            known = ", ".join(self.of)
            problems.append(f"candidates: {self.candidates!r} is not allowed; it must be one of {known}")
        if problems:
            raise ConfigError(*problems)

    @property
    def weight_of(self) -> Mapping[str, float]:
        """The weight of each index's scores."""
        equal = [1.0 if self.method == "rrf" else 1 / len(self.of)] * len(self.of)
        return dict(zip(self.of, self.weights or equal, strict=True))


class FusionStage(FirstStage):
    """The indexes of one `FusionConfig`. Documents with one doc_id count as one document."""

    def __init__(self, config: FusionConfig, context: StageContext) -> None:
        self._config, self._name = config, context.name
        self._stage: Callable[[str], FirstStage] | None = context.stage
        self._members: dict[str, FirstStage] = {}

    async def start(self) -> None:
        """Find the members, which are started like any other index."""
        if self._stage is None:
            return
        self._members = {name: self._stage(name) for name in self._config.of}
        # The function leads to all stages, including this one: keeping it would form a reference cycle.
        self._stage = None

    async def stop(self) -> None:
        """Do nothing: the members are stopped like any other index."""

    def describe(self) -> IndexDescription:
        """Describe the members together: with as many documents as the largest has."""
        described = [member.describe() for member in self._members.values()]
        largest = max(described, key=lambda each: each.documents)
        return IndexDescription(
            self._name,
            largest.documents,
            _ranking(self._config),
            largest.mean_characters,
            self._config.kind,
            self._config.of,
        )

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id.

        The text of each document is read from the first member that found it, after fusion.
        """
        until_s = time.monotonic() + timeout_s
        scores, places = await self._found(query, max(k, self._config.depth), until_s, call)
        parts: dict[str, dict[str, float]] = {}
        for name, its in scores.items():
            for doc_id, score in its.items():
                parts.setdefault(doc_id, {})[name] = score
        fused = fuse(self._config, scores)
        best = sorted(fused, key=lambda doc_id: (-fused[doc_id], doc_id))[:k]
        # Re-scored candidates are known to be in the index that found them.
        finder = {doc_id: self._config.candidates or next(iter(parts[doc_id])) for doc_id in best}
        texts_of = await self._texts_of(finder, until_s, call) if texts else {}
        elsewhere = [doc_id for doc_id in best if doc_id not in places]
        located = await self.locate(elsewhere, until_s - time.monotonic(), call=call)
        places.update(zip(elsewhere, located, strict=True))
        return [
            Candidate(doc_id, texts_of.get(doc_id, ""), fused[doc_id], parts[doc_id], places[doc_id])
            for doc_id in best
        ]

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        """Return the texts of documents that a member found, in the order given.

        Raises: Gone for documents that no member has; the errors of the members' methods.
        """
        until_s = time.monotonic() + timeout_s
        read: dict[str, str] = {}
        missing = list(dict.fromkeys(doc_ids))
        for member in self._members.values():
            try:
                found = await member.texts(missing, until_s - time.monotonic(), call=call)
            except Gone as error:
                unknown = set(error.doc_ids)
                asked = [doc_id for doc_id in missing if doc_id not in unknown]
                left_s = until_s - time.monotonic()
                found = await member.texts(asked, left_s, call=call) if asked else []
            else:
                asked = missing
            read.update(zip(asked, found, strict=True))
            missing = [doc_id for doc_id in missing if doc_id not in read]
            if not missing:
                return [read[doc_id] for doc_id in doc_ids]
        raise Gone(missing)

    @property
    def stores(self) -> "DocumentStores | None":
        """The data stored with the first member that has any."""
        owner = self._stores_member
        return None if owner is None else owner.stores

    async def locate(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[int | None]:
        """Return the places of documents in the member whose stores are used."""
        owner = self._stores_member
        if owner is None or not doc_ids:
            return [None] * len(doc_ids)
        return await owner.locate(doc_ids, timeout_s, call=call)

    @property
    def _stores_member(self) -> FirstStage | None:
        return next((member for member in self._members.values() if member.stores is not None), None)

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        """Score these documents as `search` would at depth `depth`; others are left out."""
        if not doc_ids:
            return {}
        until_s = time.monotonic() + timeout_s
        scores, _ = await self._found(query, self._config.depth, until_s, call)
        fused = fuse(self._config, scores)
        return {doc_id: fused[doc_id] for doc_id in doc_ids if doc_id in fused}

    async def _found(
        self, query: str, depth: int, until_s: float, call: CallRecord
    ) -> tuple[dict[str, Scores], dict[str, int | None]]:
        """Ask every member for the scores of its results, or of the results of the `candidates` member.

        Also return the places of results in the member whose stores are used.
        """
        places: dict[str, int | None] = {}
        owner = self._stores_member

        async def search(name: str) -> Scores:
            member, left_s = self._members[name], until_s - time.monotonic()
            found = await member.search(query, depth, left_s, texts=False, call=call)
            if member is owner:
                places.update({each.doc_id: each.place for each in found})
            return {each.doc_id: each.score for each in found}

        if self._config.candidates is None:
            names = self._config.of
            return dict(zip(names, await gather_or_cancel(map(search, names)), strict=True)), places
        found = await search(self._config.candidates)

        async def score(name: str) -> Scores:
            if name == self._config.candidates:
                return found
            left_s = until_s - time.monotonic()
            its = await self._members[name].scores(query, [*found], left_s, call=call)
            # With ranks, a missing document adds nothing anyway.
            missing = {} if self._config.method == "rrf" else dict.fromkeys(found, 0.0)
            return {**missing, **its}

        scores = await gather_or_cancel(map(score, self._config.of))
        return dict(zip(self._config.of, scores, strict=True)), places

    async def _texts_of(self, finder: Mapping[str, str], until_s: float, call: CallRecord) -> dict[str, str]:
        """Read each text from the member that found its document."""

        async def read(name: str) -> list[tuple[str, str]]:
            its = [doc_id for doc_id, finding in finder.items() if finding == name]
            left_s = until_s - time.monotonic()
            found = await self._members[name].texts(its, left_s, call=call)
            return list(zip(its, found, strict=True))

        pairs = await gather_or_cancel(map(read, dict.fromkeys(finder.values())))
        return dict(pair for its in pairs for pair in its)


async def gather_or_cancel(awaitables: Iterable[Awaitable[Answer]]) -> list[Answer]:
    """Wait for all answers; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def fuse(config: FusionConfig, scores: Mapping[str, Scores]) -> dict[str, float]:
    """Fuse the scores of all indexes into one score per document."""
    parts = {name: _part(config, its) for name, its in scores.items()}
    found = dict.fromkeys(doc_id for its in scores.values() for doc_id in its)
    weight_of = config.weight_of
    return {
        doc_id: sum(weight_of[name] * part.get(doc_id, missing) for name, (part, missing) in parts.items())
        for doc_id in found
    }


def _part(config: FusionConfig, scores: Scores) -> tuple[Scores, float]:
    """Return what an index adds for each of its documents, and what it adds for any other document."""
    if config.method == "rrf":
        return reciprocal_ranks(scores, config.rrf_k), 0.0
    if config.scores == "min_max":
        return min_max(scores), 0.0
    return scores, min(scores.values(), default=0.0)


def reciprocal_ranks(scores: Scores, rrf_k: int) -> dict[str, float]:
    """Score documents by their ranks, from 1; equal scores are ranked in the order of doc_id."""
    ranked = sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))
    return {doc_id: 1 / (rrf_k + rank) for rank, doc_id in enumerate(ranked, start=1)}


def min_max(scores: Scores) -> Scores:
    """Scale scores so that the lowest is 0 and the highest 1; if all are equal, they become 1."""
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    if low == high:
        return dict.fromkeys(scores, 1.0)
    return {doc_id: (score - low) / (high - low) for doc_id, score in scores.items()}


def _ranking(config: FusionConfig) -> str:
    """Name the way to fuse and its parameters."""
    settings = {"k": config.rrf_k} if config.method == "rrf" else {"scores": config.scores or "raw"}
    named = [f"{name}={value}" for name, value in settings.items()]
    if config.method == "linear":
        named.append("weights=" + ":".join(f"{weight:g}" for weight in config.weight_of.values()))
    if config.candidates is not None:
        named.append(f"candidates={config.candidates}")
    return f"{config.method}({','.join(named)},depth={config.depth})"


def _check(key: str, config: FusionConfig, context: CheckContext) -> Iterator[str]:
    """Find unknown names, and fusions that contain themselves."""
    for name in config.of:
        if name not in context.indexes:
            known = ", ".join(context.indexes)
            yield f"{key}.of: there is no index {name!r}; known are: {known}"
    if cycle := _cycle_through(config, context):
        yield f"{key}.of: a fusion cannot contain itself: {' of '.join(cycle)}"


def _cycle_through(config: FusionConfig, context: CheckContext) -> list[str]:
    """Search the members of members for the fusion itself; return the path to it, or an empty list."""
    ways = [[name] for name in config.of]
    seen = set()
    while ways:
        way = ways.pop()
        member = context.indexes.get(way[-1])
        if member is config:
            return [way[-1], *way]
        if isinstance(member, FusionConfig) and way[-1] not in seen:
            seen.add(way[-1])
            ways += [[*way, name] for name in member.of]
    return []


FUSION = Kind(FusionConfig, FusionStage, _check)

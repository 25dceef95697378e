"""Fusions, compared with their formulas over whole tables of scores."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farrank_calls.errors import DeadlineExceeded, Gone, Unavailable
from farrank_calls.fairness.fair_order import Account
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig, IndexConfig
from farrank_first_stage.fusion import FusionConfig, FusionStage
from farrank_first_stage.kinds import StageContext
from farrank_first_stage.lucene_host import LuceneHost
from farrank_first_stage.stages import FirstStages, check_indexes
from farrank_settings.errors import ConfigError

TIMEOUT_S = 5.0
Table = dict[str, float]


class TableStage(FirstStage):
    """Finds documents by a table of scores, whatever the query is. Records the queries."""

    def __init__(self, name: str, table: Table) -> None:
        self.name, self.table = name, table
        self.searched: list[int] = []
        self.read: list[str] = []
        self.accounts: set[Account] = set()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def describe(self) -> IndexDescription:
        return IndexDescription(self.name, len(self.table), "table", 10 * len(self.table))

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        self.searched.append(k)
        self.accounts.add(call.account)
        ranked = sorted(self.table.items(), key=lambda item: (-item[1], item[0]))
        return [Candidate(doc_id, "", score) for doc_id, score in ranked[:k]]

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        self.accounts.add(call.account)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in self.table]:
            raise Gone(unknown)
        self.read += doc_ids
        return [f"{doc_id} of {self.name}" for doc_id in doc_ids]

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        self.accounts.add(call.account)
        return {doc_id: self.table[doc_id] for doc_id in doc_ids if doc_id in self.table}


async def fused(members: Mapping[str, FirstStage], **options: Any) -> FusionStage:
    config = FusionConfig(of=tuple(members), **options)
    everything = FirstStageConfig()
    fusion = FusionStage(config, StageContext("it", everything, LuceneHost(everything), members.__getitem__))
    await fusion.start()
    return fusion


@pytest.mark.parametrize("options", [{}, {"candidates": "a"}])
async def test_members_are_asked_for_the_account_that_asks(options: dict[str, str]) -> None:
    team = Account("team")
    call, tables = CallRecord("", account=team), {"a": {"x": 1.0, "y": 0.5}, "b": {"x": 0.5, "z": 1.0}}
    members = {name: TableStage(name, table) for name, table in tables.items()}
    fusion = await fused(members, **options)
    assert await fusion.search("q", 3, TIMEOUT_S, call=call)
    assert await fusion.scores("q", ["x"], TIMEOUT_S, call=call)
    assert await fusion.texts(["x", "z"], TIMEOUT_S, call=call)
    for member in members.values():
        assert member.accounts == {team}


def random_tables(members: int, documents: int, *, held: float) -> dict[str, Table]:
    """Draw each member's scores for a part of the documents. Some are equal, some negative."""
    draw = random.Random(14)
    return {
        f"m{member}": {
            f"d{n:03}": round(draw.gauss(0, 3), 1) for n in range(documents) if draw.random() < held
        }
        for member in range(members)
    }


def ranks(table: Table) -> dict[str, int]:
    """Return the rank of each document."""
    before = {
        doc_id: sum(other > score or (other == score and name < doc_id) for name, other in table.items())
        for doc_id, score in table.items()
    }
    return {doc_id: 1 + count for doc_id, count in before.items()}


def top(table: Table, depth: int) -> Table:
    return {doc_id: table[doc_id] for doc_id, rank in ranks(table).items() if rank <= depth}


def expected_score(options: Mapping[str, Any], tables: Mapping[str, Table], doc_id: str) -> float:
    total = 0.0
    weights = options.get("weights", [1 / len(tables)] * len(tables))
    for weight, table in zip(weights, tables.values(), strict=True):
        if options["method"] == "rrf":
            if doc_id in table:
                total += 1 / (options.get("rrf_k", 60) + ranks(table)[doc_id])
            continue
        low, high = min(table.values()), max(table.values())
        score = table.get(doc_id, low)
        if options.get("scores") == "min_max":
            score = (score - low) / (high - low)
        total += weight * score
    return total


METHODS: list[dict[str, Any]] = [
    {"method": "rrf"},
    {"method": "rrf", "rrf_k": 7},
    {"method": "linear", "weights": (0.5, 2.0, 0.1, 0.0, -1.0)},
    {"method": "linear", "weights": (0.5, 2.0, 0.1, 1.0, 3.0), "scores": "min_max"},
    {"method": "mean"},
    {"method": "mean", "scores": "min_max"},
]


@pytest.mark.parametrize("options", METHODS, ids=str)
@pytest.mark.parametrize("depth", [10, 1000])
async def test_five_members_are_fused_by_the_formula(options: dict[str, Any], depth: int) -> None:
    tables = random_tables(5, 60, held=0.7)
    members = {name: TableStage(name, table) for name, table in tables.items()}
    fusion = await fused(members, depth=depth, **options)
    found = await fusion.search("q", 8, TIMEOUT_S)
    seen = {name: top(table, depth) for name, table in tables.items()}
    everything = {doc_id for table in seen.values() for doc_id in table}
    expected = {doc_id: expected_score(options, seen, doc_id) for doc_id in everything}
    best = sorted(expected, key=lambda doc_id: (-round(expected[doc_id], 9), doc_id))[:8]
    assert [each.doc_id for each in found] == best
    assert [each.score for each in found] == pytest.approx([expected[doc_id] for doc_id in best])
    for each in found:
        assert each.parts == {
            name: table[each.doc_id] for name, table in seen.items() if each.doc_id in table
        }
        assert each.text == f"{each.doc_id} of {min(each.parts)}"  # from the first member that found it
    # Each text is read only once.
    assert sorted(doc_id for member in members.values() for doc_id in member.read) == sorted(best)
    asked = [best[3], "unknown", best[0]]
    assert await fusion.scores("q", asked, TIMEOUT_S) == {
        each.doc_id: each.score for each in found if each.doc_id in asked
    }


@pytest.mark.parametrize("options", METHODS, ids=str)
async def test_candidates_of_one_are_scored_by_all(options: dict[str, Any]) -> None:
    tables = random_tables(5, 60, held=0.7)
    members = {name: TableStage(name, table) for name, table in tables.items()}
    fusion = await fused(members, candidates="m2", depth=20, **options)
    found = await fusion.search("q", 8, TIMEOUT_S)
    candidates = top(tables["m2"], 20)
    missing = {} if options["method"] == "rrf" else dict.fromkeys(candidates, 0.0)
    seen = {
        name: missing | {doc_id: table[doc_id] for doc_id in candidates if doc_id in table}
        for name, table in tables.items()
    }
    expected = {doc_id: expected_score(options, seen, doc_id) for doc_id in candidates}
    best = sorted(expected, key=lambda doc_id: (-round(expected[doc_id], 9), doc_id))[:8]
    assert [each.doc_id for each in found] == best
    assert [each.score for each in found] == pytest.approx([expected[doc_id] for doc_id in best])
    for each in found:
        assert each.parts == {
            name: table[each.doc_id] for name, table in seen.items() if each.doc_id in table
        }
    assert found[0].text == f"{best[0]} of m2"
    assert [member.searched for member in members.values()] == [[], [], [20], [], []]


async def test_more_than_depth_may_be_asked_for() -> None:
    tables = random_tables(2, 60, held=1.0)
    members = {name: TableStage(name, table) for name, table in tables.items()}
    fusion = await fused(members, depth=5)
    assert len(await fusion.search("q", 50, TIMEOUT_S, texts=False)) == 50
    assert [member.searched for member in members.values()] == [[50], [50]]
    assert all(not member.read for member in members.values())


async def test_members_that_find_nothing_add_nothing() -> None:
    for options in METHODS[:2] + METHODS[4:]:
        fusion = await fused(
            {"a": TableStage("a", {}), "b": TableStage("b", {"x": 2.0, "y": 1.0})}, **options
        )
        assert [each.doc_id for each in await fusion.search("q", 9, TIMEOUT_S)] == ["x", "y"]
        fusion = await fused({"a": TableStage("a", {}), "b": TableStage("b", {})}, **options)
        assert await fusion.search("q", 9, TIMEOUT_S) == []
        fusion = await fused({"a": TableStage("a", {}), "b": TableStage("b", {})}, candidates="a", **options)
        assert await fusion.search("q", 9, TIMEOUT_S) == []


async def test_a_single_hit_counts_as_the_highest() -> None:
    members = {"a": TableStage("a", {"x": 5.0}), "b": TableStage("b", {"x": 1.0, "y": 3.0})}
    fusion = await fused(members, method="mean", scores="min_max")
    found = await fusion.search("q", 9, TIMEOUT_S)
    assert {each.doc_id: each.score for each in found} == {"x": 0.5, "y": 0.5}


async def test_texts_are_read_wherever_they_are() -> None:
    members = {
        "a": TableStage("a", {"x": 1.0}),
        "b": TableStage("b", {"x": 1.0, "y": 1.0}),
        "c": TableStage("c", {"z": 1.0}),
    }
    fusion = await fused(members)
    texts = await fusion.texts(["z", "y", "x", "y"], TIMEOUT_S)
    assert texts == ["z of c", "y of b", "x of a", "y of b"]
    with pytest.raises(Gone, match="no longer in the index: 'v', 'w'") as caught:
        await fusion.texts(["v", "x", "w"], TIMEOUT_S)
    assert caught.value.doc_ids == ("v", "w")


async def test_a_fusion_may_be_a_member() -> None:
    leaves = {"a": TableStage("a", {"x": 2.0}), "b": TableStage("b", {"y": 4.0, "x": 1.0})}
    inner = await fused(leaves, method="linear", weights=(1.0, 1.0))
    outer = await fused({"inner": inner, "b": leaves["b"]}, method="linear", weights=(10.0, 1.0))
    found = await outer.search("q", 9, TIMEOUT_S)
    assert [(each.doc_id, each.score, each.parts) for each in found] == [
        ("y", 64.0, {"inner": 6.0, "b": 4.0}),  # a's lowest score is 2
        ("x", 31.0, {"inner": 3.0, "b": 1.0}),
    ]


class KeptStage(TableStage):
    """Has stores, and a place for each of its documents, including those that it does not find."""

    def __init__(self, name: str, table: Table, places: dict[str, int]) -> None:
        super().__init__(name, table)
        self.places = places
        self.located: list[str] = []
        self.kept: Any = object()

    @property
    def stores(self) -> Any:
        return self.kept

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        found = await super().search(query, k, timeout_s, texts=texts)
        return [replace(each, place=self.places[each.doc_id]) for each in found]

    async def locate(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[int | None]:
        self.located += doc_ids
        return [self.places.get(doc_id) for doc_id in doc_ids]


async def test_places_are_those_of_the_first_member_with_stores() -> None:
    kept = KeptStage("b", {"x": 1.0, "y": 3.0}, {"x": 70, "y": 71, "z": 72})
    members = {"a": TableStage("a", {"x": 2.0, "z": 1.5, "v": 1.0}), "b": kept}
    fusion = await fused(members, method="linear", weights=(1.0, 1.0))
    assert fusion.stores is kept.kept
    found = await fusion.search("q", 9, TIMEOUT_S)
    assert {each.doc_id: each.place for each in found} == {"y": 71, "x": 70, "z": 72, "v": None}
    assert sorted(kept.located) == ["v", "z"]  # it gave the places of the others
    assert await fusion.locate(["z", "x"], TIMEOUT_S) == [72, 70]
    without = await fused({"a": members["a"], "c": TableStage("c", {"x": 1.0})})
    assert without.stores is None
    assert {each.place for each in await without.search("q", 9, TIMEOUT_S)} == {None}


async def test_it_describes_itself_and_its_members() -> None:
    members = {"a": TableStage("a", {"x": 2.0}), "b": TableStage("b", {"x": 2.0, "y": 1.0})}
    described = (await fused(members)).describe()
    assert described == IndexDescription("it", 2, "rrf(k=60,depth=1000)", 20, "fusion", ("a", "b"))
    linear = await fused(members, method="linear", weights=(0.25, 1.0), candidates="b", depth=100)
    assert linear.describe().ranking == "linear(scores=raw,weights=0.25:1,candidates=b,depth=100)"


class MeetingStage(TableStage):
    """Answers only when all members have been asked."""

    def __init__(self, name: str, barrier: asyncio.Barrier) -> None:
        super().__init__(name, {"x": 1.0})
        self.barrier = barrier

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        await self.barrier.wait()
        return await super().search(query, k, timeout_s, texts=texts)


async def test_members_are_searched_at_once() -> None:
    barrier = asyncio.Barrier(5)
    fusion = await fused({f"m{n}": MeetingStage(f"m{n}", barrier) for n in range(5)})
    async with asyncio.timeout(TIMEOUT_S):
        assert len(await fusion.search("q", 1, TIMEOUT_S)) == 1


class StuckStage(TableStage):
    """Never answers. Records its cancellation."""

    cancelled = False

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return []


class DownStage(TableStage):
    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        raise Unavailable("down", retry_after_ms=7)


async def test_the_first_failure_ends_the_others_and_is_the_answer() -> None:
    stuck = StuckStage("stuck", {})
    fusion = await fused({"stuck": stuck, "down": DownStage("down", {})})
    with pytest.raises(Unavailable) as caught:
        await fusion.search("q", 1, TIMEOUT_S)
    assert caught.value.retry_after_ms == 7
    assert stuck.cancelled


async def test_a_member_has_the_deadline_of_the_search() -> None:
    stuck = StuckStage("stuck", {})
    members: dict[str, FirstStage] = {"stuck": stuck, "a": TableStage("a", {"x": 1.0})}
    members["it"] = await fused(members)
    stages = FirstStages(members, FirstStageConfig())
    await stages.start()
    with pytest.raises(DeadlineExceeded):
        await stages.search("it", "q", 1, 0.05)
    assert stuck.cancelled


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"of": ("a",)}, r"^of: .* must be the names of two or more indexes, each once"),
        ({"of": ("a", "a")}, r"^of: .* each once"),
        ({"rrf_k": 0}, r"^rrf_k: 0 is not allowed; it must be at least 1"),
        ({"depth": 0}, r"^depth: "),
        ({"weights": (1.0, 1.0)}, r"^weights: need the method linear; the method is rrf"),
        ({"method": "linear", "weights": (1.0,)}, r"^weights: has 1 entries for the 2 indexes"),
        ({"method": "linear", "weights": (0.0, 0.0)}, r"^weights: are all 0"),
        ({"scores": "min_max"}, r"^scores: need the method linear or mean"),
        ({"candidates": "c"}, r"^candidates: 'c' is not allowed; it must be one of a, b"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        FusionConfig(**{"of": ("a", "b"), **options})


def problems_of(**indexes: IndexConfig) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        check_indexes(FirstStageConfig(indexes=indexes))
    return caught.value.problems


def test_unknown_members_and_fusions_of_themselves_are_refused() -> None:
    assert problems_of(a=FusionConfig(of=("b", "c")), b=FusionConfig(of=("d", "e"))) == (
        "first_stage.indexes.a.of: there is no index 'c'; known are: a, b",
        "first_stage.indexes.b.of: there is no index 'd'; known are: a, b",
        "first_stage.indexes.b.of: there is no index 'e'; known are: a, b",
    )
    around = problems_of(
        a=FusionConfig(of=("b", "d")),
        b=FusionConfig(of=("d", "a")),
        c=FusionConfig(of=("c", "d")),
        d=FusionConfig(of=("e", "f")),
        e=Bm25Config(Path("nowhere")),
        f=Bm25Config(Path("nowhere")),
    )
    assert around[:3] == (
        "first_stage.indexes.a.of: a fusion cannot contain itself: a of b of a",
        "first_stage.indexes.b.of: a fusion cannot contain itself: b of a of b",
        "first_stage.indexes.c.of: a fusion cannot contain itself: c of c",
    )
    assert not any(".of:" in problem for problem in around[3:])

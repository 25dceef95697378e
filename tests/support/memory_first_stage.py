"""A first stage that holds its documents in memory, for services without Lucene."""

from collections.abc import Mapping, Sequence
from typing import Any

from farrank_calls.fairness.fair_order import Account
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import FirstStages
from farrank_server.service.indexes import Indexes, OpenIndexes
from support.engine_bench import Bench


class MemoryFirstStage(FirstStage):
    """Finds the documents that share a word with the query, in their stored order."""

    def __init__(self) -> None:
        self.documents = {
            "rhine": "the river Rhine",
            "bread": "flour and salt",
            "sea": "a river reaches the sea",
        }
        self.mean_characters = 20
        self.asked: list[tuple[str, int]] = []
        self.accounts: list[Account] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def describe(self) -> IndexDescription:
        return IndexDescription("things", 1000, "bm25(k1=0.9,b=0.4)", self.mean_characters)

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        assert timeout_s > 0
        self.asked.append((query, k))
        self.accounts.append(call.account)
        words = set(query.split())
        found = [key for key, text in self.documents.items() if words & set(text.split())]
        return [
            Candidate(key, self.documents[key] if texts else "", 3.0 - place)
            for place, key in enumerate(found[:k])
        ]

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        self.accounts.append(call.account)
        return [self.documents[doc_id] for doc_id in doc_ids]

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        found = await self.search(query, len(self.documents), timeout_s, texts=False)
        return {each.doc_id: each.score for each in found if each.doc_id in doc_ids}


async def in_memory(bench: Bench[Any], stage: FirstStage | None = None) -> Indexes:
    """Return a service's indexes: only this one."""

    def opening() -> FirstStages:
        return FirstStages({"things": stage or MemoryFirstStage()}, FirstStageConfig())

    stages = opening()
    await stages.start()
    return Indexes(OpenIndexes(stages, bench.engine), opening, bench.engine, bench.metrics)

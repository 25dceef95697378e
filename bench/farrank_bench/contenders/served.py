"""A server under callers that each wait for their answer: the same calls whatever protocol it speaks."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from farrank_bench.calls import BenchCall
from farrank_bench.contenders.rounds import ContenderFailed, Scored
from farrank_loadtest.targets import Document, TargetError
from farrank_loadtest.targets.address import open_target

CALL_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server at an address as `farrank loadtest` names them, its model, and how many call it at once."""

    address: str
    model: str
    callers: int
    calls: Sequence[BenchCall]

    def score(self) -> Scored:
        """Let the callers work through the calls.

        Raises: ContenderFailed if the server refuses one.
        """
        try:
            return asyncio.run(self._score())
        except TargetError as error:
            raise ContenderFailed(str(error)) from error

    async def _score(self) -> Scored:
        waiting = iter(enumerate(self.calls))
        scores: dict[int, tuple[float, ...]] = {}
        target = open_target(self.address)

        async def caller() -> None:
            for place, call in waiting:
                documents = [Document(str(number), text) for number, text in enumerate(call.texts)]
                answer = await target.rerank(
                    call.query, documents, ranker=self.model, timeout_s=CALL_TIMEOUT_S
                )
                scores[place] = answer.scores

        try:
            started_s = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(self.callers)))
            seconds = time.perf_counter() - started_s
        finally:
            await target.close()
        in_order = tuple(scores[place] for place in range(len(self.calls)))
        return Scored(seconds, sum(map(len, in_order)), in_order)

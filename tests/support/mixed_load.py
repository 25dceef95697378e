"""Mixed calls to a real server. Answers are compared with offline scores, refusals with the documentation."""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_rankers.files.open import open_ranker

SERVICE = "/farrank.v1.RerankService/"
COLLECTION = {
    "rivers": "The river rises in the mountains and reaches the sea. ",
    "ships": "A ship sails over the sea towards the harbour. ",
    "bread": "Bread is baked from flour, water, salt and yeast. ",
    "roads": "The road leads over the mountains to the harbour by the sea. ",
}
QUERIES = (
    "where does the river rise",
    "who sails over the sea",
    "how is bread baked",
    "a road to the harbour",
)
# Texts of no token up to a few thousand.
TEXTS = tuple(
    " ".join(text * times for text in COLLECTION.values())[offset:]
    for times in (1, 2, 5, 20, 60)
    for offset in (0, 7, 31)
)
MEMBERS = ("maxp", "biencoder")
RANKERS = (*MEMBERS, "both")
# The scores of fp32 do not depend on the rest of a batch.
WITHIN = 1e-4

USUAL_DEADLINE_S = 60.0
# A call that has not ended this long after its deadline is lost.
GRACE_S = 15.0

# The message of a refusal, by its reason. `taken twice` is for a call whose device failed twice in a row.
REFUSALS = {
    "device_reloading": r"the device is being recovered; retry later",
    "taken twice": r"the device (failed|hung)|the device's thread ended",
    "first_stage_down": r"the first stage restarts|no longer in the index",
    "first_stage_memory": r"do not fit the search process's memory",
    "draining": r"draining",
    "device_lost": r"the device is lost",
    "backlog": r"the call would be done after|would make calls late",
    "room": r"the queue holds|calls in flight|searches wait already",
    "out_of_memory": r"one chunk alone does not fit into the device's memory",
    "tokenizer hung": r"a text of this call could not be read: a tokenizer thread",
    "index_changed": r"was changed in place|were changed in place",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one call: `ok`, a reason of REFUSALS, or an action of its caller. Times are monotonic."""

    kind: str
    began_s: float
    ended_s: float
    ended: str


@dataclass
class MixedLoad:
    """A number of callers, each of whom calls again at once, with calls drawn from `seed`.

    `outcomes` lists the ends of all calls; `wrong` lists wrong answers and refusals.
    """

    address: str
    http_url: str
    offline: Mapping[str, Sequence[Sequence[float]]]
    seed: int
    callers: int = 6
    searches: bool = True
    outcomes: list[Outcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _stopping: bool = False
    _began_s: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Send calls until `stop`."""
        async with (
            grpc.aio.insecure_channel(self.address) as channel,
            aiohttp.ClientSession(self.http_url) as session,
        ):
            callers = (_Caller(self, number, channel, session) for number in range(self.callers))
            await asyncio.gather(*(each.run() for each in callers))

    def stop(self) -> None:
        """Let each caller end after its current call."""
        self._stopping = True

    @property
    def oldest_began_s(self) -> float:
        """Return when the oldest call in flight began, or now if there is none."""
        return min(self._began_s.values(), default=time.monotonic())

    def first_ok_since(self, began_s: float, kinds: Sequence[str]) -> Outcome | None:
        """Return the first call to be answered that began since then."""
        recent = (each for each in reversed(self.outcomes) if each.ended_s > began_s)
        found = [
            each for each in recent if each.ended == "ok" and each.kind in kinds and each.began_s >= began_s
        ]
        return min(found, key=lambda each: each.ended_s, default=None)

    def counts(self) -> Counter[tuple[str, str]]:
        """Count the calls of each kind by their end."""
        return Counter((each.kind, each.ended) for each in self.outcomes)


def offline_scores(tiny_rankers: Mapping[str, Path]) -> dict[str, list[list[float]]]:
    """Return the scores of TEXTS and then of the collection's texts, for each query and ranker."""
    texts = [*TEXTS, *(text * 40 for text in COLLECTION.values())]
    scores = {}
    for name in MEMBERS:
        ranker = open_ranker(tiny_rankers[name])
        scores[name] = [[each.score for each in ranker.score(query, texts)] for query in QUERIES]
    members = [scores[name] for name in MEMBERS]
    scores["both"] = [
        [fmean(each) for each in zip(*of_query, strict=True)] for of_query in zip(*members, strict=True)
    ]
    return scores


class _Caller:
    """A caller that sends one call after the other."""

    def __init__(self, load: MixedLoad, number: int, channel: Any, session: aiohttp.ClientSession) -> None:
        self._load, self._number = load, number
        self._random = random.Random(load.seed * 1000 + number)
        self._channel, self._session = channel, session

    async def run(self) -> None:
        load = self._load
        while not load._stopping:
            load._began_s[self._number] = began_s = time.monotonic()
            kind, asking = self._draw()
            try:
                async with asyncio.timeout(USUAL_DEADLINE_S + GRACE_S):
                    ended = await asking
            except TimeoutError:
                ended = "lost"
                load.wrong.append(
                    f"{kind}: neither answered nor refused after {USUAL_DEADLINE_S + GRACE_S} s"
                )
            load.outcomes.append(Outcome(kind, began_s, time.monotonic(), ended))
            # The pause leaves processor time to others, and a refused caller follows the pushback.
            well = ended in ("ok", "late", "left")
            await asyncio.sleep(self._random.uniform(0.0, 0.05) if well else self._random.uniform(0.05, 0.2))
        load._began_s.pop(self._number, None)

    def _draw(self) -> tuple[str, Any]:
        draw, ranker = self._random.random(), self._random.choice(RANKERS)
        query = self._random.randrange(len(QUERIES))
        options = pb.RerankOptions(ranker=ranker)
        if self._load.searches and draw < 0.25:
            search = pb.SearchAndRerankRequest(query=QUERIES[query], index="things", options=options)
            return "search", self._ask("search", "SearchAndRerank", search, ranker, query, [])
        chosen = [self._random.randrange(len(TEXTS)) for _ in range(self._random.randint(1, 6))]
        request = pb.RerankRequest(query=QUERIES[query], options=options)
        for place, number in enumerate(chosen):
            request.documents.add(id=str(place), text=TEXTS[number])
        if draw > 0.97:
            return "rerank", self._leave(request)
        if draw > 0.94:
            return "hasty", self._ask("hasty", "Rerank", request, ranker, query, chosen, deadline_s=0.01)
        if draw > 0.8:
            return "http", self._ask_http(request, ranker, query, chosen)
        return "rerank", self._ask("rerank", "Rerank", request, ranker, query, chosen)

    async def _ask(
        self,
        kind: str,
        method: str,
        request: Any,
        ranker: str,
        query: int,
        chosen: Sequence[int],
        deadline_s: float = USUAL_DEADLINE_S,
    ) -> str:
        call = self._channel.unary_unary(SERVICE + method)(request.SerializeToString(), timeout=deadline_s)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            return self._refused(kind, error.code().name, error.details() or "")
        response = pb.SearchAndRerankResponse if method == "SearchAndRerank" else pb.RerankResponse
        self._check(kind, response.FromString(answer), ranker, query, chosen)
        return "ok"

    async def _ask_http(self, request: Any, ranker: str, query: int, chosen: Sequence[int]) -> str:
        headers = {
            "Content-Type": "application/proto",
            "Connect-Timeout-Ms": f"{USUAL_DEADLINE_S * 1000:.0f}",
        }
        async with self._session.post(
            SERVICE + "Rerank", data=request.SerializeToString(), headers=headers
        ) as answer:
            body = await answer.read()
            if answer.status != 200:
                code = (await answer.json())["code"]
                return self._refused("http", code.upper(), body.decode())
        self._check("http", pb.RerankResponse.FromString(body), ranker, query, chosen)
        return "ok"

    async def _leave(self, request: Any) -> str:
        call = self._channel.unary_unary(SERVICE + "Rerank")(request.SerializeToString())
        await asyncio.sleep(self._random.uniform(0, 0.05))
        call.cancel()
        return "left"

    def _refused(self, kind: str, code: str, message: str) -> str:
        reason = next((name for name, words in REFUSALS.items() if re.search(words, message)), "")
        if code == "DEADLINE_EXCEEDED" and kind == "hasty":
            return "late"
        allowed = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"} | (
            {"INTERNAL"} if reason == "tokenizer hung" else set()
        )
        if code not in allowed or not reason or (reason == "first_stage_down" and kind != "search"):
            self._load.wrong.append(f"{kind}: {code}: {message[:300]}")
        return reason or code

    def _check(self, kind: str, response: Any, ranker: str, query: int, chosen: Sequence[int]) -> None:
        wanted = self._load.offline[ranker][query]
        found = {each.index if chosen else each.id: each.score for each in response.results}
        if chosen:
            due = {place: wanted[number] for place, number in enumerate(chosen)}
        else:
            collection = dict(zip(COLLECTION, wanted[len(TEXTS) :], strict=True))
            due = {doc_id: collection[doc_id] for doc_id in found if doc_id in collection}
        scores = [each.score for each in response.results]
        right = found == pytest.approx(due, abs=WITHIN) and scores == sorted(scores, reverse=True)
        if not right or not found:
            self._load.wrong.append(f"{kind}: {ranker}: {found} and not {due}")

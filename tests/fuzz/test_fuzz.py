"""Both endpoints, fuzzed: `make fuzz` sends 100,000 calls, this file by default a seeded thousandth.

Every caller must get a valid answer or a documented refusal, and never INTERNAL, UNKNOWN or 500. The server's
log must have no traceback, and its memory must stay flat.
"""

import asyncio
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from farrank.v1 import rerank_pb2 as pb
from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from support.fuzzed_calls import GRPC, SERVICE, FuzzedCall, calls

CASES = int(os.environ.get("FARRANK_FUZZ_CASES", "100"))
SEED = int(os.environ.get("FARRANK_FUZZ_SEED", "20261123"))
# Hypothesis keeps everything that it has drawn, gigabytes after tens of thousands of calls. It starts again
# after this many.
STRETCH_CASES = 2_500
# The number of concurrent callers.
TOGETHER = 10
# No call may take longer, including its deadline. Such a call is lost.
LOST_AFTER_S = 60.0

DOCUMENTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}
DOCUMENTED |= {
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    *map(str, (200, 400, 404, 405, 413, 415, 422, 429, 501, 503, 504)),
    "left",
}

# Memory is compared only after this many calls, when the server's caches and pools are full.
SETTLED_CASES = 5_000
# A tenth, and an allowance for fragmentation of the heap.
MAX_GROWTH, SLACK_BYTES = 1.1, 48 * 2**20

COLLECTION = ("rivers", "ships", "bread")


@dataclass
class Server:
    """A server that all tests call, its log, and the results."""

    spawned: SpawnedServer
    log: Path
    loop: asyncio.AbstractEventLoop
    channel: Any
    session: aiohttp.ClientSession
    outcomes: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.spawned.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzz")
    collection, index = folder / "collection.jsonl", folder / "index"
    collection.write_text(
        "\n".join(f'{{"id": "{each}", "text": "{each} and the river " }}' for each in COLLECTION)
    )
    assert main(["index", str(collection), "--out", str(index)]) == 0
    members = {name: open_ranker(tiny_rankers[name]) for name in ("avgp", "sump")}
    save_ensemble(Ensemble(members), folder / "both")
    rankers = {name: tiny_rankers[name] for name in ("maxp", "biencoder", "parade-attn")}
    rankers["both"] = folder / "both"
    arguments = [f"--ranker={name}={path}" for name, path in rankers.items()]
    arguments += [f"--index=things={index}", f"--index=same={index}", "--http-port=0", "--log-level=warning"]
    arguments += ["--set=limits.max_documents=40", "--set=limits.max_document_bytes=100_000"]
    arguments += ["--set=limits.max_query_bytes=5_000", "--set=limits.max_queued_tokens=50_000"]
    log = folder / "log"
    with (
        log.open("wb") as file,
        asyncio.Runner() as runner,
        spawned_server(arguments, file) as spawned,
    ):
        yield from _connected(spawned, log, runner)


def _connected(spawned: SpawnedServer, log: Path, runner: asyncio.Runner) -> Iterator[Server]:
    async def connect() -> tuple[Any, aiohttp.ClientSession]:
        channel = grpc.aio.insecure_channel(spawned.address)
        return channel, aiohttp.ClientSession(spawned.http_url, auto_decompress=True)

    channel, session = runner.run(connect())
    yield Server(spawned, log, runner.get_loop(), channel, session)

    async def close() -> None:
        await session.close()
        await channel.close()

    runner.run(close())


async def ask_grpc(server: Server, call: FuzzedCall) -> tuple[str, bytes]:
    asking = server.channel.unary_unary(call.path)(call.body, timeout=call.deadline_s)
    if call.leaves_after_s is not None:
        done, _ = await asyncio.wait((asyncio.ensure_future(_over(asking)),), timeout=call.leaves_after_s)
        if not done:
            asking.cancel()
            return "left", b""
    try:
        return "OK", await asking
    except grpc.aio.AioRpcError as error:
        return error.code().name, (error.details() or "").encode()


async def _over(asking: Any) -> None:
    await asking.code()


async def ask_http(server: Server, call: FuzzedCall) -> tuple[str, bytes]:
    timeout = aiohttp.ClientTimeout(call.leaves_after_s or LOST_AFTER_S)
    try:
        async with server.session.request(
            call.verb, call.path, data=call.body, headers=list(call.headers), timeout=timeout
        ) as answer:
            return str(answer.status), await answer.read()
    except TimeoutError:
        if call.leaves_after_s is None:
            raise
        return "left", b""


def check(call: FuzzedCall, status: str, answer: bytes) -> None:
    """Check an answer against the contract."""
    assert status in DOCUMENTED, f"{status}: {answer[:300]!r}"
    if status not in ("OK", "200"):
        if status != "left" and call.verb != "HEAD":
            assert answer.strip() or status in ("415", "DEADLINE_EXCEEDED", "CANCELLED"), (
                "a refusal without reason"
            )
            assert b"Traceback" not in answer
        return
    is_proto = call.endpoint == GRPC or ("Content-Type", "application/proto") in call.headers
    if call.path != SERVICE + "Rerank" or call.documents is None or not is_proto:
        return
    response = pb.RerankResponse.FromString(answer)
    ranked = [(each.round, each.score) for each in response.results]
    assert all(math.isfinite(score) for _, score in ranked)
    assert ranked == sorted(ranked, reverse=True)
    assert response.usage.rounds == ranked[0][0]
    assert sorted(each.index for each in response.results) == list(range(call.documents))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stretch", range(math.ceil(CASES / STRETCH_CASES)))
def test_every_call_is_answered_or_refused_for_a_reason(server: Server, stretch: int) -> None:
    @seed(SEED + stretch)
    @settings(
        max_examples=math.ceil(min(CASES, STRETCH_CASES) / TOGETHER),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(calls(), min_size=TOGETHER, max_size=TOGETHER))
    def ask_and_check(together: Sequence[FuzzedCall]) -> None:
        answers = server.loop.run_until_complete(_ask_all(server, together))
        for call, (status, answer) in zip(together, answers, strict=True):
            server.outcomes[status] += 1
            check(call, status, answer)
        server.memory.append(server.resident_bytes())

    ask_and_check()


async def _ask_all(server: Server, together: Sequence[FuzzedCall]) -> list[tuple[str, bytes]]:
    async def ask(call: FuzzedCall) -> tuple[str, bytes]:
        return await (ask_grpc if call.endpoint == GRPC else ask_http)(server, call)

    async with asyncio.timeout(LOST_AFTER_S):
        return await asyncio.gather(*map(ask, together))


def test_the_server_is_as_it_was(server: Server) -> None:
    """After all calls, the log has no traceback, memory is flat, and a plain call is answered."""
    total = server.outcomes.total()
    assert total >= CASES, "the calls above come first"
    print(f"{total} calls: {dict(server.outcomes.most_common())}", file=sys.stderr)
    assert server.outcomes["OK"] + server.outcomes["200"] > total / 10
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[-3000:]
    assert " ERROR " not in log, log[-3000:]
    request = pb.RerankRequest(query="river", documents=[pb.Document(id="a", text="the river rises")])

    async def ask() -> bytes:
        answer: bytes = await server.channel.unary_unary(SERVICE + "Rerank")(request.SerializeToString())
        return answer

    answer = server.loop.run_until_complete(ask())
    assert len(pb.RerankResponse.FromString(answer).results) == 1
    if total >= SETTLED_CASES:
        fifth = len(server.memory) // 5
        early, late = (
            statistics.median(each) for each in (server.memory[fifth : 2 * fifth], server.memory[-fifth:])
        )
        print(f"memory: {early / 2**20:.0f} MiB, at the end {late / 2**20:.0f}", file=sys.stderr)
        assert late < early * MAX_GROWTH + SLACK_BYTES

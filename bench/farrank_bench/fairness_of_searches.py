"""The time of one caller's searches while another caller has many pending; part of `fairness`.

Both search the embedded corpus with BM25 and RM3, which takes some 50 ms of a thread, and rerank one chunk of
the best document. If both use one API key, searches run in the order of their arrival.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_bench.report import Row, spread
from farrank_bench.rounds import ContenderFailed
from farrank_calls.key_file import add_key
from farrank_cli.spawn import spawned_server
from farrank_demo.questions import load_questions

GREEDY, MODEST = "greedy", "modest"
TIMEOUT_S = 60.0
# By then all of the greedy caller's connections have a pending search.
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class SearchTimes:
    """The seconds of each of the modest caller's searches, and the greedy caller's searches per second."""

    modest_s: list[float]
    greedy_per_s: float


async def load(address: str, keys: Mapping[str, str], greedy: int, seconds: float) -> SearchTimes:
    """Let the modest caller send one search after the other, with `greedy` connections of the other one."""
    questions = [each.text for each in load_questions()]
    begins_s = time.monotonic() + WARM_UP_S
    ends_s = begins_s + seconds
    modest_s: list[float] = []
    answered = 0

    async def ask(caller: str, number: int) -> None:
        nonlocal answered
        # Without a local pool, channels with equal arguments share one connection.
        async with grpc.aio.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
            while time.monotonic() < ends_s:
                number += 1
                request = pb.SearchAndRerankRequest(
                    query=questions[number % len(questions)], k=1, options=pb.RerankOptions(max_chunks=1)
                )
                metadata = (("x-api-key", keys[caller]),)
                answer = await stub.SearchAndRerank(request, timeout=TIMEOUT_S, metadata=metadata)
                if not begins_s <= time.monotonic() < ends_s:
                    continue
                if caller == MODEST:
                    modest_s.append(answer.timings.first_stage_ns / 1e9)
                else:
                    answered += 1

    await asyncio.gather(ask(MODEST, 0), *(ask(GREEDY, 7 * each) for each in range(greedy)))
    return SearchTimes(modest_s, answered / seconds)


def measure(rounds: int, seconds: float, greedy: int) -> list[Row]:
    """Measure the modest caller in turns: alone, with the greedy caller's API key, and with its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        index, file = folder / "index", folder / "keys.toml"
        done = subprocess.run([sys.executable, "-m", "farrank_cli", "index", "--pydoc", "--out", str(index)])
        if done.returncode:
            raise ContenderFailed(f"farrank index ended with status {done.returncode}; its output is above")
        everybody = dict.fromkeys((GREEDY, MODEST), add_key(file, "everybody", {}))
        own = {name: add_key(file, name, {}) for name in (GREEDY, MODEST)}
        ways = {"alone": (own, 0), "one account": (everybody, greedy), "fair": (own, greedy)}
        settings = [f"--index=docs={index}", "--set=first_stage.indexes.docs.kind=rm3"]
        server = stack.enter_context(spawned_server([f"--keys={file}", *settings, "--log-level=error"]))
        found: dict[str, list[SearchTimes]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (keys, connections) in ways.items():
                found[way].append(asyncio.run(load(server.address, keys, connections, seconds)))
    return [row for way, its in found.items() for row in rows(way, its)]


def rows(way: str, rounds: list[SearchTimes]) -> list[Row]:
    """Report the times of the modest caller's searches, and the rate of the greedy caller's."""
    medians_ms = [1e3 * median(each.modest_s) for each in rounds]
    longest_ms = [1e3 * max(each.modest_s) for each in rounds]
    written = [
        Row(f"{way}: the modest caller's search, median, ms", spread(medians_ms, ".0f")),
        Row(f"{way}: the longest, ms", spread(longest_ms, ".0f")),
    ]
    if way != "alone":
        per_s = [each.greedy_per_s for each in rounds]
        written.append(Row(f"{way}: the greedy caller's searches/s", spread(per_s, ".1f")))
    return written

"""Measure the share of modest callers in a full server with a greedy one: `python -m farrank_bench.fairness`.

A real server with the embedded ranker has one greedy caller with a hundred connections, and ten modest ones
with a few each. Every connection sends its next call as soon as it has an answer. Without the fair order all
callers use one API key, so that the server takes them for one caller; with it each has its own key. Both are
measured in turns, on the same server. `--searches` measures searches instead (`fairness_of_searches`).
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_bench import fairness_of_searches
from farrank_bench.report import Command, Heading, Row, at_least, spread
from farrank_calls.key_file import add_key
from farrank_cli.spawn import spawned_server

GREEDY, MODEST = "greedy", tuple(f"modest-{number}" for number in range(10))
CONNECTIONS = {GREEDY: 100, **dict.fromkeys(MODEST, 4)}
# Pending searches of the greedy caller.
SEARCHING = 40
AIM = 0.9
# Longer than a deadline: no call is left that was admitted before the other callers came.
WARM_UP_S = 25.0
TIMEOUT_S = 20.0
WORDS = 110


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The calls of each caller that were answered, refused or late within `seconds`."""

    answered: Counter[str]
    refused: Counter[str]
    late: Counter[str]
    seconds: float


def request(number: int) -> pb.RerankRequest:
    """Make a call of one document that no cache has."""
    words = ("the river rises in the mountains and flows down to the sea", "ships sail to the harbour")
    text = f"{number} {' '.join(words[(number + each) % 2] for each in range(WORDS // 8))}"
    return pb.RerankRequest(query="where does the river rise", documents=[pb.Document(text=text)])


async def load(address: str, keys: Mapping[str, str], seconds: float) -> Outcomes:
    """Let every connection of every caller send calls; count those that end after the warm-up."""
    found = Outcomes(Counter(), Counter(), Counter(), seconds)
    begins_s = time.monotonic() + WARM_UP_S
    ends_s = begins_s + seconds

    async def ask(caller: str, number: int) -> None:
        # Without a local pool, channels with equal arguments share one connection.
        own = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        async with grpc.aio.insecure_channel(address, own) as channel:
            stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
            while time.monotonic() < ends_s:
                number += 1000
                wait_s = 0.0
                try:
                    await stub.Rerank(
                        request(number), timeout=TIMEOUT_S, metadata=(("x-api-key", keys[caller]),)
                    )
                    count = found.answered
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                        count = found.refused
                        hint = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms", "100")
                        wait_s = int(hint) / 1000
                    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        count = found.late
                    else:
                        raise
                if begins_s <= time.monotonic() < ends_s:
                    count[caller] += 1
                await asyncio.sleep(min(wait_s, max(0.0, ends_s - time.monotonic())))

    callers = [caller for caller, count in CONNECTIONS.items() for _ in range(count)]
    await asyncio.gather(*(ask(caller, number) for number, caller in enumerate(callers)))
    return found


def measure(given_rounds: int, seconds: float) -> list[Row]:
    """Measure with one API key for all callers and with a key for each, in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "keys.toml"
        own = {name: add_key(file, name, {}) for name in CONNECTIONS}
        ways = {"one account": dict.fromkeys(CONNECTIONS, add_key(file, "everybody", {})), "fair": own}
        server = stack.enter_context(spawned_server([f"--keys={file}", "--log-level=error"]))
        rounds: dict[str, list[Outcomes]] = {way: [] for way in ways}
        for _ in range(given_rounds):
            for way, keys in ways.items():
                rounds[way].append(asyncio.run(load(server.address, keys, seconds)))
    return [row for way, found in rounds.items() for row in rows(way, found)]


def rows(way: str, rounds: list[Outcomes]) -> list[Row]:
    """Report each caller's goodput over its fair share, which is the same for all."""

    def parts(found: Outcomes) -> dict[str, float]:
        fair = sum(found.answered.values()) / (1 + len(MODEST))
        return {name: found.answered[name] / fair for name in (GREEDY, *MODEST)}

    each = [parts(found) for found in rounds]
    least = [min(part[name] for name in MODEST) for part in each]
    return [
        Row(f"{way}: calls/s of all", spread([sum(f.answered.values()) / f.seconds for f in rounds], ".1f")),
        Row(
            f"{way}: the greedy caller's goodput over its share",
            spread([part[GREEDY] for part in each], ".2f"),
        ),
        Row(
            f"{way}: a modest caller's, median of ten",
            spread([median(part[name] for name in MODEST) for part in each], ".2f"),
        ),
        at_least(f"{way}: the lowest of the ten", least, AIM if way == "fair" else None, ".2f"),
        Row(f"{way}: refused calls of the greedy caller", spread([f.refused[GREEDY] for f in rounds], ".0f")),
        Row(
            f"{way}: refused or late calls of modest callers",
            spread([sum(f.refused[n] + f.late[n] for n in MODEST) for f in rounds], ".0f"),
        ),
        Row(f"{way}: late calls of the greedy caller", spread([f.late[GREEDY] for f in rounds], ".0f")),
    ]


def main() -> int:
    """Print a table."""
    command = Command("farrank_bench.fairness", __doc__)
    add = command.options.add_argument
    add("--rounds", type=int, default=3, help="measurements of each way (%(default)s)")
    add("--seconds", type=float, default=40.0, help="length of a measurement after warm-up (%(default)s)")
    add("--searches", action="store_true", help="measure searches instead of reranking")
    given = command.parse(None)
    notes = "the embedded ranker; medians of rounds (smallest to largest)"
    what: Callable[[int, float], list[Row]] = measure
    title = "Fair shares of a full server"
    part = f"One caller with {CONNECTIONS[GREEDY]} connections and ten with {CONNECTIONS[MODEST[0]]} each"
    if given.searches:
        what = partial(fairness_of_searches.measure, greedy=SEARCHING)
        title = "Fair shares of searches"
        part = f"One caller that searches, and one with {SEARCHING} searches at a time"
    else:
        notes += "; 1 is an equal share of all goodput"
    return command.report(
        Heading(title, notes), [(part, partial(what, given.rounds, given.seconds))], given.out
    )


if __name__ == "__main__":
    sys.exit(main())

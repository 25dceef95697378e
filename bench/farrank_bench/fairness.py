"""Measure what modest callers get of a full server beside a greedy one: `python -m farrank_bench.fairness`.

A real server, the embedded ranker, one greedy caller with a hundred connections and ten modest ones with a
few each; every connection asks again as soon as it is answered. Without the fair order all show one key and
are one caller to the server; with it each shows its own. Both are measured in turns, on the same server.
With `--searches` the searches of one caller are measured beside another's instead (`fairness_of_searches`).
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_bench import fairness_of_searches
from farrank_bench.report import Command, Heading, Measure, Row, at_least, spread
from farrank_cli.spawn import spawned_server
from farrank_server.access.key_file import add_key

GREEDY, MODEST = "greedy", tuple(f"modest-{number}" for number in range(10))
AIM = 0.9
# Longer than a deadline: of what was admitted before the others came nothing is left.
WARM_UP_S = 25.0
TIMEOUT_S = 20.0
WORDS = 110


@dataclass(frozen=True, slots=True)
class Found:
    """What each caller had answered and refused in a time."""

    answered: Counter[str]
    refused: Counter[str]
    late: Counter[str]
    seconds: float


def request(number: int) -> pb.RerankRequest:
    """Make a call of one document, which no cache could know."""
    words = ("the river rises in the mountains and flows down to the sea", "ships sail to the harbour")
    text = f"{number} {' '.join(words[(number + each) % 2] for each in range(WORDS // 8))}"
    return pb.RerankRequest(query="where does the river rise", documents=[pb.Document(text=text)])


async def load(
    address: str, keys: Mapping[str, str], connections: Mapping[str, int], seconds: float
) -> Found:
    """Let every connection of every caller ask again and again; count what ends after warming up."""
    found = Found(Counter(), Counter(), Counter(), seconds)
    begins_s = time.monotonic() + WARM_UP_S
    ends_s = begins_s + seconds

    async def ask(caller: str, number: int) -> None:
        # A pool of its own: otherwise channels with equal arguments share one connection.
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

    callers = [caller for caller, count in connections.items() for _ in range(count)]
    await asyncio.gather(*(ask(caller, number) for number, caller in enumerate(callers)))
    return found


def measured(given_rounds: int, seconds: float, greedy: int, modest: int) -> Iterator[tuple[str, Measure]]:
    """Measure with one key for all and with a key each, in turns."""
    connections = {GREEDY: greedy, **dict.fromkeys(MODEST, modest)}

    def measure() -> list[Row]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            file = folder / "keys.toml"
            own = {name: add_key(file, name, {}) for name in connections}
            ways = {"one account": dict.fromkeys(connections, add_key(file, "everybody", {})), "fair": own}
            server = stack.enter_context(spawned_server([f"--keys={file}", "--log-level=error"]))
            rounds: dict[str, list[Found]] = {way: [] for way in ways}
            for _ in range(given_rounds):
                for way, keys in ways.items():
                    rounds[way].append(asyncio.run(load(server.address, keys, connections, seconds)))
        return [row for way, found in rounds.items() for row in rows(way, found)]

    yield f"One with {greedy} connections beside ten with {modest} each", measure


def rows(way: str, rounds: list[Found]) -> list[Row]:
    """Write what callers had, as a share of what is fair: the same for each."""

    def parts(found: Found) -> dict[str, float]:
        fair = sum(found.answered.values()) / (1 + len(MODEST))
        return {name: found.answered[name] / fair for name in (GREEDY, *MODEST)}

    each = [parts(found) for found in rounds]
    least = [min(part[name] for name in MODEST) for part in each]
    return [
        Row(f"{way}: calls/s of all", spread([sum(f.answered.values()) / f.seconds for f in rounds], ".1f")),
        Row(
            f"{way}: the greedy one's goodput over its share", spread([part[GREEDY] for part in each], ".2f")
        ),
        Row(
            f"{way}: a modest one's, the median of ten",
            spread([median(part[name] for name in MODEST) for part in each], ".2f"),
        ),
        at_least(f"{way}: the least of the ten's", least, AIM if way == "fair" else None, ".2f"),
        Row(f"{way}: refused to the greedy one, calls", spread([f.refused[GREEDY] for f in rounds], ".0f")),
        Row(
            f"{way}: refused or late to modest ones, calls",
            spread([sum(f.refused[n] + f.late[n] for n in MODEST) for f in rounds], ".0f"),
        ),
        Row(f"{way}: late to the greedy one, calls", spread([f.late[GREEDY] for f in rounds], ".0f")),
    ]


def main() -> int:
    """Print a table."""
    command = Command("farrank_bench.fairness", __doc__)
    add = command.options.add_argument
    add("--rounds", type=int, default=3, help="measurements of each (%(default)s)")
    add("--seconds", type=float, default=40.0, help="of each measurement, after warming up (%(default)s)")
    add("--greedy", type=int, default=100, help="connections of the greedy caller (%(default)s)")
    add("--modest", type=int, default=4, help="connections of each modest one (%(default)s)")
    add("--searches", action="store_true", help="measure searches, not reranking")
    add(
        "--searching",
        type=int,
        default=40,
        help="searches that the greedy caller keeps waiting (%(default)s)",
    )
    given = command.parse(None)
    notes = "the embedded ranker; medians of rounds (smallest to largest)"
    if given.searches:
        measure = partial(fairness_of_searches.measure, given.rounds, given.seconds, given.searching)
        part = f"One that searches beside another with {given.searching} searches at a time", measure
        return command.report(Heading("Fair shares of searches", notes), [part], given.out)
    notes += "; 1 is an equal share of all goodput"
    parts = measured(given.rounds, given.seconds, given.greedy, given.modest)
    return command.report(Heading("Fair shares of a full server", notes), parts, given.out)


if __name__ == "__main__":
    sys.exit(main())

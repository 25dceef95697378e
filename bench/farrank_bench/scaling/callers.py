"""Independent callers: processes with one client each, which call the same replicas."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from farrank_bench.rounds import Child, child
from farrank_bench.scaling.calls import (
    MAX_TOKENS,
    MIN_TOKENS,
    QUERY_TOKENS,
    SPECIAL_TOKENS,
    WORD,
    Sizes,
    call_of,
)
from farrank_client import AsyncClient, FarrankError, RetryPolicy
from farrank_loadtest.loops import Sample, poisson_arrivals, run_open
from farrank_loadtest.targets import Answer, TargetError
from farrank_loadtest.workloads import Call

TIMEOUT_S = 60.0

# Far more calls than are pending at the measured loads.
MAX_IN_FLIGHT = 2000

# All callers are connected by then.
CONNECT_S = 1.0

WRONG = "wrong answer"

Options = Sequence[tuple[str, str | int]]


async def ask(client: AsyncClient, call: Call) -> Answer:
    """Send one call and check that its scores are those of its documents.

    Raises: TargetError if it fails, or gets the answer to another call.
    """
    try:
        ranking = await client.rerank(call.query, [each.text for each in call.documents], timeout_s=TIMEOUT_S)
    except FarrankError as error:
        raise TargetError(error.code.name, error.message) from error
    tokens = min(MAX_TOKENS, call.documents[0].text.count(WORD) + QUERY_TOKENS + SPECIAL_TOKENS)
    scores = [result.score for result in ranking.results]
    if scores != [tokens] * len(call.documents):
        raise TargetError(WRONG, f"{set(scores)} for inputs of {tokens} tokens")
    timings = ranking.timings
    stages_s = {"inference": timings.inference_ns / 1e9, "queue": timings.queue_ns / 1e9}
    return Answer(tuple(scores), stages_s, {"tokens": tokens * len(scores)})


@dataclass(frozen=True, slots=True)
class Order:
    """The calls that one caller sends at the times of a Poisson process, to one address or several."""

    address: str
    options: Options
    sizes: Sizes
    rate_per_s: float
    seconds: float
    seed: int


def be_caller(asked: Connection) -> None:
    """Run a caller: connect, report it, receive the start time, send calls, then return samples. Repeat."""
    while True:
        order: Order = asked.recv()
        asked.send(asyncio.run(_send(order, asked)))


async def _send(order: Order, asked: Connection) -> list[Sample]:
    samples: list[Sample] = []
    once = RetryPolicy(max_attempts=1)
    async with AsyncClient(order.address, options=order.options, retry=once) as client:
        for _ in range(3):
            await ask(client, call_of(MIN_TOKENS))
        await asyncio.sleep(CONNECT_S)
        asked.send(None)
        began_s: float = await asyncio.to_thread(asked.recv)
        await run_open(
            lambda call: ask(client, call),
            order.sizes.calls(order.seed),
            poisson_arrivals(order.rate_per_s, order.seconds, random.Random(order.seed)),
            samples.append,
            # Linux's monotonic clock is the same for all processes.
            lambda: time.perf_counter() - began_s,
            max_in_flight=MAX_IN_FLIGHT,
        )
    return samples


@dataclass(frozen=True, slots=True)
class Callers:
    """Processes that send calls together."""

    children: Sequence[Child]

    def begin(
        self, address: str, options: Options, sizes: Sizes, rate_per_s: float, seconds: float, seed: int
    ) -> None:
        """Start sending calls at a total rate of all callers. Returns when they begin.

        Raises: ContenderFailed if a caller's process has ended.
        """
        rate_of_one_per_s = rate_per_s / len(self.children)
        for number, each in enumerate(self.children):
            its_seed = seed * len(self.children) + number
            each.connection.send(Order(address, options, sizes, rate_of_one_per_s, seconds, its_seed))
        for each in self.children:
            each.hear()
        began_s = time.perf_counter()
        for each in self.children:
            each.connection.send(began_s)

    def samples(self) -> list[Sample]:
        """Wait for all answers. Returns the samples in order of their due times. Raises: ContenderFailed."""
        return sorted((x for each in self.children for x in each.hear()), key=lambda sample: sample.due_s)


@contextmanager
def callers(count: int) -> Iterator[Callers]:
    """Run `count` callers, each in its own process."""
    with ExitStack() as stack:
        yield Callers([stack.enter_context(child(f"caller {each}", be_caller)) for each in range(count)])

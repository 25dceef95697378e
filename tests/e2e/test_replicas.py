"""Real servers behind one client, under load, while one drains, one is killed and one hangs."""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import AsyncClient, FarrankError, RetryPolicy
from farrank_client.destination import BALANCED_KEEPALIVE_S, BALANCED_KEEPALIVE_TIMEOUT_S
from support.waiting import until

# The longest that clients may take to leave a replica. On a quiet machine it is far below a second.
LEFT_S = 60.0
SILENT_S = BALANCED_KEEPALIVE_S + BALANCED_KEEPALIVE_TIMEOUT_S + LEFT_S

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def servers(tiny_rankers: dict[str, Path]) -> Iterator[list[SpawnedServer]]:
    """Four servers whose rankers have different versions: an answer shows which server it is from."""
    with ExitStack() as opened, ThreadPoolExecutor(4) as starting:

        def start(number: int) -> SpawnedServer:
            arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=error"]
            arguments += [f"--set=rankers.maxp.max_document_tokens={400 + number}"]
            arguments += ["--set=listen.drain_timeout_s=600"]
            return opened.enter_context(spawned_server(arguments))

        started = list(starting.map(start, range(4)))
        yield started
        for each in started:
            # A stopped process would not receive SIGTERM.
            each.process.send_signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a call: the answering server, or the type of the error."""

    server: str
    error: type[FarrankError] | None


@dataclass
class Load:
    """Callers that send one call after the other. Each kind has its own client; all outcomes are kept."""

    kinds: defaultdict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, kind: str, client: AsyncClient, timeout_s: float) -> None:
        outcomes = self.kinds[kind]
        while not self.ending.is_set():
            try:
                ranking = await client.rerank("sea", ["the river", "the sea"], timeout_s=timeout_s)
                outcomes.append(Outcome(ranking.ranker.version, None))
            except FarrankError as error:
                outcomes.append(Outcome("", type(error)))
            await asyncio.sleep(0.02)

    async def shared_by(self, servers: int, within_s: float) -> None:
        """Wait until that many servers have answered the last 60 calls, without retries."""

        def shared() -> bool:
            last = self.kinds["once"][-60:]
            answered = len(last) == 60 and not any(each.error for each in last)
            return answered and len({each.server for each in last}) == servers

        await until(shared, within_s)


async def test_replicas_that_drain_die_or_hang_lose_their_share_and_no_call(
    servers: list[SpawnedServer], metric_of: Callable[..., float]
) -> None:
    load = Load()
    draining, killed, stopped, _ = servers
    targets = [each.address for each in servers]
    async with (
        AsyncClient(targets) as retrying,
        AsyncClient(targets, retry=ONCE) as trying_once,
        AsyncClient(draining.address, retry=ONCE) as beside,
        asyncio.TaskGroup() as callers,
    ):
        await retrying.wait_until_healthy(60)
        for kind, client, timeout_s, number in (
            ("retried", retrying, 60, 4),
            ("once", trying_once, 60, 4),
            ("short", retrying, 1, 2),
        ):
            for _ in range(number):
                callers.create_task(load.ask(kind, client, timeout_s))
        await load.shared_by(4, LEFT_S)
        # This call keeps it draining, so that it can still be called.
        long_call = asyncio.create_task(
            beside.rerank("sea", ["the river meets the sea " * 280] * 150, timeout_s=600)
        )
        await until(lambda: metric_of(draining, "farrank_held_characters") > 100_000, 120)
        draining.process.terminate()
        await load.shared_by(3, LEFT_S)
        assert len((await long_call).results) == 150

        killed.process.kill()
        await load.shared_by(2, LEFT_S)

        stopped.process.send_signal(signal.SIGSTOP)
        await load.shared_by(1, SILENT_S)

        stopped.process.send_signal(signal.SIGCONT)
        await load.shared_by(2, LEFT_S)

        # Leaving the group waits for every caller, so that every call has an outcome.
        load.ending.set()

    assert {each.error for each in load.kinds["retried"]} == {None}
    refusals = {
        kind: {each.error.__name__ for each in found if each.error} for kind, found in load.kinds.items()
    }
    assert refusals["once"] <= {"Unavailable"}
    # If less time is left than the pause before a retry, the error is raised at once.
    assert refusals["short"] <= {"DeadlineExceeded", "Unavailable"}

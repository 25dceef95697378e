"""The time that `farrank mcp` adds to a call over gRPC: `python -m farrank_bench.agents`.

One server of the embedded ranker answers the same small calls, in turns from the gRPC client and from the
official SDK's client, which talks to `farrank mcp` over stdio and over HTTP. The difference of the medians is
the cost of the protocol, of both processes and of their texts.
"""

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import mcp

from farrank_bench.report import Command, Heading, Row, below, spread
from farrank_bench.tracing import QUERY, TEXTS
from farrank_cli.agent_tools import CONTEXT_TOKENS
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import AsyncClient, Client

# The cost beyond which an agent's user would notice it among other tools.
MAX_MS = 10.0
WARM_UP = 10

Call = Callable[[], Awaitable[object]]


async def measure(server: SpawnedServer, rounds: int, calls: int) -> list[Row]:
    """Time calls of each kind in turns, and return the differences."""
    documents = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    command = ["-m", "farrank_cli", "mcp", "--server", server.address]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(AsyncClient(server.address))
        started = await asyncio.create_subprocess_exec(sys.executable, *command, "--http-port", str(port))
        opened.push_async_callback(started.wait)
        opened.callback(started.terminate)
        await _until_open(port)
        over_stdio, over_http = [
            await opened.enter_async_context(mcp.Client(to))
            for to in (
                mcp.StdioServerParameters(command=sys.executable, args=command),
                f"http://127.0.0.1:{port}/mcp",
            )
        ]

        def tool(agent: mcp.Client) -> Call:
            return lambda: agent.call_tool("rerank", {"query": QUERY, "documents": documents})

        pairs = [(each["id"], each["text"]) for each in documents]
        kinds: dict[str, Call] = {
            "gRPC": lambda: client.rerank(QUERY, pairs, top_n=10, context_tokens=CONTEXT_TOKENS),
            "stdio": tool(over_stdio),
            "HTTP": tool(over_http),
        }
        for call in kinds.values():
            await _median_ms(call, WARM_UP)
        medians: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, call in kinds.items():
                medians[name].append(await _median_ms(call, calls))
    rows = [Row(f"ms a call, {name}", spread(values, ".2f")) for name, values in medians.items()]
    for name in ("stdio", "HTTP"):
        added = [one - base for one, base in zip(medians[name], medians["gRPC"], strict=True)]
        rows.append(below(f"ms added over {name}", added, MAX_MS, ".2f"))
    return rows


async def _median_ms(call: Call, calls: int) -> float:
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


async def _until_open(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"farrank mcp does not listen at port {port}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the times."""
    command = Command("farrank_bench.agents", __doc__)
    command.options.add_argument("--rounds", type=int, default=5, help="rounds of calls (%(default)s)")
    command.options.add_argument(
        "--calls", type=int, default=50, help="calls of a kind a round (%(default)s)"
    )
    given = command.parse(arguments)
    notes = (
        f"{given.rounds} rounds of {given.calls} calls of each kind, in turns; medians (smallest to largest)"
    )
    with spawned_server(["--ranker", "embedded=embedded", "--log-level", "warning"]) as server:
        with Client(server.address) as client:
            client.wait_until_healthy(60)
        parts = [("Calls", lambda: asyncio.run(measure(server, given.rounds, given.calls)))]
        return command.report(Heading("Agents", notes), parts, given.out)


if __name__ == "__main__":
    sys.exit(main())

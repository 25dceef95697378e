"""The cost of a server's log lines and traces of calls: `python -m farrank_bench.tracing`.

Servers of the embedded ranker take turns at the same small calls, one at a time, because an extra cost shows
most there. One server traces nothing, a second one is identical (their difference shows the noise), one
traces a hundredth of its calls, and one traces all. `--before` adds the server of another checkout, such as
one from before there were traces. The cost of a turn is the processor time of the server's process, and the
time that its caller waits.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import grpc
import psutil

from farrank_bench.report import Command, Heading, Measure, Row, below, spread
from farrank_bench.rounds import child
from farrank_calls.telemetry.call_record import begin
from farrank_calls.telemetry.config import TracingConfig
from farrank_calls.telemetry.tracing import Tracing
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client

QUERY = "where does the river rise"
TEXTS = [
    "The river rises in the mountains, where snow lies until June, and reaches the sea after 800 km."
] * 2

BASE, AGAIN, BEFORE, SAMPLED, ALL = "no traces", "no traces, again", "before", "1 %", "all"

NO_HEADERS: dict[str, str] = {}

# A share of a call's cost.
MAX_AT_1_PERCENT = 0.02


def collect(asked: Connection) -> None:
    """Receive traces on a free port and discard them. Answer each question with the number of messages."""
    taken = [0]

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            taken[0] += 1
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Take) as server:
        asked.send(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while True:
            asked.recv()
            asked.send(taken[0])


def opened(stack: ExitStack, before: Path | None, collector: str) -> Mapping[str, SpawnedServer]:
    """Start all servers, each with as many threads as this process may use."""
    quiet = ["--log-level=error", "--metrics-port=none"]
    traced = [*quiet, f"--set=tracing.endpoint={collector}"]
    ways = {
        BASE: quiet,
        AGAIN: quiet,
        SAMPLED: [*traced, "--set=tracing.sample_ratio=0.01"],
        ALL: [*traced, "--set=tracing.sample_ratio=1"],
    }
    servers = {name: stack.enter_context(spawned_server(flags)) for name, flags in ways.items()}
    if before is not None:
        path = os.pathsep.join(str(each) for each in before.iterdir() if each.is_dir())
        with patch.dict(os.environ, PYTHONPATH=path):
            servers[BEFORE] = stack.enter_context(spawned_server(quiet))
    return servers


def in_turns(before: Path | None, rounds: int, calls: int) -> list[Row]:
    """Measure all servers in each round. Each round starts with the next server."""
    with ExitStack() as stack:
        collector = stack.enter_context(child("collector", collect))
        servers = opened(stack, before, f"http://127.0.0.1:{collector.connection.recv()}")
        clients = {name: stack.enter_context(Client(each.address)) for name, each in servers.items()}
        names = list(servers)
        cpu_ms: dict[str, list[float]] = {name: [] for name in names}
        wall_ms: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds + 1):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                process, waits = psutil.Process(servers[name].process.pid), list[float]()
                used_s = sum(process.cpu_times()[:2])
                for _ in range(calls):
                    asked_s = time.perf_counter()
                    clients[name].rerank(QUERY, TEXTS)
                    waits.append(1e3 * (time.perf_counter() - asked_s))
                if number:  # the first round warms up
                    cpu_ms[name].append(1e3 * (sum(process.cpu_times()[:2]) - used_s) / calls)
                    wall_ms[name].append(statistics.median(waits))
        messages = collector.ask()
    rows = [Row(f"ms of processor a call: {name}", spread(cpu_ms[name], ".3f")) for name in names]
    rows += [Row(f"ms a caller waits: {name}", spread(wall_ms[name], ".3f")) for name in names]
    pairs = [(BASE, BEFORE if before is not None else AGAIN), (AGAIN, BASE), (SAMPLED, BASE), (ALL, BASE)]
    for what, taken in (("processor", cpu_ms), ("wait", wall_ms)):
        rows += [_cost(what, one, other, taken) for one, other in pairs]
    rows.append(Row("messages that reached the collector", str(messages)))
    return rows


def _cost(what: str, one: str, other: str, taken: Mapping[str, Sequence[float]]) -> Row:
    """Report how much more one server costs than another: the median of the rounds' ratios less 1."""
    shares = [mine / theirs - 1 for mine, theirs in zip(taken[one], taken[other], strict=True)]
    title = f"more {what}: {one} over {other}"
    if one == SAMPLED:
        return below(title, shares, MAX_AT_1_PERCENT, "+.3f")
    return Row(title, spread(shares, "+.3f"))


def alone(repeats: int = 30, calls: int = 200) -> list[Row]:
    """Time the work that lines and traces add to a call, without the call, which would add noise."""
    with ExitStack() as stack:
        collector = stack.enter_context(child("collector", collect))
        url = f"http://127.0.0.1:{collector.connection.recv()}"
        ways: dict[str, Tracing | None] = {"no traces": None}
        for name, ratio in (("not sampled", 0.0), ("sampled", 1.0)):
            opened_here = Tracing(TracingConfig(endpoint=url, sample_ratio=ratio), "bench")
            ways[name] = opened_here
            stack.callback(opened_here.close)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, tracing in ways.items():
                started_s = time.perf_counter()
                for _ in range(calls):
                    copy_context().run(_record_call, tracing)
                taken[name].append(1e6 * (time.perf_counter() - started_s) / calls)
    us = {name: statistics.median(values) for name, values in taken.items()}
    at_1_percent = 0.99 * us["not sampled"] + 0.01 * us["sampled"]
    rows = [Row(f"us a call: {name}", spread(values, ".1f")) for name, values in taken.items()]
    return [*rows, Row("us a call: 1 % sampled, of these", f"{at_1_percent:.1f}")]


def _record_call(tracing: Tracing | None) -> None:
    """Record a call as endpoints and stages do: it searches an index, and its chunks fit into one batch."""
    record = begin(None)
    if tracing is not None:
        record.trace = tracing.begin(NO_HEADERS.get)
    with record.stage("first_stage", index="things", documents=20):
        pass
    now_s = time.monotonic()
    for step in ("tokenize", "queue", "device", "aggregate"):
        record.step(step, now_s, now_s, ranker="minilm", runtime="torch", chunks=20, tokens=4000)
    for _ in range(6):
        record.exemplar()
    if record.trace is not None:
        record.trace.end("a/call", grpc.StatusCode.OK, {"ranker": "minilm", "tokens": 4000, "chunks": 20})


def main() -> int:
    """Print both tables."""
    command = Command("farrank_bench.tracing", __doc__)
    add = command.options.add_argument
    add("--before", type=Path, help="another checkout, whose server is measured with the others")
    add("--rounds", type=int, default=15, help="measurements of each server (%(default)s)")
    add("--calls", type=int, default=100, help="calls of a measurement (%(default)s)")
    given = command.parse(None)
    notes = (
        f"all-MiniLM-L6-v2 in torch, {given.calls} calls a turn, one at a time, of {len(TEXTS)} short texts; "
        "medians of rounds (smallest to largest); shares are medians of the rounds' ratios less 1"
    )
    heading = Heading("The cost of log lines and traces of calls", notes)
    servers = partial(in_turns, given.before, given.rounds, given.calls)
    parts: list[tuple[str, Measure]] = [("The added work alone", alone), ("Servers in turns", servers)]
    return command.report(heading, parts, given.out)


if __name__ == "__main__":
    sys.exit(main())

"""How long a server takes from its start to healthy, its artifact and exports lying ready."""

import time
from pathlib import Path

from farrank_bench.rows import Row, below
from farrank_cli.spawn import spawned_server
from farrank_client import Client

WITHIN_S = 10.0


def start_to_healthy(artifact: Path, threads: int, starts: int) -> list[Row]:
    """Start a server again and again until its health service says SERVING; the first is not counted."""
    arguments = ["--ranker", f"bench={artifact}", "--device", "cpu", "--threads", str(threads)]
    arguments += ["--log-level", "warning"]
    took_s = []
    for _ in range(starts + 1):
        started_s = time.perf_counter()
        with spawned_server(arguments) as server, Client(server.address) as client:
            if not client.is_healthy():
                raise AssertionError("the server called itself healthy, and its health service did not")
            took_s.append(time.perf_counter() - started_s)
        print(f"  healthy after {took_s[-1]:.1f} s", flush=True)
    return [below("start to healthy with a cached artifact, s", took_s[1:], WITHIN_S, ".1f")]

"""Measure torch on a CPU beside busy neighbours: `python -m farrank_bench.neighbours`.

OpenMP's threads spin for a while when they wait for each other, then sleep. A spinning thread can keep the
one that it waits for from running. Each way of waiting gets a process of its own, and all are measured in
turns, with no, one and two busy processes beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median

from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.devices import CPU_BATCH_TOKENS, usable_cores
from farrank_runtimes.loaded_runtime import even_batch
from farrank_runtimes.torch_runtime import TorchRuntime

FULL, SMALL = (CPU_BATCH_TOKENS // 256, 256), (1, 68)
SECONDS = 2.0
BUSY = [sys.executable, "-c", "while True: pass"]

# A share of the cores, and OpenMP's settings.
WAYS: Mapping[str, tuple[float, Mapping[str, str]]] = {
    "sleeps at once": (1, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "1,000 spins": (1, {"GOMP_SPINCOUNT": "1000"}),
    "10,000 spins": (1, {"GOMP_SPINCOUNT": "10000"}),
    "300,000 spins, OpenMP's default": (1, {"GOMP_SPINCOUNT": "300000"}),
    "half as many threads": (0.5, {"GOMP_SPINCOUNT": "300000"}),
}


def serve(threads: int) -> None:
    """Measure whenever a line comes in: tokens per second of full batches, milliseconds of a small one."""
    runtime = TorchRuntime(new_ranker("avgp", "embedded", seed=1), "fp32", "cpu", threads)
    runtime.warm_up()
    print(flush=True)
    for _ in sys.stdin:
        found = {}
        for name, (rows, length) in (("full", FULL), ("small", SMALL)):
            batch = even_batch(rows, length)
            times: list[float] = []
            while sum(times) < SECONDS:
                started_s = time.perf_counter()
                runtime.encode(batch).rows()
                times.append(time.perf_counter() - started_s)
            # Full batches by their mean: what is lost to a neighbour now and then is lost.
            found[name] = rows * length * len(times) / sum(times) if name == "full" else 1e3 * median(times)
        print(json.dumps(found), flush=True)


@contextmanager
def started(command: list[str], **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    kept = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=kept | settings,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str]) -> str:
    """Read a process's next line."""
    assert process.stdout is not None
    return process.stdout.readline()


def ask(process: subprocess.Popen[str]) -> str:
    """Send an empty line, and wait for the answer."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return read(process)


def main() -> None:
    """Print a table: for each way of waiting and number of neighbours, medians over the rounds."""
    parser = argparse.ArgumentParser(prog="farrank_bench.neighbours", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (%(default)s)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        processes = {}
        for way, (share, settings) in WAYS.items():
            threads = max(1, round(share * usable_cores()))
            command = [sys.executable, "-m", "farrank_bench.neighbours", "--serve", str(threads)]
            processes[way] = stack.enter_context(started(command, **settings))
            read(processes[way])  # it has warmed up
        for _ in range(arguments.rounds):
            for neighbours in (0, 1, 2):
                with ExitStack() as beside:
                    for _ in range(neighbours):
                        beside.enter_context(started(BUSY))
                    for way, process in processes.items():
                        found.setdefault((way, neighbours), []).append(json.loads(ask(process)))
    print(
        "| OpenMP | neighbours | tokens/s of full batches | ms of a small input |\n| --- | --- | --- | --- |"
    )
    for (way, neighbours), measured in sorted(found.items(), key=lambda each: each[0][1]):
        full, small = (sorted(each[name] for each in measured) for name in ("full", "small"))
        print(
            f"| {way} | {neighbours} | {median(full):.0f} ({full[0]:.0f} to {full[-1]:.0f}) "
            f"| {median(small):.1f} ({small[0]:.1f} to {small[-1]:.1f}) |"
        )


if __name__ == "__main__":
    main()

"""Measure torch on a CPU with busy neighbours: `python -m farrank_bench.neighbours`.

OpenMP's threads spin for a while when they wait for each other, then sleep. A spinning thread can keep the
thread that it waits for from running. Each way of waiting has its own process. All are measured in turns,
with no, one and two busy processes on the machine.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

from farrank_bench.report import Command, Heading, Measure, Row, spread
from farrank_bench.rounds import Child, child
from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.devices import CPU_BATCH_TOKENS
from farrank_runtimes.loaded_runtime import even_batch
from farrank_runtimes.torch_runtime import TorchRuntime

FULL, SMALL = (CPU_BATCH_TOKENS // 256, 256), (1, 68)
SECONDS = 2.0
NEIGHBOURS = (0, 1, 2)
BUSY = [sys.executable, "-c", "while True: pass"]

# A share of the cores, and OpenMP's settings.
WAYS: Mapping[str, tuple[float, Mapping[str, str]]] = {
    "sleeps at once": (1, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "1,000 spins": (1, {"GOMP_SPINCOUNT": "1000"}),
    "10,000 spins": (1, {"GOMP_SPINCOUNT": "10000"}),
    "300,000 spins, OpenMP's default": (1, {"GOMP_SPINCOUNT": "300000"}),
    "half as many threads": (0.5, {"GOMP_SPINCOUNT": "300000"}),
}


def encode_for_a_while(asked: Connection, threads: int) -> None:
    """Answer each question with the tokens per second of full batches and the milliseconds of a small one."""
    runtime = TorchRuntime(new_ranker("avgp", "embedded", seed=1), "fp32", "cpu", threads)
    runtime.warm_up()

    def times_s(rows: int, length: int) -> list[float]:
        batch, times = even_batch(rows, length), list[float]()
        while sum(times) < SECONDS:
            started_s = time.perf_counter()
            runtime.encode(batch).rows()
            times.append(time.perf_counter() - started_s)
        return times

    while True:
        asked.recv()
        full_s, small_s = times_s(*FULL), times_s(*SMALL)
        # The mean of full batches, so that occasional losses to a neighbour count.
        asked.send((math.prod(FULL) * len(full_s) / sum(full_s), 1e3 * median(small_s)))


def sections(rounds: int) -> Iterator[tuple[str, Measure]]:
    """Start a process for each way of waiting, and measure all with each number of neighbours."""
    # The processes must not inherit this process's settings of OpenMP.
    for name in [name for name in os.environ if "OMP_" in name]:
        del os.environ[name]
    with ExitStack() as stack:
        processes: dict[str, Child] = {}
        for way, (share, settings) in WAYS.items():
            threads = max(1, round(share * usable_cores()))
            processes[way] = stack.enter_context(child(way, encode_for_a_while, threads, **settings))
            processes[way].ask()  # it has warmed up
        for neighbours in NEIGHBOURS:
            yield f"Neighbours: {neighbours}", partial(in_turns, processes, neighbours, rounds)


def in_turns(processes: Mapping[str, Child], neighbours: int, rounds: int) -> list[Row]:
    """Measure all processes in each round, with `neighbours` busy processes."""
    busy = [subprocess.Popen(BUSY) for _ in range(neighbours)]
    try:
        found = [{way: process.ask() for way, process in processes.items()} for _ in range(rounds)]
    finally:
        for each in busy:
            each.kill()
            each.wait()
    figures = [("tokens/s of full batches", ".0f"), ("ms of a small input", ".1f")]
    return [
        Row(f"{what}: {way}", spread([each[way][place] for each in found], form))
        for place, (what, form) in enumerate(figures)
        for way in processes
    ]


def main() -> int:
    """Print a table for each number of neighbours."""
    command = Command("farrank_bench.neighbours", __doc__)
    command.options.add_argument(
        "--rounds", type=int, default=5, help="measurements of each way (%(default)s)"
    )
    given = command.parse(None)
    notes = "all-MiniLM-L6-v2 in fp32; medians of rounds (smallest to largest)"
    heading = Heading("Torch on a CPU with busy neighbours", notes)
    return command.report(heading, sections(given.rounds), given.out)


if __name__ == "__main__":
    sys.exit(main())

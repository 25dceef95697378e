"""Measure torch on a CPU beside busy neighbours: `python -m farrank_bench.neighbours`.

OpenMP's threads spin for a while when they wait for each other, then sleep. A spinning thread can keep the
one that it waits for from running. Each way of waiting gets a process of its own, and all are measured in
turns, with no, one and two busy processes beside them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median

from farrank_bench.report import Command, Heading, Measure, Row, spread
from farrank_bench.rounds import Child, Scored, child, measure_rounds, whole
from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.devices import CPU_BATCH_TOKENS, usable_cores
from farrank_runtimes.loaded_runtime import even_batch
from farrank_runtimes.torch_runtime import TorchRuntime

FULL, SMALL = (CPU_BATCH_TOKENS // 256, 256), (1, 68)
SECONDS = 2.0
NEIGHBOURS = (0, 1, 2)
BUSY = [sys.executable, "-c", "while True: pass"]
HEADING = Heading(
    "Torch on a CPU beside busy neighbours",
    "all-MiniLM-L6-v2 in fp32; medians (smallest to largest) of rounds",
)

# A share of the cores, and OpenMP's settings.
WAYS: Mapping[str, tuple[float, Mapping[str, str]]] = {
    "sleeps at once": (1, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "1,000 spins": (1, {"GOMP_SPINCOUNT": "1000"}),
    "10,000 spins": (1, {"GOMP_SPINCOUNT": "10000"}),
    "300,000 spins, OpenMP's default": (1, {"GOMP_SPINCOUNT": "300000"}),
    "half as many threads": (0.5, {"GOMP_SPINCOUNT": "300000"}),
}


@dataclass(frozen=True, slots=True)
class Way:
    """A contender: a process that waits in one way, and the batch that it encodes, as rows and tokens."""

    process: Child
    batch: tuple[int, int]

    def score(self) -> Scored:
        """Encode for a while; of full batches tokens count, of a small one itself."""
        return Scored(self.process.ask(self.batch), FULL[0] * FULL[1] if self.batch == FULL else 1)


def encode_for_a_while(asked: Connection, threads: int) -> None:
    """Answer each batch's rows and tokens with the seconds that it takes."""
    runtime = TorchRuntime(new_ranker("avgp", "embedded", seed=1), "fp32", "cpu", threads)
    runtime.warm_up()
    while True:
        given = asked.recv()
        batch, times = even_batch(*given), list[float]()
        while sum(times) < SECONDS:
            started_s = time.perf_counter()
            runtime.encode(batch).rows()
            times.append(time.perf_counter() - started_s)
        # Full batches by their mean: what is lost to a neighbour now and then is lost.
        asked.send(sum(times) / len(times) if given == FULL else median(times))


def beside(rounds: int) -> Iterator[tuple[str, Measure]]:
    """Start a process for each way of waiting, and measure all with each number of neighbours."""
    # Nothing that was set for this process is to be inherited.
    for name in [name for name in os.environ if "OMP_" in name]:
        del os.environ[name]
    with ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name, (share, settings) in WAYS.items():
            threads = max(1, round(share * usable_cores()))
            process = stack.enter_context(child(name, encode_for_a_while, threads, **settings))
            ways[f"full batches: {name}"] = Way(process, FULL)
            ways[f"a small input: {name}"] = Way(process, SMALL)
        for neighbours in NEIGHBOURS:

            def measure(neighbours: int = neighbours) -> list[Row]:
                return _in_turns(ways, neighbours, rounds)

            yield f"Neighbours: {neighbours}", measure


def _in_turns(ways: Mapping[str, Way], neighbours: int, rounds: int) -> list[Row]:
    busy = [subprocess.Popen(BUSY) for _ in range(neighbours)]
    try:
        found = measure_rounds(ways, rounds)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    rows = []
    for name, way in ways.items():
        if way.batch == FULL:
            rows.append(found.speed_row(name, f"tokens/s, {name}"))
        elif name in found.speeds:
            rows.append(Row(f"ms, {name}", spread([1e3 / speed for speed in found.speeds[name]], ".1f")))
    return whole(rows, found)


def main() -> int:
    """Print a table for each number of neighbours."""
    command = Command("farrank_bench.neighbours", __doc__)
    command.options.add_argument("--rounds", type=int, default=5, help="measurements of each (%(default)s)")
    given = command.parse(None)
    return command.report(HEADING, beside(given.rounds), given.out)


if __name__ == "__main__":
    sys.exit(main())

"""Run the benchmark: `make bench`, or `make bench BENCH_ARGS=--quick`."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from farrank_bench.beside_peers import Size, beside_peers
from farrank_bench.corpus_calls import call_of, make_calls
from farrank_bench.engine_costs import admission_cost, event_loop_stall
from farrank_bench.exporting import export_fast, write_cross_encoder
from farrank_bench.fidelity import fidelity_of_exports
from farrank_bench.own_server import Bench, idle_latency, overload, start_to_healthy, throughput
from farrank_bench.report import Row, heading, tables
from farrank_cli.spawn import spawned_server
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.devices import usable_cores
from farrank_runtimes.torch_runtime import TorchRuntime

NOTES = (
    "all-MiniLM-L6-v2 as a cross-encoder with a random head, texts from the embedded corpus; the server's "
    "own sections in fp32, documents of 20 to 1,400 tokens (AvgP, disjoint chunks of 477); exports on pairs "
    "of 60 to 512 tokens, all contenders with {threads} threads and in turns; medians (smallest to largest), "
    "ratios taken round by round"
)

# A title and its rows, as soon as they are measured.
Sections = Iterator[tuple[str, list[Row]]]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. None: all there is."""

    calls: int
    repeats: int
    overload_s: float
    stall_s: float
    pairs: Size
    questions: int | None
    max_chunks: int | None


FULL = Extent(64, 5, 60.0, 20.0, Size(24, 16, 5), None, None)
QUICK = Extent(32, 1, 15.0, 5.0, Size(6, 4, 1), 5, 2)


def main() -> None:
    """Run the sections asked for and print the report."""
    parser = argparse.ArgumentParser(prog="farrank_bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls and repeats: a smoke test")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--idle-only", action="store_true", help="measure the idle latency alone")
    alone.add_argument(
        "--exports-only", action="store_true", help="measure exports alone: speed, start and fidelity"
    )
    alone.add_argument(
        "--engine-only", action="store_true", help="measure admission and the event loop alone"
    )
    parser.add_argument("--index", type=Path, help="the index of the embedded corpus, for fidelity")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(".cache"),
        help="where Infinity's environment is kept (%(default)s)",
    )
    parser.add_argument("--out", type=Path, help="write the report here, too")
    arguments = parser.parse_args()
    extent = QUICK if arguments.quick else FULL
    threads = usable_cores()

    sections: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measured: list[Sections] = []
        everything = not (arguments.idle_only or arguments.engine_only or arguments.exports_only)
        if everything or arguments.idle_only:
            measured.append(of_the_server(extent, Path(folder) / "server", idle_only=arguments.idle_only))
        if everything or arguments.engine_only:
            measured.append(of_the_engine(extent, Path(folder) / "engine"))
        if everything or arguments.exports_only:
            measured.append(of_exports(extent, Path(folder), threads, arguments.cache, arguments.index))
        for title, rows in chain.from_iterable(measured):
            sections[title] = rows
            # At once, too: a later section that fails does not take these along.
            print("\n".join([title, *(f"  {row.what}: {row.measured}" for row in rows)]), flush=True)

    flags = [
        flag for flag in ("--quick", "--idle-only", "--engine-only", "--exports-only") if flag in sys.argv
    ]
    command = f"make bench BENCH_ARGS='{' '.join(flags)}'" if flags else "make bench"
    report = heading("The server measured", command, NOTES.format(threads=threads)) + tables(sections)
    print(report)
    if arguments.out:
        arguments.out.write_text(report)


def of_the_server(extent: Extent, folder: Path, *, idle_only: bool) -> Sections:
    """Measure the server against its own runtime, in torch and fp32."""
    ranker = new_ranker("avgp", "embedded", seed=1)
    save_ranker(ranker, folder)
    runtime = TorchRuntime(ranker, "fp32")
    runtime.warm_up()
    with spawned_server(["--ranker", f"bench={folder}", "--log-level", "warning"]) as server:
        calls = make_calls(ranker.reader, extent.calls, 4, 1)
        bench = Bench(server, runtime, ranker.reader, calls, 16, extent.repeats)
        if not idle_only:
            rows, capacity_per_s = throughput(bench)
            yield "Throughput", rows
        small = call_of(calls[0].query, [calls[0].texts[0][:200]])
        yield "Idle latency", idle_latency(bench, small, 200)
        if not idle_only:
            yield "Overload", overload(bench, capacity_per_s, extent.overload_s, timeout_s=10.0)


def of_the_engine(extent: Extent, folder: Path) -> Sections:
    """Measure what a call costs on the event loop, however many are in flight."""
    yield "Admission", admission_cost()
    yield "The event loop", event_loop_stall(folder, extent.stall_s)


def of_exports(extent: Extent, folder: Path, threads: int, cache: Path, index: Path | None) -> Sections:
    """Measure exports: their speed beside peers, a server's start, and what they do to rankings."""
    made = write_cross_encoder(folder)
    _, refused_or_not = export_fast(made.ranker, made.artifact)
    speeds = beside_peers(made, extent.pairs, threads, cache, folder)
    yield "Exports beside peers", [*refused_or_not, *speeds]
    yield "Start", start_to_healthy(made.artifact, threads, extent.repeats)
    rows = fidelity_of_exports(index, folder / "embedded", threads, extent.questions, extent.max_chunks)
    yield "Fidelity of exports", rows


if __name__ == "__main__":
    main()

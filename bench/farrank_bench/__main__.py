"""Run the benchmark: `make bench`, or `make bench BENCH_ARGS=--quick`."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farrank_bench.against_peers import against_peers
from farrank_bench.corpus_calls import make_calls
from farrank_bench.event_loops import admission_cost, event_loop_stall
from farrank_bench.exporting import export_fast, write_cross_encoder
from farrank_bench.fidelity import CANDIDATES, fidelity_of_exports
from farrank_bench.modernbert import modernbert_against_peers, write_modernbert
from farrank_bench.own_server import OwnServer, idle_latency_of, start_to_healthy
from farrank_bench.report import Command, Heading, Measure, PartlyFailed, Row
from farrank_bench.served import serving
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.torch_runtime import TorchRuntime

NOTES = (
    "all-MiniLM-L6-v2 as a cross-encoder with a random head, texts from the embedded corpus; the server's "
    "own sections in fp32, documents of 20 to 1,400 tokens (AvgP, disjoint chunks of 477); exports on pairs "
    "of 60 to 512 tokens, all contenders with {threads} threads and in turns; medians (smallest to largest), "
    "ratios computed round by round; fidelity is the embedded bi-encoder's over judged questions with up to "
    "{candidates} candidates each, Kendall's tau-b and overlaps as means over questions, the lowest in "
    "brackets"
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The amount of work. `pair_calls` and `base_calls` are a number of calls and of documents per call."""

    calls: int
    repeats: int
    overload_s: float
    stall_s: float
    pair_calls: tuple[int, int]
    base_calls: tuple[int, int]


FULL = Extent(64, 5, 60.0, 20.0, (24, 16), (6, 8))
QUICK = Extent(32, 1, 15.0, 5.0, (6, 4), (2, 4))

Parts = Iterator[tuple[str, Measure]]


@dataclass(frozen=True, slots=True)
class Bench:
    """The arguments, the amount of work, and a folder for intermediate files."""

    extent: Extent
    folder: Path
    given: argparse.Namespace

    def parts(self, names: Iterable[str]) -> Parts:
        """Yield the sections' parts one after the other. A set-up that fails becomes a part that fails."""
        for name in names:
            try:
                yield from SECTIONS[name](self)
            except Exception as error:
                yield f"The set-up of {name}", partial(_fail, error)

    def server(self, *, idle_only: bool = False) -> Parts:
        """Measure the server against its own runtime, in torch and fp32."""
        ranker, folder, extent = (
            new_ranker("avgp", "embedded", seed=1),
            self.folder / f"server-{idle_only}",
            self.extent,
        )
        save_ranker(ranker, folder)
        runtime = TorchRuntime(ranker, "fp32")
        runtime.warm_up()
        with serving(folder) as server:
            calls = make_calls(ranker.reader, extent.calls, 4, 1)
            own = OwnServer(server, folder, runtime, ranker.reader, calls, 16, extent.repeats)
            if not idle_only:
                yield "Throughput", own.throughput
            yield "Idle latency", own.idle_latency
            if not idle_only:
                yield "Overload", partial(own.overload, extent.overload_s)

    def engine(self) -> Parts:
        """Measure the cost of a call on the event loop, with few and with many in flight."""
        yield "Admission", admission_cost
        yield "The event loop", partial(event_loop_stall, self.folder / "engine", self.extent.stall_s)

    def exports(self) -> Parts:
        """Measure exports: their speed against peers, and the start of a server."""
        made, threads, extent = write_cross_encoder(self.folder), usable_cores(), self.extent
        # All measurements need an export.
        exports, rows = export_fast(made.ranker, made.artifact, unasked=True)
        if not exports:
            raise PartlyFailed("no precision could be exported", rows)
        measure = partial(against_peers, made, rows, extent.pair_calls, extent.repeats, threads)
        yield "Exports against peers", partial(measure, self.given.cache, self.folder)
        yield "Idle latency of an export", partial(idle_latency_of, made.artifact, threads)
        yield "Start", partial(start_to_healthy, made.artifact, threads, extent.repeats)

    def fidelity(self) -> Parts:
        """Measure the effect of exports on rankings."""
        given, folder = self.given, self.folder / "embedded"
        measure = partial(fidelity_of_exports, given.index, folder, usable_cores())
        yield "Fidelity of exports", partial(measure, given.questions, given.max_chunks)

    def modernbert(self) -> Parts:
        """Measure ModernBERT-base, in torch and exported, against sentence-transformers."""
        made, extent = write_modernbert(self.folder / "modernbert"), self.extent
        measure = partial(modernbert_against_peers, made, extent.base_calls, extent.repeats, usable_cores())
        yield "ModernBERT-base against sentence-transformers", measure


def _fail(error: Exception) -> list[Row]:
    raise error


SECTIONS: Mapping[str, Callable[[Bench], Parts]] = {
    "server": Bench.server,
    "idle": partial(Bench.server, idle_only=True),
    "engine": Bench.engine,
    "exports": Bench.exports,
    "fidelity": Bench.fidelity,
    "modernbert": Bench.modernbert,
}


def main() -> int:
    """Run the requested sections and print the report. Returns 1 if one failed, 130 if interrupted."""
    command = Command("farrank_bench", __doc__)
    command.sections(SECTIONS, ["server", "engine", "exports", "fidelity"])
    add = command.options.add_argument
    add("--quick", action="store_true", help="fewer calls, repeats and questions: a smoke test")
    add("--index", type=Path, help="the index of the embedded corpus, for fidelity")
    add("--questions", type=int, help="measure fidelity on only this many questions")
    add("--max-chunks", type=int, help="measure fidelity on only this many chunks of each document")
    add("--cache", type=Path, default=Path(".cache"), help="folder for Infinity's environment (%(default)s)")
    given = command.parse(None)
    if {"server", "idle"} <= set(given.sections):
        command.options.error("argument --sections: idle is a part of server: choose one of them")
    if given.quick:
        given.questions, given.max_chunks = given.questions or 5, given.max_chunks or 2
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(QUICK if given.quick else FULL, Path(folder), given)
        heading = Heading("The server", NOTES.format(threads=usable_cores(), candidates=CANDIDATES))
        return command.report(heading, bench.parts(given.sections), given.out)


if __name__ == "__main__":
    sys.exit(main())

"""A large collection of generated documents: indexed with its tokens, served, searched and reranked.

python -m farrank_bench.large_collection --documents 1000000 --folder DIR

Words follow Zipf's law, and documents' lengths are lognormal. Each line is piped to `farrank index` as soon
as it is made, so that the whole collection is never on disk or in memory.
"""

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farrank_bench.report import Command, Heading, Row
from farrank_bench.rounds import ContenderFailed
from farrank_bench.served import resident_mib, watched_memory
from farrank_cli.spawn import spawned_server
from farrank_client import Client, Ranking
from farrank_loadtest.workloads.synthetic import words

VOCABULARY = 300_000
MEDIAN_WORDS = 150
SIGMA = 0.6  # of the lengths' logarithm: the longest of a million is some 17 times the median
LONGEST = 20.0
DRAWN_AT_ONCE = 256
_ONSETS, _NUCLEI = "bdfgklmnprstvz", "aeiou"
QUERY_TERMS = 4
# Neither stop words, which every document has, nor rare words.
QUERY_RANKS = range(1_000, 100_000)
CALLERS = (1, 4)
TITLES = {"build": "Building", "search": "Searching and reranking"}
TIMEOUT_S = 120.0


def word(rank: int) -> str:
    """Return the word of a rank: common English words first, then made-up ones that grow with the rank."""
    common = _common()
    if rank < len(common):
        return common[rank]
    syllables: list[str] = []
    rest = rank - len(common)
    while not syllables or rest:
        rest, each = divmod(rest, len(_ONSETS) * len(_NUCLEI))
        onset, nucleus = divmod(each, len(_NUCLEI))
        syllables.append(_ONSETS[onset] + _NUCLEI[nucleus])
    made = "".join(syllables) + "x"
    return f"{made}x" if made in common else made


@cache
def _common() -> tuple[str, ...]:
    return tuple(dict.fromkeys(words()))


def generated_lines(documents: int, median_words: int, seed: int) -> Iterator[str]:
    """Make a collection's lines. They are the same for the same seed."""
    drawn = np.random.default_rng(seed)
    # Zipf's law with Mandelbrot's offset: the frequency of rank r is proportional to 1 / (r + 2.7).
    shares = np.cumsum(1.0 / (np.arange(VOCABULARY) + 2.7))
    shares /= shares[-1]
    vocabulary = np.array([word(rank) for rank in range(VOCABULARY)], dtype=object)
    for first in range(0, documents, DRAWN_AT_ONCE):
        count = min(DRAWN_AT_ONCE, documents - first)
        lengths = np.exp(drawn.normal(np.log(median_words), SIGMA, count))
        lengths = np.clip(lengths, 1, LONGEST * median_words).astype(int)
        ranks: NDArray[np.intp] = np.searchsorted(shares, drawn.random(int(lengths.sum())))
        for place, chosen in enumerate(np.split(vocabulary[ranks], np.cumsum(lengths)[:-1]), start=first):
            yield json.dumps({"id": f"d{place}", "text": " ".join(chosen)}) + "\n"


def queries(count: int, seed: int) -> list[str]:
    """Draw queries of words from the middle of the vocabulary."""
    drawn = random.Random(seed)
    return [" ".join(map(word, drawn.sample(QUERY_RANKS, QUERY_TERMS))) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """An index and the cost of building it. `peak_mib` is the peak memory of the building processes."""

    folder: Path
    documents: int
    characters: int
    seconds: float
    cpu_s: float
    peak_mib: float

    def bytes_of(self, part: str) -> int:
        """Sum the files of a part: `tokens` is a folder of its own, "" stands for Lucene's files."""
        if part:
            return sum(each.stat().st_size for each in (self.folder / part).rglob("*") if each.is_file())
        return sum(each.stat().st_size for each in self.folder.iterdir() if each.is_file())

    def rows(self) -> list[Row]:
        """Report the cost of building it."""
        index, tokens = self.bytes_of(""), self.bytes_of("tokens")
        rate = f"{self.documents / self.seconds:,.0f} ({self.cpu_s:,.0f} s of processor time in all)"
        return [
            Row(
                "documents, characters of one", f"{self.documents:,}, {self.characters / self.documents:.0f}"
            ),
            Row("built in, s", f"{self.seconds:,.0f}"),
            Row("documents/s", rate),
            Row("peak memory of the building processes, MiB", f"{self.peak_mib:,.0f}"),
            Row("bytes per document: Lucene's index with its texts", f"{index / self.documents:,.0f}"),
            Row("bytes per document: tokens", f"{tokens / self.documents:,.0f}"),
        ]


def build(folder: Path, documents: int, median_words: int, flags: Sequence[str]) -> IndexFigures:
    """Pipe the collection into `farrank index`. Raises: ContenderFailed if it fails."""
    command = [sys.executable, "-m", "farrank_cli", "index", "-", "--out", str(folder), *flags]
    started_s, before_s, characters = time.monotonic(), _waited_for_s(), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        with watched_memory(process.pid) as held:
            try:
                for line in generated_lines(documents, median_words, seed=7):
                    characters += len(line)
                    process.stdin.write(line)
                process.stdin.close()
            except BrokenPipeError as error:
                raise ContenderFailed("farrank index ended early; its output is above") from error
            status = process.wait()
    if status:
        raise ContenderFailed(f"farrank index ended with status {status}; its output is above")
    seconds = time.monotonic() - started_s
    return IndexFigures(folder, documents, characters, seconds, _waited_for_s() - before_s, max(held))


def _waited_for_s() -> float:
    """Return the processor time of all ended children and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def searched(index: Path, calls: int, k: int) -> list[Row]:
    """Serve the index, and time searches whose candidates are reranked, for one caller and for several."""
    flags = ["--index", f"large={index}", "--log-level", "warning"]
    rows: list[Row] = []
    started_s = time.monotonic()
    with spawned_server(flags) as server, Client(server.address) as client:
        rows.append(Row("server healthy after, s", f"{time.monotonic() - started_s:.1f}"))
        rows.append(Row("memory of server and search process at the start, MiB", _mib(server.process.pid)))
        ask = partial(client.search_and_rerank, k=k, top_n=10, timeout_s=TIMEOUT_S)
        for question in queries(20, seed=1):
            ask(question)
        for callers in CALLERS:
            asked = queries(calls, seed=2 + callers)
            before_s = time.monotonic()
            with ThreadPoolExecutor(callers) as threads:
                timed = list(threads.map(partial(_timed, ask), asked))
            seconds = time.monotonic() - before_s
            who = f"{callers} caller{'s' if callers > 1 else ''}"
            rows += [
                Row(f"{who}: searches with {k} candidates reranked, per s", f"{calls / seconds:.1f}"),
                _quantiles(f"{who}: latency, ms", [each for each, _ in timed]),
                _quantiles(f"{who}: first stage, ms", [r.timings.first_stage_ns / 1e6 for _, r in timed]),
                _quantiles(f"{who}: reading, ms", [r.timings.tokenization_ns / 1e6 for _, r in timed]),
                _quantiles(f"{who}: model, ms", [r.timings.inference_ns / 1e6 for _, r in timed]),
            ]
        rows.append(Row("memory of server and search process at the end, MiB", _mib(server.process.pid)))
    return rows


def _timed(ask: Callable[[str], Ranking], question: str) -> tuple[float, Ranking]:
    started_s = time.monotonic()
    ranking = ask(question)
    return (time.monotonic() - started_s) * 1e3, ranking


def _quantiles(what: str, values: Sequence[float]) -> Row:
    p50, p99 = np.percentile(values, (50, 99))
    return Row(f"{what}: p50, p99", f"{p50:.1f}, {p99:.1f}")


def _mib(pid: int) -> str:
    return f"{resident_mib(pid):,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, serve, search, report."""
    command = Command("farrank_bench.large_collection", __doc__)
    add = command.options.add_argument
    add("--documents", type=int, default=1_000_000)
    add("--folder", type=Path, required=True, help="takes the index; needs some 3 KB of disk per document")
    add("--calls", type=int, default=200, help="calls for each number of callers")
    add("--k", type=int, default=100, help="candidates of a search")
    command.sections(TITLES, default=[*TITLES])
    given = command.parse(arguments)
    index = given.folder / f"generated-{given.documents}"

    def built() -> list[Row]:
        return build(index, given.documents, MEDIAN_WORDS, ["--tokens", "embedded"]).rows()

    def served() -> list[Row]:
        return searched(index, given.calls, given.k)

    notes = (
        f"words by Zipf's law over a vocabulary of {VOCABULARY:,}, lengths lognormal, median {MEDIAN_WORDS}"
    )
    heading = Heading(f"A collection of {given.documents:,} generated documents", notes)
    measures = {"build": built, "search": served}
    return command.report(heading, [(TITLES[name], measures[name]) for name in given.sections], given.out)


if __name__ == "__main__":
    sys.exit(main())

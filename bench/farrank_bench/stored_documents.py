"""The time saved by tokens and encodings that are stored with an index.

python -m farrank_bench.stored_documents --index .cache/pydoc-index

`read` measures a cross-encoder's documents from the first stage to the batcher. A server's tokenizer threads
read, split and frame 100 documents of 1,431 tokens, from texts and from stored tokens in turns. `search` lets
a server answer the demo's judged questions, from an index of the embedded corpus that stores tokens and
encodings.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from farrank_bench.report import Command, Heading, PartlyFailed, Row, at_least, below, not_measured, spread
from farrank_bench.rounds import PassResult, measure_rounds
from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_demo.questions import load_questions
from farrank_indexes.index_manifest import IndexManifest
from farrank_indexes.index_stores import IndexStores
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_indexes.token_store import TokenStoreBuilder
from farrank_rankers.reader import Reader
from farrank_server.config.schema import LimitsConfig, RankerConfig, ServerConfig
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Reservation, Reservations
from farrank_server.engine.call import ActiveCall, InputDocument, RerankCall, text_documents
from farrank_server.engine.loaded.document_cache import DocumentCache, KnownDocuments
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.engine.stored import Sources
from farrank_server.engine.tokenization import TokenizerPool

DOCUMENTS, TOKENS = 100, 1431
RANKER = "embedded:maxp"
QUERY = "how is a file read line by line"
READ_WITHIN_MS, TIMES_FASTER = 20.0, 10.0
SEARCHED_WITHIN_MS = 40.0
CANDIDATES = 100
TIMEOUT_S = 600.0
TITLES = {"read": "From the first stage to the batcher", "search": "A search, reranked by stored encodings"}


def texts_of(reader: Reader, count: int, tokens: int) -> list[str]:
    """Cut the documentation into `count` texts of exactly `tokens` tokens."""
    made: list[str] = []
    for document in read_pydoc():
        read = reader.tokenizer.read(document.text, tokens * count)
        for first in range(0, len(read) - tokens, tokens):
            text = document.text[read.starts[first] : read.ends[first + tokens - 1]]
            if len(reader.tokenizer.read(text, tokens + 1)) == tokens:
                made.append(text)
            if len(made) == count:
                return made
    raise ValueError(f"the documentation has only {len(made)} texts of {tokens} tokens")


def stored(folder: Path, ranker: LoadedRanker, texts: Sequence[str]) -> tuple[InputDocument, ...]:
    """Store the texts' tokens. Returns the documents without their texts, as the first stage does."""
    store = TokenStoreBuilder(ranker.reader.tokenizer)
    writer = store.open(folder, 0, None)
    writer.add(texts)
    writer.finish("bench")
    writer.close()
    manifest = IndexManifest(len(texts), 0, "", id="bench", places=len(texts), stores=(store.key,))
    sources = Sources.found(IndexStores(folder, manifest), [ranker])
    return tuple(InputDocument(len(text), None, sources, place) for place, text in enumerate(texts))


def reading(rounds: int, threads: int) -> list[Row]:
    """Let the tokenizer threads prepare the same call from texts and from tokens, in turns."""
    config = ServerConfig(rankers={"it": RankerConfig(source=RANKER)}, cache_bytes=0)
    (ranker,) = load_rankers(config, DocumentCache(0))[0].members
    texts = texts_of(ranker.reader, DOCUMENTS, TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        calls = {"texts": text_documents(texts), "stored tokens": stored(Path(folder), ranker, texts)}
        contenders = {name: partial(prepared, ranker, each, threads) for name, each in calls.items()}
        found = measure_rounds(contenders, rounds)
        before = anonymous_mib()
        for _ in range(50):
            prepared(ranker, calls["stored tokens"], threads)
        grown = anonymous_mib() - before
    took = {name: [DOCUMENTS / each * 1e3 for each in speeds] for name, speeds in found.speeds.items()}
    what = f"{DOCUMENTS} documents of {TOKENS:,} tokens, ms"
    return [
        Row(f"{what}, from texts", spread(took["texts"], ".1f")),
        below(f"{what}, from stored tokens", took["stored tokens"], READ_WITHIN_MS, ".1f"),
        at_least("texts over stored tokens", found.ratios("stored tokens", "texts"), TIMES_FASTER, ".1f"),
        Row("memory of 50 more calls from stored tokens (without mapped files), MiB", f"{grown:.1f}"),
    ]


def prepared(ranker: LoadedRanker, documents: tuple[InputDocument, ...], threads: int) -> PassResult:
    """Read, split and frame a call's documents, as a server does before they reach the device."""

    async def prepare() -> PassResult:
        inputs = 0

        def count(call: ActiveCall, queued: Sequence[object], pending: Sequence[object]) -> None:
            nonlocal inputs
            inputs += len(queued)

        speed = Speed(1e6)
        reservations = Reservations(LimitsConfig(), {ranker.name: ranker.speeds}, speed)
        pool = TokenizerPool(threads, speed, reservations, count)
        now_s = time.monotonic()
        call = RerankCall(ranker.name, QUERY, documents, None, now_s, now_s + TIMEOUT_S)
        finished = asyncio.get_running_loop().create_future()
        active = ActiveCall(1, call, ranker, Reservation((), 0, 0, 0.0, 0.0), KnownDocuments(), finished)
        try:
            started_s = time.perf_counter()
            tally = await pool.prepare(active)
            seconds = time.perf_counter() - started_s
        finally:
            pool.close()
        assert tally.chunks == inputs
        return PassResult(seconds, len(documents))

    return asyncio.run(prepare())


def anonymous_mib() -> float:
    """Return the memory of this process that no file backs, in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


def searching(index: Path | None, rounds: int) -> list[Row]:
    """Search for the judged questions, one after the other."""
    if index is None or not index.exists():
        return [not_measured("search", f"--index is {index}; make demo builds .cache/pydoc-index")]
    flags = ["--ranker", "maxsim=embedded:maxsim", "--index", f"pydoc={index}", "--log-level", "warning"]
    with spawned_server(flags) as server, Client(server.address) as client:
        ask = partial(client.search_and_rerank, k=CANDIDATES, timeout_s=TIMEOUT_S)
        questions = [each.text for each in load_questions()]
        found = ask(questions[0])
        if found.usage.stored_documents != len(found.results):
            raise PartlyFailed(f"{index} has no stored encodings of embedded:maxsim", [])
        taken = []
        for _ in range(rounds):
            ms = []
            for question in questions:
                started_s = time.monotonic()
                found = ask(question)
                ms.append((time.monotonic() - started_s) * 1e3)
            taken.append(np.percentile(ms, (50, 99)).tolist())
    p50, p99 = zip(*taken, strict=True)
    what = f"search for {CANDIDATES} candidates and rerank them, one caller"
    timings = found.timings
    stages = {
        "first stage": timings.first_stage_ns,
        "reading": timings.tokenization_ns,
        "encoding the query": timings.inference_ns,
        "scoring": timings.aggregation_ns,
        "in all": timings.total_ns,
    }
    return [
        below(f"{what}: p50, ms", p50, SEARCHED_WITHIN_MS, ".1f"),
        Row(f"{what}: p99, ms", spread(p99, ".1f")),
        Row("the last one's stages, ms", ", ".join(f"{name} {ns / 1e6:.1f}" for name, ns in stages.items())),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the report."""
    command = Command("farrank_bench.stored_documents", __doc__)
    command.options.add_argument("--index", type=Path, help="index of the embedded corpus, with encodings")
    command.options.add_argument("--rounds", type=int, default=7)
    command.options.add_argument("--threads", type=int, default=2, help="tokenizer threads")
    command.sections(TITLES, default=[*TITLES])
    given = command.parse(arguments)
    measures = {
        "read": lambda: reading(given.rounds, given.threads),
        "search": lambda: searching(given.index, given.rounds),
    }
    notes = f"read: {RANKER}, {given.threads} tokenizer threads; search: the embedded bi-encoder"
    heading = Heading("Documents stored with an index", notes)
    return command.report(heading, [(TITLES[name], measures[name]) for name in given.sections], given.out)


if __name__ == "__main__":
    sys.exit(main())

"""A document of a million tokens: indexed with its tokens and vectors, found, and sent as a text.

python -m farrank_bench.long_document

A second process checks the server's health every 10 ms while a call is answered. The text is the embedded
documentation, repeated. Encoding all of it takes minutes on two cores; `--ranker` and `--tokens` change that.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

from farrank_bench.large_requests import ProcessMemory, checked
from farrank_bench.report import Command, Heading, Measure, Row, below, spread
from farrank_bench.rounds import Child, child
from farrank_cli.spawn import spawned_server
from farrank_client import Client, Ranking
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_rankers.files.open import open_reader

STALL_MS = 100.0
QUERY = "how is a file read line by line"
TIMEOUT_S = 1800.0


def text_of(source: str, tokens: int) -> str:
    """Join pages of the documentation until they have `tokens` tokens of a ranker's tokenizer."""
    tokenizer, parts, found = open_reader(source).tokenizer, list[str](), 0
    for document in cycle(read_pydoc()):
        read = tokenizer.read(document.text, tokens - found)
        parts.append(document.text[: read.ends[-1]])
        found += len(read)
        if found >= tokens:
            return "\n".join(parts)
    raise AssertionError("a cycle has no end")


def indexed(text: str, source: str, scratch: Path) -> list[Row]:
    """Index the document together with nine short ones."""
    documents = [("long", text), *((f"short-{n}", f"a file of {n} lines is read") for n in range(9))]
    collection = scratch / "collection.jsonl"
    collection.write_text("\n".join(json.dumps({"id": name, "text": each}) for name, each in documents))
    flags = ["--tokens", source, "--encode", source, "--out", str(scratch / "index")]
    begun_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "farrank_cli", "index", str(collection), *flags], check=True)
    took_s = time.perf_counter() - begun_s
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    kept = sum(each.stat().st_size for each in (scratch / "index").rglob("*") if each.is_file())
    return [
        Row("indexing it, s", f"{took_s:.1f}"),
        Row("peak memory of the largest process, MiB", f"{most / 2**20:.0f}"),
        Row("the index, MiB", f"{kept / 2**20:.1f}"),
    ]


def measure_calls(checks: Child, memory: ProcessMemory, ask: Callable[[], Ranking], rounds: int) -> list[Row]:
    """Call the server in each round. Report the longest health check meanwhile, and the server's memory."""
    longest, grown, took, found = [], [], [], None
    for _ in range(rounds):
        memory.begin()
        checks.ask()
        begun_s = time.perf_counter()
        found = ask()
        took.append(time.perf_counter() - begun_s)
        longest.append(checks.ask())
        grown.append(memory.grown() / 2**20)
    assert found is not None, "rounds is at least 1"
    return [
        below("longest health check, ms", longest, STALL_MS, ".1f"),
        Row("until the answer, s", spread(took, ".2f")),
        Row("peak memory, above that before the call, MiB", spread(grown, ".0f")),
        Row("chunks", f"{found.usage.chunks:,}"),
        Row("tokens that were not read", f"{sum(each.tokens_cut for each in found.results):,}"),
    ]


def parts(source: str, tokens: int, rounds: int, scratch: Path) -> Iterator[tuple[str, Measure]]:
    """Index the document, start a server with that index, and call it in each way."""
    text = text_of(source, tokens)
    size = f"{tokens:,} tokens, {len(text.encode()) / 2**20:.1f} MiB"
    yield f"farrank index --tokens --encode: {size}", partial(indexed, text, source, scratch)
    arguments = [f"--ranker=it={source}", "--ranker=maxp=embedded:maxp", f"--index=docs={scratch / 'index'}"]
    arguments += ["--log-level=warning", "--device=cpu", "--set=cache_bytes=0"]
    with (
        spawned_server(arguments) as server,
        child("checks", checked, server.address) as checks,
        Client(server.address) as client,
    ):
        memory = ProcessMemory(server.process.pid)
        search = partial(client.search_and_rerank, QUERY, timeout_s=TIMEOUT_S)
        rerank = partial(client.rerank, QUERY, {"long": text}, timeout_s=TIMEOUT_S)
        for title, ask in (
            ("Search, reranked by stored vectors", search),
            ("Search, with the scores of all chunks", partial(search, return_chunk_scores=True)),
            ("Search, reranked from stored tokens by a cross-encoder", partial(search, ranker="maxp")),
            ("Rerank of the text by a cross-encoder", partial(rerank, ranker="maxp")),
        ):
            yield title, partial(measure_calls, checks, memory, ask, rounds)
        yield (
            "Rerank of the text by the bi-encoder, which encodes all of it",
            partial(measure_calls, checks, memory, rerank, 1),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each way in which the document is read."""
    command = Command("farrank_bench.long_document", __doc__)
    command.options.add_argument("--ranker", default="embedded", help="the bi-encoder (%(default)s)")
    command.options.add_argument(
        "--tokens", type=int, default=1_000_000, help="tokens of the document (%(default)s)"
    )
    command.options.add_argument("--rounds", type=int, default=5, help="calls of each kind (%(default)s)")
    given = command.parse(arguments)
    if sys.platform != "linux":
        command.options.error("needs Linux: it reads memory from /proc")
    notes = "a health check every 10 ms; medians of rounds (smallest to largest)"
    with tempfile.TemporaryDirectory() as scratch:
        measured = parts(given.ranker, given.tokens, given.rounds, Path(scratch))
        return command.report(Heading("A document of a million tokens", notes), measured, given.out)


if __name__ == "__main__":
    sys.exit(main())

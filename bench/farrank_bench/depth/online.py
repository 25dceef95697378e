"""Time a served ranker at several depths, FirstP, and sentence-transformers' CrossEncoder on the same calls.

`python -m farrank_bench.depth.online --set FOLDER --out FOLDER`. The set is of `farrank_bench.depth --sets`,
or has the same files of another collection: queries.tsv, candidates.trec and collection.jsonl. All take turns
at each question, one call at a time. CrossEncoder has the weights of the ranker, a MaxP with mean pooling,
and the same number of threads; the cutting of its windows is not timed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from farrank_bench.depth.judging import FIRSTP_POSITIONS
from farrank_bench.rounds import Child, child
from farrank_bench.served import answer_all
from farrank_cli.depth_flag import depth
from farrank_cli.flags import at_least
from farrank_cli.spawn import spawned_server
from farrank_loadtest.depths import Depth, depth_text
from farrank_loadtest.kept_files import markdown_table
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import read_candidates
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.files.open import open_ranker
from farrank_rankers.reader import Reader
from farrank_trec import ScoredDoc, rank, write_run

FIRSTP = "firstp"
# The positions of FirstP less a query's 32 tokens and three special ones.
FIRSTP_WINDOW = FIRSTP_POSITIONS - 35
# Scores all documents of a call; gives its seconds and the scores.
Scorer = Callable[[Call], tuple[float, Sequence[float]]]
# A question's seconds, by contender and by question.
Times = Mapping[str, Mapping[str, float]]


def answer_pairs(asked: Connection, folder: str, weight: list[float], bias: float, threads: int) -> None:
    """Load CrossEncoder on the CPU, with mean pooling; answer each list of pairs with seconds and scores."""
    # Imported here, because the benchmark itself does not need them.
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.set_num_threads(threads)
    head = Dense(
        len(weight),
        1,
        activation_function=None,
        init_weight=torch.tensor([weight]),
        init_bias=torch.tensor([bias]),
        module_output_name="scores",
    )
    body = Transformer(folder, max_seq_length=FIRSTP_POSITIONS)
    model = CrossEncoder(modules=[body, Pooling(len(weight), "mean"), head], device="cpu")
    while True:
        pairs = asked.recv()
        started_s = time.perf_counter()
        scores = model.predict(pairs, show_progress_bar=False, activation_fn=torch.nn.Identity())
        asked.send((time.perf_counter() - started_s, scores.tolist()))


@contextmanager
def pair_scorer(source: str, threads: int) -> Iterator[tuple[Reader, Child]]:
    """Run CrossEncoder with a MaxP's weights until the block is left; it answers as `answer_pairs`.

    Raises: RankerError if the ranker cannot be opened; ContenderFailed if CrossEncoder cannot.
    """
    ranker = open_ranker(source, max_document_tokens=WHOLE_DOCUMENT)
    reader = ranker.reader
    head: Any = ranker.aggregator.head
    backbone: Any = ranker.encoder.backbone
    with TemporaryDirectory() as folder:
        backbone.save_pretrained(folder)
        reader.tokenizer.files.write(Path(folder))
        weights = (head.linear.weight[0].tolist(), head.linear.bias.item())
        environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
        with child("CrossEncoder", answer_pairs, folder, *weights, threads, **environment) as process:
            yield reader, process


@contextmanager
def cross_encoder(source: str, threads: int) -> Iterator[Mapping[str, Scorer]]:
    """Run CrossEncoder over all windows of a document, and over its first 512 tokens.

    Raises: as `pair_scorer`.
    """
    with pair_scorer(source, threads) as (reader, process):

        def first(call: Call) -> tuple[float, Sequence[float]]:
            seconds, scores = process.ask([(call.query, each) for each in call.texts])
            return seconds, scores

        def windows(call: Call) -> tuple[float, Sequence[float]]:
            cut = [
                [text[chunk.start : chunk.end] for chunk in reader.split(reader.read_document(text))]
                for text in call.texts
            ]
            seconds, scores = process.ask([(call.query, each) for some in cut for each in some])
            ends = np.cumsum([len(some) for some in cut])[:-1]
            return seconds, [float(each.max()) for each in np.split(np.array(scores), ends)]

        yield {"CrossEncoder, all windows": windows, "CrossEncoder, first 512 tokens": first}


def served(address: str, ranker: str, reads: Depth | None) -> Scorer:
    """Let a server's ranker score a call, at a depth."""

    def score(call: Call) -> tuple[float, Sequence[float]]:
        seconds, _, scores = answer_all(address, [call], 1, ranker=ranker, depth=reads)
        return seconds, scores[0]

    return score


def time_in_turns(
    contenders: Mapping[str, Scorer], calls: Sequence[Call], slow: Mapping[str, int], out: Path
) -> Times:
    """Let contenders take turns at each call, in the other order at every other one, and write their runs.

    `slow` has the number of calls of those that do not answer all. A first call, which does not count, warms
    up the others.
    """
    seconds: dict[str, dict[str, float]] = {name: {} for name in contenders}
    runs: dict[str, dict[str, list[ScoredDoc]]] = {name: {} for name in contenders}
    for name in contenders.keys() - slow.keys():
        contenders[name](calls[0])
    for number, call in enumerate(calls):
        names = [name for name in contenders if number < slow.get(name, len(calls))]
        for name in names if number % 2 else reversed(names):
            seconds[name][call.query_id], scores = contenders[name](call)
            ids = (each.doc_id for each in call.documents)
            runs[name][call.query_id] = rank(call.query_id, zip(ids, scores, strict=True))
        last = ", ".join(f"{name} {seconds[name][call.query_id]:.2f} s" for name in names)
        print(f"{number + 1} of {len(calls)}: {last}", file=sys.stderr, flush=True)
    for name, run in runs.items():
        write_run(out / f"{name.replace(' ', '-')}.trec", run, tag=name.replace(" ", "-"))
    return seconds


def table(times: Times) -> str:
    """Write each contender's median seconds, and the median and the range of its time over FirstP's."""
    rows = []
    for name, mine in times.items():
        ratios = [seconds / times[FIRSTP][query_id] for query_id, seconds in mine.items()]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([name, f"{len(mine)}", f"{statistics.median(mine.values()):.2f}", spread])
    return markdown_table(["", "calls", "s a call", "over FirstP's time"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all contenders; print the table, and write it, the times and the runs."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.depth.online", description=__doc__)
    add = parser.add_argument
    add("--set", type=Path, required=True, help="folder of queries.tsv, candidates.trec, collection.jsonl")
    add("--firstp", default="embedded:firstp", help="ranker of documents' first 512 positions (%(default)s)")
    add("--ranker", default="embedded:maxp", help="ranker to read with at every depth (%(default)s)")
    add("--depth", action="append", type=depth, help="as farrank rerank takes it (adaptive, and all)")
    add("--threads", type=at_least(1), default=2, help="of the server and of CrossEncoder (%(default)s)")
    add("--questions", type=at_least(1), default=20, help="of FirstP and adaptive depths (%(default)s)")
    add("--slow-questions", type=at_least(1), default=5, help="of CrossEncoder and of all (%(default)s)")
    add(
        "--serve",
        action="append",
        default=[],
        metavar="FLAG",
        help="of the server, e.g. --serve=--export=auto",
    )
    add("--out", type=Path, required=True, help="folder of the table, times.json and the runs")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    run, queries, collection = (
        given.set / name for name in ("candidates.trec", "queries.tsv", "collection.jsonl")
    )
    calls = read_candidates(run, queries, [collection], sys.maxsize).calls[: given.questions]
    depths: Sequence[Depth] = given.depth or ["adaptive", "all"]
    flags = [f"--ranker={FIRSTP}={given.firstp}", f"--set=rankers.{FIRSTP}.window={FIRSTP_WINDOW}"]
    flags += [f"--ranker=maxp={given.ranker}", f"--threads={given.threads}", "--log-level=warning"]
    # With a cache a question's second contender would have less to do.
    flags += ["--set=cache_bytes=0", *given.serve]
    with spawned_server(flags) as server, cross_encoder(given.ranker, given.threads) as peers:
        contenders = {FIRSTP: served(server.address, FIRSTP, None)}
        contenders |= {f"maxp {depth_text(each)}": served(server.address, "maxp", each) for each in depths}
        contenders |= peers
        slow = dict.fromkeys(("maxp all", *peers), given.slow_questions)
        times = time_in_turns(contenders, calls, slow, given.out)
    (given.out / "times.json").write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
    (given.out / "times.md").write_text(table(times) + "\n", encoding="utf-8")
    print(table(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())

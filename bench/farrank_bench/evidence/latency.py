"""The time that sentences add to a call, with and without them in turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from farrank_bench.report import Row, below
from farrank_cli.spawn import spawned_server
from farrank_client import Client, Document, Ranking, RerankOptions
from farrank_demo.questions import load_questions

# Sentences are wanted of the best DOCUMENTS. A search usually reranks more: CANDIDATES.
DOCUMENTS, CANDIDATES, WITHIN = 10, 100, 1.10
TIMEOUT_S = 600.0
WITH_SENTENCES: RerankOptions = {"evidence": "sentences"}


def added(index: Path, questions: int, rounds: int, export: str, *, sent: bool) -> list[Row]:
    """Rerank ten documents and a search's candidates, or ten `sent` as new texts, and by a cross-encoder."""
    asked = [each.text for each in load_questions()][:questions]
    arguments = ["--ranker", "late=embedded:maxsim", "--ranker", "cross=embedded:maxp", "--export", export]
    rows: list[Row] = []
    with (
        spawned_server([*arguments, "--index", f"pydoc={index}"]) as server,
        Client(server.address) as client,
    ):
        found = {
            question: client.search_and_rerank(question, k=DOCUMENTS, return_texts=True, timeout_s=TIMEOUT_S)
            for question in asked
        }
        texts = {question: [each.text or "" for each in its.results] for question, its in found.items()}
        named = {
            question: [Document(each.id, index="pydoc") for each in its.results]
            for question, its in found.items()
        }

        def search(question: str, options: RerankOptions) -> Ranking:
            return client.search_and_rerank(question, k=DOCUMENTS, timeout_s=TIMEOUT_S, **options)

        def search_many(question: str, options: RerankOptions) -> Ranking:
            return client.search_and_rerank(question, k=CANDIDATES, timeout_s=TIMEOUT_S, **options)

        def by_id(question: str, options: RerankOptions) -> Ranking:
            return client.rerank(question, named[question], timeout_s=TIMEOUT_S, **options)

        def new_texts(question: str, options: RerankOptions) -> Ranking:
            # Another beginning makes a text that no cache holds.
            fresh = [f"{time.perf_counter_ns()} {text}" for text in texts[question]]
            return client.rerank(question, fresh, timeout_s=TIMEOUT_S, **options)

        def cross(question: str, options: RerankOptions) -> Ranking:
            asked: RerankOptions = {**options, "ranker": "cross"}
            return client.rerank(question, texts[question], timeout_s=TIMEOUT_S, **asked)

        if sent:
            few = asked[: max(3, questions // 10)]
            rows += _compared("new texts, embedded:maxsim", new_texts, few, 1)
            rows += _compared("texts, cross-encoder", cross, few, rounds)
        else:
            rows += _compared(f"search of {CANDIDATES}, stored vectors", search_many, asked, rounds)
            rows += _compared(f"search of {DOCUMENTS}, stored vectors", search, asked, rounds)
            rows += _compared("by id, stored vectors", by_id, asked, rounds)
    return rows


def _compared(
    what: str, ask: Callable[[str, RerankOptions], Ranking], questions: Sequence[str], rounds: int
) -> list[Row]:
    ratios, plain_ms, own_ms = [], [], []
    ask(questions[0], WITH_SENTENCES)
    for number in range(rounds):
        times: dict[bool, list[float]] = {False: [], True: []}
        for place, question in enumerate(questions):
            for sentences in (False, True) if (number + place) % 2 else (True, False):
                started_s = time.perf_counter()
                ranking = ask(question, WITH_SENTENCES if sentences else {})
                times[sentences].append(time.perf_counter() - started_s)
                if sentences:
                    own_ms.append(ranking.timings.evidence_ns / 1e6)
        ratios.append(statistics.median(times[True]) / statistics.median(times[False]))
        plain_ms.append(statistics.median(times[False]) * 1e3)
    return [
        below(f"{what}: latency with sentences / without", ratios, WITHIN, ".3f"),
        Row(
            f"{what}: without, ms; choosing sentences, ms",
            f"{statistics.median(plain_ms):.1f}; {statistics.median(own_ms):.2f}",
        ),
    ]

"""`make demo`: serve the embedded corpus, rerank real questions, print the rankings and their quality."""

import argparse
import contextlib
import sys
import textwrap
import threading
import time
from pathlib import Path

from farrank_cli.spawn import spawned_server
from farrank_client import Client, Ranking
from farrank_demo.questions import (
    QRELS,
    QUESTIONS,
    Question,
    ask,
    figures,
    load_qrels,
    load_questions,
    runs,
)

SHOWN = 5
EXCERPTS = 3
EXCERPT_WIDTH = 100
EXCERPT_LINES = 4


def show_ranking(question: str, ranking: Ranking, answers: set[str]) -> None:
    """Print a ranking next to the first stage's, with the documents in `answers` marked."""
    first_stage = sorted(ranking.results, key=lambda result: result.index)
    marked = {each.id: each.id + (" *" if each.id in answers else "") for each in first_stage}
    print(f"\n── {question}")
    print(f"   {'Lucene (BM25)':<34}   {'reranked':<34}   (* judged to answer the question)")
    shown = zip(first_stage[:SHOWN], ranking.results, strict=False)
    for place, (before, after) in enumerate(shown, start=1):
        left, right = marked[before.id], f"{marked[after.id]}  {after.score:.3f}"
        print(f"{place:>2} {left:<34}   {right:<34}   was {after.index + 1}")
    for result in ranking.results[:EXCERPTS]:
        passage = result.deciding_passage
        if passage is not None and result.text is not None:
            print(f"   {result.id}, characters {passage.start} to {passage.end}, {passage.score:.3f}:")
            text = " ".join(passage.text_in(result.text).split())
            lines = textwrap.wrap(text, EXCERPT_WIDTH, max_lines=EXCERPT_LINES, placeholder=" …")
            print(textwrap.indent("\n".join(lines), "      "))
    timings, usage = ranking.timings, ranking.usage
    stages = {
        "first stage": timings.first_stage_ns,
        "reading": timings.tokenization_ns,
        "queue": timings.queue_ns,
        "encoding": timings.inference_ns,
        "scoring": timings.aggregation_ns,
        "in all": timings.total_ns,
    }
    print(
        "   time (stages overlap): " + ", ".join(f"{name} {ns / 1e6:.0f} ms" for name, ns in stages.items())
    )
    print(
        f"   {len(ranking.results)} documents ({usage.stored_documents} read from the index's stores), "
        f"{usage.chunks} chunks, "
        f"{usage.tokens} tokens, {sum(result.tokens_cut for result in ranking.results)} beyond the limit"
    )


# The embedded model with the vectors of texts and tokens, which the index stores.
RANKER = "embedded:maxsim"
SHOWN_QUESTIONS = 3
SHOWN_CANDIDATES = 30
JUDGED_CANDIDATES = 100
# An index without stored encodings makes the first calls encode the corpus.
TIMEOUT_S = 600.0
PROGRESS_EVERY = 25


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="farrank_demo", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the index of the embedded corpus")
    arguments = parser.parse_args()

    questions, qrels = load_questions(), load_qrels()
    started_s = time.monotonic()
    flags = ["--ranker", f"maxsim={RANKER}", "--export", "auto"]
    flags += ["--index", f"pydoc={arguments.index}", "--http-port", "0"]
    flags += ["--judgements", f"pydoc={QUESTIONS},{QRELS}"]
    with spawned_server(flags) as server, Client(server.address) as client:
        client.wait_until_healthy(TIMEOUT_S)
        print(f"server healthy after {time.monotonic() - started_s:.1f} s on {server.address}")
        print(f"the evidence in a browser: {server.http_url}/", flush=True)
        for ranker in client.rankers().rankers:
            runs_on = f"{ranker.device} {ranker.precision}"
            print(f"ranker {ranker.name}: {ranker.family} over {ranker.backbone}, {runs_on}")
        for question in questions[:SHOWN_QUESTIONS]:
            answers = {doc_id for doc_id, grade in qrels[question.query_id].items() if grade == 2}
            ranking = client.search_and_rerank(
                question.text, k=SHOWN_CANDIDATES, return_texts=True, timeout_s=TIMEOUT_S
            )
            show_ranking(question.text, ranking, answers)
        _show_figures(client, questions, qrels)
        stay_up(f"{server.http_url}/")


def stay_up(url: str) -> None:
    """At a terminal, keep serving the page until Ctrl-C."""
    print(f"\n── the evidence in a browser: {url}", flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(KeyboardInterrupt):
            print("   serving until Ctrl-C", flush=True)
            threading.Event().wait()


def _show_figures(client: Client, questions: list[Question], qrels: dict[str, dict[str, int]]) -> None:
    print(f"\n── {len(questions)} judged questions, {JUDGED_CANDIDATES} candidates each")
    started_s = time.monotonic()

    def progress(asked: int) -> None:
        if asked % PROGRESS_EVERY == 0 or asked == 1:
            print(f"   {asked} asked after {time.monotonic() - started_s:.0f} s", flush=True)

    rankings = ask(client, questions, JUDGED_CANDIDATES, timeout_s=TIMEOUT_S, progress=progress)
    elapsed_s = time.monotonic() - started_s
    for name, run in runs(rankings).items():
        print(
            f"   {name:<16}" + "   ".join(f"{measure} {value:.4f}" for measure, value in figures(qrels, run))
        )
    print(f"   asked one after another in {elapsed_s:.1f} s")


if __name__ == "__main__":
    main()

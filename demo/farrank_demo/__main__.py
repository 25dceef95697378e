"""`make demo`: serve the embedded corpus, rerank real questions, print what came and how good it is."""

import argparse
import time
from pathlib import Path

from farrank_cli.spawn import spawned_server
from farrank_client import Client, Ranking

from farrank_demo.evaluate import figures, runs
from farrank_demo.questions import Question, load_qrels, load_questions
from farrank_demo.show import show_ranking

SHOWN_QUESTIONS = 3
CANDIDATES = 100
TIMEOUT_S = 300.0


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="farrank_demo", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the index of the embedded corpus")
    arguments = parser.parse_args()

    questions, qrels = load_questions(), load_qrels()
    started_s = time.monotonic()
    with spawned_server(["--index", f"pydoc={arguments.index}"]) as server, Client(server.address) as client:
        client.wait_until_healthy(TIMEOUT_S)
        print(f"server healthy after {time.monotonic() - started_s:.1f} s on {server.address}")
        for ranker in client.rankers().rankers:
            print(
                f"ranker {ranker.name}: {ranker.family} over {ranker.backbone}, {ranker.device} {ranker.precision}"
            )
        for question in questions[:SHOWN_QUESTIONS]:
            answers = {doc_id for doc_id, grade in qrels[question.query_id].items() if grade == 2}
            show_ranking(question.text, _ask(client, question, return_texts=True), answers)
        _show_figures(client, questions, qrels)


def _ask(client: Client, question: Question, *, return_texts: bool = False) -> Ranking:
    return client.search_and_rerank(
        question.text, k=CANDIDATES, return_texts=return_texts, timeout_s=TIMEOUT_S
    )


def _show_figures(client: Client, questions: list[Question], qrels: dict[str, dict[str, int]]) -> None:
    print(f"\n── {len(questions)} judged questions, {CANDIDATES} candidates each")
    started_s = time.monotonic()
    rankings = {question.query_id: _ask(client, question) for question in questions}
    elapsed_s = time.monotonic() - started_s
    for name, run in runs(rankings).items():
        print(
            f"   {name:<16}" + "   ".join(f"{measure} {value:.4f}" for measure, value in figures(qrels, run))
        )
    print(f"   asked one after another in {elapsed_s:.1f} s")


if __name__ == "__main__":
    main()

"""Sentences as evidence: whether they have the answer, and the time that they take.

python -m farrank_bench.evidence --data squad --index .cache/pydoc-index

`best` and `three` compare ways to choose a sentence on whole articles of SQuAD. `latency` and `sent` let a
server answer the demo's questions with and without sentences, in turns. `context` packs each article into a
share of its tokens.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from farrank_bench.evidence.articles import read_articles
from farrank_bench.evidence.context import survival
from farrank_bench.evidence.latency import DOCUMENTS, added
from farrank_bench.evidence.ways import BI_ENCODER, compare
from farrank_bench.report import Command, Heading, Row
from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_rankers.evidence.choosing import CHUNKS

TITLES = {
    "best": "Sentences of the best chunk: answer in the first / among three, time a document",
    "three": f"Sentences of the {CHUNKS} best chunks: answer in the first / among three, time a document",
    "context": "A context of a share of the article's tokens: the answer is in it",
    "latency": f"Calls of {DOCUMENTS} documents of an index with stored vectors",
    "sent": f"Calls of {DOCUMENTS} texts",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the report."""
    command = Command("farrank_bench.evidence", __doc__)
    command.options.add_argument("--data", type=Path, help="folder of SQuAD as JSON lines")
    command.options.add_argument("--index", type=Path, help="the index of make demo")
    command.options.add_argument("--articles", type=int, default=14)
    command.options.add_argument("--questions", type=int, default=250)
    command.options.add_argument("--share", type=float, default=0.1, help="of the article's tokens; 0.1")
    command.options.add_argument("--ranker", default=BI_ENCODER, help=f"packs the context; {BI_ENCODER}")
    command.options.add_argument("--export", default="never", help="for the latency: never or auto; never")
    command.options.add_argument("--rounds", type=int, default=7)
    command.sections(TITLES, default=[*TITLES])
    given = command.parse(arguments)

    def ways(chunks: int) -> list[Row]:
        return compare(*read_articles(given.data, given.articles, given.questions), chunks)

    def context() -> list[Row]:
        texts, questions = read_articles(given.data, given.articles, given.questions)
        with (
            spawned_server(["--ranker", f"it={given.ranker}"]) as server,
            Client(server.address) as client,
        ):
            return survival(client, texts, questions, given.share)

    measures = {
        "best": lambda: ways(1),
        "three": lambda: ways(CHUNKS),
        "context": context,
        "latency": lambda: added(
            given.index, min(given.questions, 50), given.rounds, given.export, sent=False
        ),
        "sent": lambda: added(given.index, min(given.questions, 50), given.rounds, given.export, sent=True),
    }
    notes = (
        f"{given.questions} questions about {given.articles} whole articles of SQuAD's development set; the "
        "chunks are those of `embedded`, the cross-encoder is `embedded:maxp`, and the token vectors are "
        "those of `embedded:maxsim`"
    )
    heading = Heading("Sentences as evidence", notes)
    return command.report(heading, [(TITLES[name], measures[name]) for name in given.sections], given.out)


if __name__ == "__main__":
    sys.exit(main())

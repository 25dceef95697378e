"""The flags of `farrank loadtest accuracy`: what is compared, on which test set, and how."""

import argparse
from pathlib import Path

from farrank_cli.numbers import at_least, positive, share

EPILOG = """\
examples:
  rerank a run's candidates by two rankers and a model of two seeds, against firstp:
    farrank loadtest accuracy --candidates bm25.trec --queries topics.tsv --collection docs.jsonl.gz \\
      --qrels qrels.txt --ranker firstp --ranker maxp --ranker parade=parade-s1,parade-s2 \\
      --baseline firstp --out results/dl19
  evaluate runs that are there; three years count as one test set:
    farrank loadtest accuracy --evaluate-only --qrels 2019.txt --qrels 2020.txt --qrels 2021.txt \\
      --run bm25=2019.trec+2020.trec+2021.trec
  the papers' table of several test sets, from what was measured on each:
    farrank loadtest accuracy --combine results/dl/accuracy.json results/robust/accuracy.json
"""


def add_accuracy_flags(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_models(parser)
    _add_test_set(parser)
    _add_server(parser)
    _add_figures(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared, in this order")
    # Both land in one list: the table keeps the order in which models were named.
    group.add_argument(
        "--ranker",
        dest="models",
        action="append",
        default=[],
        type=lambda text: ("ranker", text),
        metavar="RANKER",
        help="a ranker of the server, or MODEL=R1,R2,…: the seeds of one model",
    )
    group.add_argument(
        "--run",
        dest="models",
        action="append",
        default=[],
        type=lambda text: ("run", text),
        metavar="MODEL=FILE",
        help="a run that is there; a comma divides seeds, a plus the parts of the test set",
    )
    group.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="[MODEL=]BASELINE",
        help="gains and tests are against it; without MODEL=, those of every model that names no other",
    )
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--evaluate-only", action="store_true", help="ask no server")
    mode.add_argument(
        "--combine", nargs="+", type=Path, metavar="JSON", help="make one table of several accuracy.json"
    )


def _add_test_set(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "test set", "Files are plain or .gz. --qrels, --candidates and --queries once for each part of it."
    )
    group.add_argument("--test-set", default="", metavar="NAME", help="what the table calls it")
    group.add_argument(
        "--qrels",
        action="append",
        default=[],
        metavar="FILE",
        help="TREC judgements; `doc-id-prefix`: relevant is what is called QUERYID_… (FarRelevant)",
    )
    group.add_argument(
        "--candidates", action="append", default=[], type=Path, metavar="RUN", help="TREC run to rerank"
    )
    group.add_argument("--index", metavar="NAME", help="rerank what the server finds in its index instead")
    group.add_argument(
        "--k", "--depth", type=at_least(1), metavar="K", help="rerank the first K of each query (all)"
    )
    group.add_argument(
        "--queries", action="append", default=[], type=Path, metavar="FILE", help="id<TAB>text, or .jsonl"
    )
    group.add_argument("--query-field", default="", metavar="KEY", help="of .jsonl, such as description")
    group.add_argument(
        "--collection",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="JSON lines with id, text and maybe title; may be repeated",
    )
    group.add_argument("--skip-missing", action="store_true", help="leave out documents that are not there")


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--target",
        default="localhost:50051",
        metavar="ADDRESS",
        help="HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL (%(default)s)",
    )
    group.add_argument("--allow-remote", action="store_true", help="ask a server that is not on this machine")
    group.add_argument(
        "--in-flight", type=at_least(1), default=4, metavar="N", help="queries at a time (%(default)d)"
    )
    group.add_argument(
        "--timeout-s", type=positive, default=600.0, metavar="S", help="of a query (%(default)g)"
    )


def _add_figures(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("figures")
    group.add_argument(
        "--measure",
        action="append",
        metavar="NAME",
        help="by ir_measures' names, such as AP(rel=2) (RR, nDCG@10, nDCG@20, P@10, P@20 and AP)",
    )
    group.add_argument(
        "--average-over",
        choices=("judged", "ranked"),
        default="judged",
        help="judged: a query without a ranking counts 0; ranked: those that all runs have (%(default)s)",
    )
    group.add_argument(
        "--alpha",
        type=share,
        default=0.05,
        metavar="P",
        help="level of the marks (%(default)g, as in the papers, but 0.01 for MS MARCO dev, FarRelevant)",
    )
    group.add_argument(
        "--resamples", type=at_least(1), default=9999, metavar="N", help="of randomisation (%(default)d)"
    )
    group.add_argument("--seed", type=int, default=0, help="of randomisation (%(default)d)")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="where runs, values and the table go")

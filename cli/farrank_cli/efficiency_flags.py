"""The flags of `farrank loadtest efficiency`: on which documents, how often, and what is known already."""

import argparse
from pathlib import Path

from farrank_cli.numbers import at_least, listed, positive
from farrank_loadtest.efficiency.lengths import LIMIT, PAPERS_LENGTHS

QUERY = "when was it built, and who were the people behind it"
EPILOG = """\
examples:
  all rankers of the papers, as published but for the run time:
    farrank loadtest efficiency --collection passages.jsonl.gz --precision bf16 --out results/efficiency
  two of them, one with its own weights and with what `farrank loadtest accuracy` found of both:
    farrank loadtest efficiency --collection passages.jsonl.gz --rankers maxp-bert,parade-attn-bert \\
      --trained maxp-bert=models/maxp --accuracy results/dl/accuracy.json:nDCG@10 --out results/two
  go on after an interruption, or draw anew with more figures of accuracy: the same flags, and --resume
"""


def add_efficiency_flags(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    # What a failed call is said to have failed at: there is no server to name.
    parser.set_defaults(target="efficiency")
    _add_rankers(parser)
    _add_call(parser)
    _add_server(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where plot and table go")
    parser.add_argument(
        "--resume", action="store_true", help="measure only what the folder lacks, under the same conditions"
    )


def _add_rankers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "rankers", "Those of the papers (farrank rankers --papers), each beside its FirstP."
    )
    group.add_argument(
        "--rankers",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,…",
        help="measure these alone (all)",
    )
    group.add_argument(
        "--trained",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="serve this artifact for the ranker instead of random weights at the paper's size",
    )
    group.add_argument(
        "--accuracy",
        action="append",
        default=[],
        metavar="FILE[:MEASURE]",
        help="accuracy.json of `farrank loadtest accuracy` for the gains (nDCG@10); several are averaged; "
        "rankers that it lacks are drawn hollow, at the papers' gain",
    )


def _add_call(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured: one call, again and again")
    group.add_argument(
        "--collection",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines of documents, or of passages with `article` and `pos`, which are joined",
    )
    group.add_argument(
        "--documents", type=at_least(1), default=3, metavar="N", help="of a call (%(default)d)"
    )
    group.add_argument(
        "--lengths",
        type=listed(_length),
        default=list(PAPERS_LENGTHS),
        metavar="N,…",
        help="tokens that documents are cut to, in turns "
        f"({','.join(map(str, PAPERS_LENGTHS))}: the means of the papers' collections, at most {LIMIT:,})",
    )
    group.add_argument("--query", default=QUERY, metavar="TEXT", help="(%(default)s)")
    group.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        metavar="N",
        help="calls of each ranker, in turns with its FirstP; medians count (%(default)d)",
    )
    group.add_argument(
        "--timeout-s", type=positive, default=1800.0, metavar="S", help="of a call (%(default)g)"
    )


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the servers that are started, one for each ranker, on loopback")
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda:0 (%(default)s)")
    group.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="of the encoders (%(default)s)"
    )
    group.add_argument(
        "--max-batch-tokens",
        type=at_least(LIMIT),
        default=2048,
        metavar="N",
        help="positions of a batch at most (%(default)d: the longest input fits)",
    )


def _length(text: str) -> int:
    length = at_least(1)(text)
    if length > LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is above {LIMIT}, the most that the papers' models read")
    return length

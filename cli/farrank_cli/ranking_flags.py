"""The flags that say how to rank and what to show, shared by `rerank` and `search`."""

import argparse
from typing import Any


def add_ranking_flags(parser: argparse.ArgumentParser) -> None:
    """Add the query, the options of the call and those of the output."""
    parser.add_argument("--query", required=True, metavar="Q", help="what is asked")
    parser.add_argument("--ranker", metavar="NAME", help="who scores (the server's default)")
    parser.add_argument("--top-n", type=count, metavar="N", help="show only the N best (all)")
    parser.add_argument(
        "--max-chunks", type=count, metavar="N", help="read at most N chunks of each document"
    )
    parser.add_argument("--chunks", action="store_true", help="show the score of every chunk")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")


def ranking_options(args: argparse.Namespace) -> dict[str, Any]:
    """Collect the options of the call, by the client's names."""
    return {
        "ranker": args.ranker,
        "top_n": args.top_n,
        "max_chunks": args.max_chunks,
        "return_chunk_scores": args.chunks,
    }


def count(text: str) -> int:
    """Read a flag that counts something."""
    value = int(text)
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {2**31 - 1}")
    return value

"""The flags that say what a load test sends, and the workload they make."""

import argparse
from pathlib import Path

from farrank_cli.exit_codes import CommandError
from farrank_cli.numbers import at_least
from farrank_loadtest.workloads import Workload
from farrank_loadtest.workloads.candidates import read_candidates
from farrank_loadtest.workloads.jsonl import read_jsonl
from farrank_loadtest.workloads.lengths import FORMS, parse_lengths
from farrank_loadtest.workloads.synthetic import Shape, make_up


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in groups by where the calls come from."""
    group = parser.add_argument_group("workload, one of")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--workload",
        type=Path,
        metavar="FILE",
        help='JSON lines of {"query": …, "documents": [{"id": …, "text": …}, …]}; '
        "ids without text are looked up in --collection",
    )
    source.add_argument(
        "--run", type=Path, metavar="FILE", help="a TREC run, with --queries and --collection"
    )
    source.add_argument("--synthetic", metavar="LENGTHS", help=f"made-up documents: {FORMS}")
    group.add_argument("--queries", type=Path, metavar="FILE", help="id<TAB>text, or .jsonl")
    group.add_argument(
        "--collection",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSON lines; may be repeated",
    )
    group.add_argument("--depth", type=at_least(1), default=100, metavar="N", help="of a run (%(default)d)")
    group.add_argument(
        "--calls", type=at_least(1), default=100, metavar="N", help="made up, then sent in turn (%(default)d)"
    )
    group.add_argument(
        "--documents", type=at_least(1), default=10, metavar="N", help="of a made-up call (%(default)d)"
    )
    group.add_argument(
        "--query-tokens", type=at_least(1), default=8, metavar="N", help="of a made-up call (%(default)d)"
    )


def read_workload(args: argparse.Namespace) -> Workload:
    """Read or make the calls.

    Raises: LoadtestError with file and line of what is wrong; CommandError for flags that do not go together.
    """
    if args.workload is not None:
        return read_jsonl(args.workload, args.collection)
    if args.run is not None:
        if args.queries is None or not args.collection:
            raise CommandError("--run: needs --queries and --collection")
        return read_candidates(args.run, args.queries, args.collection, args.depth)
    shape = Shape(args.calls, args.documents, parse_lengths(args.synthetic), args.query_tokens)
    return make_up(shape, args.seed)

"""`farrank rerank`: order documents from files or JSON lines by a query."""

import argparse
from pathlib import Path

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.documents import read_files, read_jsonl
from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.ranking_output import add_ranking_flags, print_ranking, ranking_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="documents, one a file, in UTF-8")
    parser.add_argument(
        "--jsonl",
        metavar="FILE",
        help='documents, one a line: {"id": …, "text": …} and maybe "title"; - reads stdin',
    )
    add_ranking_flags(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Read the documents, ask the server, print the ranking.

    Raises: CommandError if the documents cannot be read or the call fails.
    """
    if bool(args.files) == bool(args.jsonl):
        raise CommandError("rerank: give either files or --jsonl")
    documents = read_jsonl(args.jsonl) if args.jsonl else read_files(args.files)
    if not documents:
        raise CommandError(f"{args.jsonl}: there is no document in it")
    with connect(args) as client:
        ranking = client.rerank(args.query, documents, **ranking_options(args))
    print_ranking(ranking, lambda result: documents[result.index].text, as_json=args.json)
    return DONE

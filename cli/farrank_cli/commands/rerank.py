"""`farrank rerank`: order documents from files or JSON lines by a query, or rerank a whole TREC run."""

import argparse
from pathlib import Path

from farrank_cli.bulk_reranking import (
    add_bulk_flags,
    bulk_options,
    check_bulk_flags,
    opened_here,
    rerank_in_bulk,
)
from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import flag
from farrank_cli.ranking_output import add_ranking_flags, print_ranking, ranking_options
from farrank_client import Document
from farrank_trec import read_documents
from farrank_trec.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="one document per file, in UTF-8")
    flag(
        parser,
        "--jsonl FILE",
        'documents, one per line: {"id": …, "text": …}, optionally "title"; - reads stdin',
    )
    add_ranking_flags(parser, needs_query=False)
    add_bulk_flags(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Read the documents, call the server or a ranker in this process, print the ranking or write the run.

    Raises: CommandError naming the file (and line) that cannot be read, or if the call fails.
    """
    if check_bulk_flags(args):
        return rerank_in_bulk(args, bulk_options(args))
    if args.query is None:
        raise CommandError("rerank: give --query with documents, or --run with --queries")
    if args.index is not None:
        raise CommandError("--index: needs --run; for one query use farrank search")
    if bool(args.files) == bool(args.jsonl):
        raise CommandError("rerank: give either files or --jsonl")
    with told_in_a_line(InputError):
        if args.jsonl:
            documents = [Document(each.doc_id, each.text) for each in read_documents([args.jsonl])]
        else:
            documents = [Document(str(path), _text_of(path)) for path in args.files]
    if not documents:
        raise CommandError(f"{args.jsonl}: contains no documents")
    with opened_here(args) if args.local else connect(args) as client:
        ranking = client.rerank(args.query, documents, **ranking_options(args))
    print_ranking(ranking, args.query, lambda result: documents[result.index].text, as_json=args.json)
    return DONE


def _text_of(path: Path) -> str:
    try:
        # Read bytes: text mode would convert line ends and so shift offsets.
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: not UTF-8 (byte {error.start + 1})") from error

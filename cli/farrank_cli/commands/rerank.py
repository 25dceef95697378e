"""`farrank rerank`: order documents from files or JSON lines by a query."""

import argparse
from pathlib import Path

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
    add_ranking_flags(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Read the documents, call the server, print the ranking.

    Raises: CommandError naming the file (and line) that cannot be read, or if the call fails.
    """
    if bool(args.files) == bool(args.jsonl):
        raise CommandError("rerank: give either files or --jsonl")
    with told_in_a_line(InputError):
        if args.jsonl:
            documents = [Document(each.doc_id, each.text) for each in read_documents([args.jsonl])]
        else:
            documents = [Document(str(path), _text_of(path)) for path in args.files]
    if not documents:
        raise CommandError(f"{args.jsonl}: contains no documents")
    with connect(args) as client:
        ranking = client.rerank(args.query, documents, **ranking_options(args))
    print_ranking(ranking, args.query, lambda result: documents[result.index].text, as_json=args.json)
    return DONE


def _text_of(path: Path) -> str:
    try:
        # Read bytes: text mode would convert line ends and so shift offsets.
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: not UTF-8 (byte {error.start + 1})") from error

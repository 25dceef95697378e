"""`farrank rerank`: order documents from files or JSON lines by a query."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.ranking_output import add_ranking_flags, print_ranking, ranking_options
from farrank_client import Document
from farrank_trec import read_documents
from farrank_trec.errors import InputError


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
    documents = _read_jsonl(args.jsonl) if args.jsonl else _read_files(args.files)
    if not documents:
        raise CommandError(f"{args.jsonl}: there is no document in it")
    with connect(args) as client:
        ranking = client.rerank(args.query, documents, **ranking_options(args))
    print_ranking(ranking, lambda result: documents[result.index].text, as_json=args.json)
    return DONE


def _read_files(paths: Sequence[Path]) -> list[Document]:
    """Read each file as one document, named by its path.

    Raises: CommandError naming the file that cannot be read or is not UTF-8.
    """
    return [Document(str(path), _text_of(path)) for path in paths]


def _read_jsonl(source: str) -> list[Document]:
    """Read a document from each line of a file, or of stdin for `-`: the lines that `farrank index` takes.

    Raises: CommandError naming the file, the line and what is wrong with it.
    """
    try:
        return [Document(each.doc_id, each.text) for each in read_documents([source])]
    except InputError as error:
        raise CommandError(str(error)) from error


def _text_of(path: Path) -> str:
    try:
        # As bytes first: reading as text would turn line ends around, and offsets with them.
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: not UTF-8 (byte {error.start + 1})") from error

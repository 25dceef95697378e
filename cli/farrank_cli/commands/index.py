"""`farrank index`: build an index for the server's first stage."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from farrank_cli.exit_codes import DONE, REFUSED, CommandError
from farrank_cli.terminal import Progress
from farrank_server.errors import ConfigError
from farrank_server.indexing.collection import CollectionError, Document, read_jsonl
from farrank_server.indexing.index_builder import IndexingError, build_index
from farrank_server.indexing.pydoc_corpus import read_pydoc


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "jsonl",
        nargs="*",
        metavar="JSONL",
        help='documents, one a line: {"id": …, "text": …} and maybe "title"; plain or .gz; - reads stdin',
    )
    parser.add_argument("--pydoc", action="store_true", help="index Python's own reference documentation")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the index")
    parser.add_argument("--overwrite", action="store_true", help="replace an index that stands there")


def run(args: argparse.Namespace) -> int:
    """Read the collection, build the index, say what it holds.

    Raises: CommandError if the collection cannot be read or the index cannot be written.
    """
    if bool(args.jsonl) == args.pydoc:
        raise CommandError("index: give either JSONL files or --pydoc")
    progress = Progress("documents indexed")
    try:
        held = build_index(_documents(args), args.out, overwrite=args.overwrite, progress=progress)
    except FileExistsError as error:
        hint = "" if args.overwrite else " (--overwrite replaces an index)"
        raise CommandError(f"{error}{hint}") from error
    except (CollectionError, ConfigError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except IndexingError as error:
        raise CommandError(str(error), REFUSED) from error
    finally:
        progress.end()
    print(f"{args.out}: {held:,} documents")
    return DONE


def _documents(args: argparse.Namespace) -> Iterator[Document]:
    return read_pydoc() if args.pydoc else read_jsonl(args.jsonl)

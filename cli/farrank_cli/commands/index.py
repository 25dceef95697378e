"""`farrank index`: build an index for the server's first stage."""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from farrank_cli.exit_codes import DONE, REFUSED, CommandError
from farrank_cli.terminal import Progress
from farrank_server.errors import ConfigError
from farrank_server.indexing.index_builder import CollectionError, Document, IndexingError, build_index
from farrank_server.indexing.pydoc_corpus import read_pydoc
from farrank_trec import read_documents
from farrank_trec.errors import InputError

_FIELDS = ("id", "text", "title")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "jsonl",
        nargs="*",
        metavar="JSONL",
        help='documents, one a line: {"id": …, "text": …} and maybe "title"; plain or .gz; - reads stdin',
    )
    parser.add_argument("--pydoc", action="store_true", help="index Python's own reference documentation")
    parser.add_argument(
        "--fields",
        metavar="FIELD=KEY,…",
        help="keys of the JSON lines where they have other names: id=url,text=body,title=headline",
    )
    parser.add_argument(
        "--skip-bad", type=Path, metavar="FILE", help="leave out what cannot be indexed, and list it in FILE"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the index")
    parser.add_argument("--overwrite", action="store_true", help="replace an index that stands there")


def run(args: argparse.Namespace) -> int:
    """Read the collection, build the index, say what it holds.

    Raises: CommandError if the collection cannot be read or the index cannot be written.
    """
    if bool(args.jsonl) == args.pydoc:
        raise CommandError("index: give either JSONL files or --pydoc")
    fields = _fields(args.fields) if args.fields else None
    progress = Progress("documents indexed", None if args.pydoc else _lines_of(args.jsonl))
    left_out = 0
    with contextlib.ExitStack() as opened:
        listed = _open_list(args.skip_bad, opened)

        def leave_out(what: str) -> None:
            nonlocal left_out
            left_out += 1
            print(what, file=listed)

        try:
            held = build_index(
                read_pydoc() if args.pydoc else _documents(args, fields, leave_out),
                args.out,
                overwrite=args.overwrite,
                progress=progress,
                on_blank=lambda document: leave_out(f"document {document.doc_id!r}: there is no text in it"),
            )
        except FileExistsError as error:
            hint = "" if args.overwrite else " (--overwrite replaces an index)"
            raise CommandError(f"{error}{hint}") from error
        except (InputError, CollectionError, ConfigError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from error
        except IndexingError as error:
            raise CommandError(str(error), REFUSED) from error
        finally:
            progress.end()
    skipped = f"; {left_out:,} left out, see {args.skip_bad}" if args.skip_bad and left_out else ""
    print(f"{args.out}: {held:,} document{'' if held == 1 else 's'}{skipped}")
    return DONE


def _documents(
    args: argparse.Namespace, fields: dict[str, str] | None, leave_out: Callable[[str], None]
) -> Iterator[Document]:
    on_bad = (lambda error: leave_out(str(error))) if args.skip_bad else None
    for each in read_documents(args.jsonl, fields=fields, on_bad=on_bad):
        yield Document(each.doc_id, each.text)


def _fields(given: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given.split(",")]
    for field, equals, key in pairs:
        if field not in _FIELDS or not equals or not key:
            raise CommandError(f"--fields {given}: must be FIELD=KEY,…; a FIELD is {', '.join(_FIELDS)}")
    return {field: key for field, _, key in pairs}


def _open_list(path: Path | None, opened: contextlib.ExitStack) -> IO[str]:
    try:
        # Without --skip-bad nothing is listed: the log counts blank documents, and a bad line is an error.
        return opened.enter_context((path or Path(os.devnull)).open("w", encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--skip-bad {path}: {error.strerror}") from error


def _lines_of(paths: Sequence[str]) -> int | None:
    """Count the lines, which are about the documents; None where that takes reading a pipe or an archive."""
    if any(path == "-" or path.endswith(".gz") or not Path(path).is_file() for path in paths):
        return None
    lines = 0
    for path in paths:
        with open(path, "rb") as file:
            lines += sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    return lines or None

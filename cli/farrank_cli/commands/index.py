"""`farrank index`: build an index for the server's first stage."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, get_args

from farrank_cli.exit_codes import DONE, REFUSED, CommandError, told_in_a_line
from farrank_cli.export_limits import ExportLimits, add_export_limits
from farrank_cli.flags import DOCUMENT_FIELDS, count, document_fields, flag
from farrank_cli.terminal import Progress, counted
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.index_builder import IndexOptions, Store, build_index, change_index
from farrank_indexes.index_process import IndexingError
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_indexes.token_store import TokenStoreBuilder
from farrank_rankers.errors import RankerError
from farrank_rankers.files.open import open_reader
from farrank_runtimes.runtime import CodecName, Precision, PrecisionAbsent, RuntimeAbsent
from farrank_settings.errors import ConfigError
from farrank_trec import read_documents
from farrank_trec.errors import InputError
from farrank_trec.lines import check_id, json_object, numbered_lines
from farrank_trec.text_files import DocumentKeys

_OBJECT = re.compile(r'\s*\{\s*"')
# An export is calibrated and measured on this number of the index's first documents.
_EXPORTED_BY = 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "jsonl",
        nargs="*",
        metavar="JSONL",
        help='documents, one per line: {"id": …, "text": …}, optionally "title", "expansions", "impacts", '
        '"vector"; plain or .gz; - reads stdin',
    )
    add = partial(flag, parser)
    add("--pydoc", "index Python's own reference documentation")
    add("--fields FIELD=KEY,…", DOCUMENT_FIELDS, document_fields)
    add("--skip-bad FILE", "leave out documents that cannot be indexed, and list them in FILE", Path)
    add("--tokens RANKER", "store each document's tokens for this ranker; may be repeated", repeated=True)
    add(
        "--encode RANKER",
        "store the vectors of each document's chunks by this bi-encoder, or of its tokens by this "
        "multi-vector model; may be repeated",
        repeated=True,
    )
    add(
        "--codec CODEC",
        "how token vectors are stored: int8 (the default), int4 (half the size) or fp16 (twice the size)",
        choices=get_args(CodecName),
    )
    add(
        "--max-document-tokens N",
        "keep the first N tokens of each document, and their vectors; otherwise all that the ranker reads",
        count,
    )
    add(
        "--encode-precision PRECISION",
        "precision of --encode (that of `farrank serve`); quick: bf16 if the processor has it",
        choices=("quick", *get_args(Precision)),
    )
    add(
        "--export WHEN",
        "auto: encode with the ranker's fastest export that keeps its bound, as in farrank serve",
        choices=("auto", "never"),
        default="never",
    )
    add_export_limits(add)
    add("--out DIR", "folder of the index", Path, required=True)
    add("--overwrite", "replace an existing index")
    add("--resume", "continue where the same command was interrupted")
    add("--append", "add the documents to the existing index")
    add("--replace", "with --append: replace documents of the same id")
    add("--delete FILE", "delete the documents whose ids FILE lists, one per line or as JSON lines", Path)


def run(args: argparse.Namespace) -> int:
    """Read the collection, write the index, print its size.

    Raises: CommandError if the collection cannot be read or the index cannot be written.
    """
    changes = args.append or args.delete is not None
    if args.pydoc and changes:
        raise CommandError("index: --pydoc makes an index; --append and --delete change one")
    if (args.pydoc and args.jsonl) or not (args.jsonl or args.pydoc or args.delete):
        raise CommandError("index: give JSONL files or --pydoc, or --delete")
    _check_files(args)
    if changes and args.overwrite:
        raise CommandError("index: --overwrite makes a new index; --append and --delete change one")
    if args.jsonl and args.delete and not args.append:
        raise CommandError("index: --delete takes no JSONL files; --append adds them")
    if args.replace and not args.append:
        raise CommandError("index: --replace needs --append")
    progress = Progress("documents indexed")
    left_out = 0
    with (
        told_in_a_line(InputError, CollectionError, ConfigError, file=args.out),
        _open_list(args.skip_bad) as listed,
    ):

        def leave_out(what: object) -> None:
            nonlocal left_out
            left_out += 1
            print(what, file=listed)

        on_bad = leave_out if args.skip_bad else None
        read = read_documents(args.jsonl, fields=args.fields, on_bad=on_bad, with_ranking=True)
        pydoc = list(read_pydoc()) if args.pydoc else []
        documents = iter(pydoc or (IndexDocument(each.doc_id, each.text, each.ranking) for each in read))
        first = list(islice(documents, _EXPORTED_BY)) if args.export == "auto" else []
        progress.begin("documents indexed", len(pydoc) if args.pydoc else _lines_of(args.jsonl))
        options = IndexOptions(
            stores=_stores(args, [each.text for each in first]),
            resume=args.resume,
            progress=progress,
            on_blank=lambda document: leave_out(f"document {document.doc_id!r}: it has no text"),
        )
        documents = chain(first, documents)
        try:
            if changes:
                deleted = _ids_of(args.delete, args.fields) if args.delete else []
                held = change_index(
                    args.out, documents if args.append else None, deleted, options, replacing=args.replace
                )
            else:
                held = build_index(documents, args.out, options, overwrite=args.overwrite)
        except FileExistsError as error:
            hint = "" if args.overwrite or changes else " (--overwrite replaces an index)"
            raise CommandError(f"{error}{hint}") from error
        except IndexingError as error:
            raise CommandError(str(error), REFUSED) from error
        finally:
            progress.end()
    skipped = f"; {left_out:,} left out, see {args.skip_bad}" if args.skip_bad and left_out else ""
    print(f"{args.out}: {counted(held, 'document')}{skipped}")
    return DONE


def _check_files(args: argparse.Namespace) -> None:
    """Refuse to read standard input twice, or to overwrite an input. Raises: CommandError."""
    read = [*args.jsonl, *([str(args.delete)] if args.delete else [])]
    if read.count("-") > 1:
        raise CommandError("index: - is given more than once, but standard input can be read only once")
    listed: Path | None = args.skip_bad
    if listed is not None and listed.exists():
        for each in read:
            if Path(each).exists() and listed.samefile(each):
                raise CommandError(f"--skip-bad {listed}: is also an input, which it would overwrite")


def _stores(args: argparse.Namespace, texts: Sequence[str]) -> list[Store]:
    """Give the stores to write; rankers with the same tokenizer share one. `texts` measure an export.

    Raises: CommandError.
    """
    stores: dict[str, Store] = {}
    for source in args.tokens:
        with _named_flag("--tokens", source):
            reader = open_reader(source)
            if reader.document_spaces:
                raise CommandError(
                    f"index: --tokens {source}: stored tokens are of bare texts, but this ranker's prompt "
                    "has a space before a document, which becomes part of the first token"
                )
            store = TokenStoreBuilder(reader.tokenizer, args.max_document_tokens)
            stores[store.key] = store
    if args.encode:
        # Imported here: an index without vectors needs no torch.
        from farrank_indexes.chunk_encoder import encoding_store

        for source in args.encode:
            with _named_flag("--encode", source):
                served = source
                if args.export == "auto":
                    from farrank_cli.exporting import exported_source

                    limits = ExportLimits(args.export_minutes, args.export_memory)
                    served = exported_source(f"--encode {source}", source, limits, texts=texts)
                encodings = encoding_store(
                    served, args.encode_precision, args.max_document_tokens, args.codec
                )
            stores[encodings.key] = encodings
        if sum(store.vectors_version is not None for store in stores.values()) > 1:
            raise CommandError(
                "index: --encode names two bi-encoders; an index has one vector for each chunk"
            )
    else:
        for name, value in (
            ("--encode-precision", args.encode_precision),
            ("--codec", args.codec),
            ("--export", args.export == "auto"),
        ):
            if value:
                raise CommandError(f"index: {name} needs --encode")
    if args.max_document_tokens and not stores:
        raise CommandError("index: --max-document-tokens needs --tokens or --encode")
    return list(stores.values())


@contextmanager
def _named_flag(flag_name: str, source: str) -> Iterator[None]:
    try:
        yield
    except (RankerError, RuntimeAbsent, PrecisionAbsent, ConfigError, OSError) as error:
        raise CommandError(f"{flag_name} {source}: {error}") from error


def _ids_of(path: Path, fields: Mapping[str, str] | None) -> list[str]:
    """Read ids, one per line: bare, or in a collection's JSON line. Raises: InputError."""
    keys = DocumentKeys(fields)
    # An id may begin with a brace, as a GUID does; a JSON object begins with a name.
    return [
        check_id(
            where,
            "the id",
            keys.doc_id(where, json_object(where, line)) if _OBJECT.match(line) else line.strip(),
        )
        for where, line in numbered_lines(path)
    ]


def _open_list(path: Path | None) -> IO[str]:
    try:
        # Without --skip-bad there is no list: the log counts blank documents, and a bad line is an error.
        return (path or Path(os.devnull)).open("w", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--skip-bad {path}: {error.strerror}") from error


def _lines_of(paths: Sequence[str]) -> int | None:
    """Count the lines, roughly the number of documents; None if a file is a pipe or an archive."""
    if any(path == "-" or path.endswith(".gz") or not Path(path).is_file() for path in paths):
        return None
    lines = 0
    for path in paths:
        with open(path, "rb") as file:
            lines += sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    return lines or None

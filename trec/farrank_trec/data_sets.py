"""Data sets of ir_datasets in the place of files: `ir_datasets:beir/nfcorpus/test`.

A command that takes a collection, queries, judgements or a run takes that part of the data set. Only data on
this machine is read; `ir_datasets+download:ID` lets ir_datasets download what is missing.
Source: MacAvaney et al., "Simplified data wrangling with ir_datasets", SIGIR 2021.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from farrank_trec.errors import InputError

PREFIX = "ir_datasets:"
PREFIX_WITH_DOWNLOAD = "ir_datasets+download:"

_TEXTS = ("text", "body")


def is_data_set(source: Path | str) -> bool:
    """Tell whether a source is a data set instead of a file."""
    return str(source).startswith((PREFIX, PREFIX_WITH_DOWNLOAD))


def document_lines(source: Path | str) -> Iterator[tuple[str, int, bytes]]:
    """Yield each document as `raw_lines` yields a line of a collection, with `id`, `title` and `text`.

    Raises: InputError naming the source if there is no such data set, it has no documents, they are not on
        this machine or cannot be read, or ir_datasets is not installed.
    """
    offset = 0
    for number, document in _records(source, "docs"):
        fields = {"id": document.doc_id}
        text = next((getattr(document, name) for name in _TEXTS if hasattr(document, name)), None)
        if text is None or not hasattr(document, "title"):
            fields["text"] = document.default_text()
        else:
            fields |= {"title": document.title or "", "text": text}
        line = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        yield f"{source}:{number}", offset, line
        offset += len(line) + 1


def query_texts(source: Path | str, field: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each query's place, id and text: its `field`, such as description, or its usual text.

    Raises: InputError as `document_lines`, and if there is no such field.
    """
    for number, query in _records(source, "queries"):
        where = f"{source}:{number}"
        if field and not hasattr(query, field):
            raise InputError(f"{where}: {field!r} is missing (the query has {', '.join(query._fields)})")
        yield where, query.query_id, getattr(query, field) if field else query.default_text()


def judgement_rows(source: Path | str) -> Iterator[tuple[str, list[str]]]:
    """Yield each judgement's place and columns, as of a file. Raises: InputError as `document_lines`."""
    for number, each in _records(source, "qrels"):
        yield f"{source}:{number}", [each.query_id, "0", each.doc_id, str(each.relevance)]


def run_rows(source: Path | str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line of the data set's own run, as of a file. Raises: InputError as `document_lines`."""
    for number, each in _records(source, "scoreddocs"):
        yield f"{source}:{number}", [each.query_id, "Q0", each.doc_id, "1", repr(float(each.score)), "run"]


def _records(source: Path | str, part: str) -> Iterator[tuple[int, Any]]:
    try:
        import ir_datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{source}: needs pip install 'farrank[ir-datasets]' (no module {error.name!r})"
        ) from error
    name = str(source).partition(":")[2]
    try:
        data_set = ir_datasets.load(name)
    except KeyError as error:
        raise InputError(f"{source}: ir_datasets has no data set {name!r}") from error
    if not getattr(data_set, f"has_{part}")():
        held = [
            each for each in ("docs", "queries", "qrels", "scoreddocs") if getattr(data_set, f"has_{each}")()
        ]
        raise InputError(f"{source}: has no {part}, only {', '.join(held) or 'other parts'}")
    may_download = str(source).startswith(PREFIX_WITH_DOWNLOAD)
    records: Iterator[Any] | None = None
    number = 0
    while True:
        try:
            # Files are opened, and perhaps downloaded, here or when the first record is asked for.
            with _downloads(may_download):
                records = records or iter(getattr(data_set, f"{part}_iter")())
                record = next(records, None)
        except Exception as error:
            if _is_refusal(error):
                asked = f"{PREFIX_WITH_DOWNLOAD}{name}"
                raise InputError(
                    f"{source}: its {part} are not on this machine; {asked} downloads them"
                ) from error
            raise InputError(
                f"{source}: its {part} cannot be read: {' '.join(str(error).split())}"
            ) from error
        if record is None:
            return
        number += 1
        yield number, record


class _Refused(Exception):
    """A download that nobody asked for."""


_may_download = False


@contextmanager
def _downloads(allowed: bool) -> Iterator[None]:
    """Let ir_datasets download within the block, or refuse it."""
    global _may_download
    _guard()
    before, _may_download = _may_download, allowed
    try:
        yield
    finally:
        _may_download = before


@cache
def _guard() -> None:
    """Make ir_datasets' downloads ask first. It has no setting for that: it downloads whatever is missing."""
    from ir_datasets.util import download

    def guarded(stream: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def ask_first(self: Any) -> Any:
            if not _may_download:
                raise _Refused
            return stream(self)

        return ask_first

    for kind in (download.RequestsDownload, download.GoogleDriveDownload, download.GoogleCloudBucketStream):
        kind.stream = guarded(kind.stream)


def _is_refusal(error: BaseException) -> bool:
    """Tell whether a refused download is behind an error; several sources' errors are in its arguments."""
    behind: list[object] = [error]
    for each in behind:
        if isinstance(each, _Refused):
            return True
        if isinstance(each, BaseException):
            behind += [each.__cause__, each.__context__, *each.args]
        elif isinstance(each, list | tuple):
            behind += each
    return False

"""What a collection is made of, and how it is read from JSON lines.

A line is `{"id", "text"}` or `{"id", "title", "text"}`, plain or gzipped. A title goes in front of its text,
so that it is searched, reranked and shown with it.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True)
class Document:
    """One document to index; its text comes back from the index byte for byte."""

    doc_id: str
    text: str


class CollectionError(ValueError):
    """A collection cannot be indexed as it is: names the file, the line and what is wrong with it."""


STDIN = "-"


def read_jsonl(sources: Sequence[str | Path]) -> Iterator[Document]:
    """Read files (`.gz` unpacked) or standard input (`-`), one after the other, a line at a time.

    Blank lines are skipped and unknown keys ignored.

    Raises: CollectionError naming file and line; OSError if a file cannot be opened.
    """
    seen: dict[str, tuple[str, int]] = {}
    for source in sources:
        name = "standard input" if str(source) == STDIN else str(source)
        for number, line in enumerate(_lines(source, name), start=1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            document = _parse(line, where)
            if document.doc_id in seen:
                first_name, first_number = seen[document.doc_id]
                raise CollectionError(
                    f"{where}: the id {document.doc_id!r} stands already in {first_name}, line {first_number}"
                )
            seen[document.doc_id] = (name, number)
            yield document


def _lines(source: str | Path, name: str) -> Iterator[bytes]:
    if str(source) == STDIN:
        yield from sys.stdin.buffer
        return
    opened: BinaryIO
    with open(source, "rb") as opened:
        if str(source).endswith(".gz"):
            try:
                yield from gzip.GzipFile(fileobj=opened)
            except (EOFError, gzip.BadGzipFile) as exc:
                raise CollectionError(f"{name}: the gzip file is damaged: {exc}") from exc
        else:
            yield from opened


def _parse(line: bytes, where: str) -> Document:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as exc:
        raise CollectionError(f"{where}: the line is not UTF-8 (byte {exc.start + 1})") from exc
    except (ValueError, RecursionError) as exc:
        raise CollectionError(f"{where}: the line is not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise CollectionError(f"{where}: the line is not a JSON object")
    doc_id = _string(fields, "id", where)
    _check_id(doc_id, where)
    text = _string(fields, "text", where)
    if fields.get("title") is not None and (title := _string(fields, "title", where)):
        text = f"{title}\n\n{text}"
    return Document(doc_id, text)


def _string(fields: dict[str, Any], key: str, where: str) -> str:
    if key not in fields:
        raise CollectionError(f"{where}: {key!r} is missing")
    value = fields[key]
    if not isinstance(value, str):
        raise CollectionError(f"{where}: {key!r} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        # JSON can spell half a character as \ud800; no encoding of Unicode can hold it.
        raise CollectionError(f"{where}: {key!r} holds half of a surrogate pair") from exc
    return value


def _check_id(doc_id: str, where: str) -> None:
    if not doc_id:
        raise CollectionError(f"{where}: 'id' is empty")
    if any(char.isspace() or not char.isprintable() for char in doc_id):
        # Runs and qrels are files whose columns are divided by white space.
        raise CollectionError(f"{where}: 'id' {doc_id!r} holds white space or control characters")

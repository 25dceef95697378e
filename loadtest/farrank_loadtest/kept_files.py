"""Result files of a test: tables, CSV and JSON, with errors of one line."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

from farrank_loadtest.errors import LoadtestError
from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import read_fields
from farrank_trec.errors import InputError

T = TypeVar("T")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn OSError into LoadtestError."""
    try:
        yield
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error


def new_folder(folder: Path, *results: str) -> None:
    """Make a folder before anything is measured, so that hours of work do not end in an unwritable one.

    Raises: LoadtestError if it already holds one of the results, or cannot be made or written to.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if held := next((name for name in results if (folder / name).exists()), None):
            raise LoadtestError(f"{folder}: already holds {held}; name another folder")
        TemporaryFile(dir=folder).close()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a file, as `write_rows` does."""
    with path.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, rows)


def write_rows(file: IO[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the union of their columns, in the order of first appearance."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, aligned: bool = True) -> str:
    """Write rows under their heads; `aligned` pads columns to their widest cells, for a terminal."""
    widths = [max(map(len, column)) if aligned else 0 for column in zip(heads, *rows, strict=True)]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (heads, rule, *rows)
    )


def read_kept(path: Path, kind: type[T], written_by: str, **kinds: type) -> T:
    """Read a dataclass from the JSON that a command wrote. `kinds` gives the types of fields of type Any.

    Raises: InputError if the file is something else.
    """
    try:
        return read_fields(kind, json.loads(path.read_text("utf-8")), "the file", SourceError, kinds)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, SourceError) as error:
        raise InputError(f"{path}: not written by `{written_by}` ({error})") from error

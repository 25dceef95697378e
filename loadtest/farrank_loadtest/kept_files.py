"""What a test leaves in its folder: tables, and files written or refused in one line, and read back."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from farrank_loadtest.errors import LoadtestError
from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import read_fields
from farrank_trec.errors import InputError

T = TypeVar("T")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into LoadtestError."""
    try:
        yield
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error


def new_folder(folder: Path, *results: str) -> None:
    """Make a folder before anything is measured: hours must not end with nowhere to go.

    Raises: LoadtestError if it holds one of the results already, or cannot be made or written to.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if held := next((name for name in results if (folder / name).exists()), None):
            raise LoadtestError(f"{folder}: holds {held} already; name another folder")
        TemporaryFile(dir=folder).close()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under all the columns that any of them has, in the order in which they first come."""
    with path.open("w", encoding="utf-8", newline="") as file:
        columns = list(dict.fromkeys(column for row in rows for column in row))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, aligned: bool = True) -> str:
    """Write rows under their heads. Aligned columns, as wide as their widest cells, suit a terminal."""
    widths = [max(map(len, column)) if aligned else 0 for column in zip(heads, *rows, strict=True)]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (heads, rule, *rows)
    )


def read_kept(path: Path, kind: type[T], written_by: str, **kinds: type) -> T:
    """Read a dataclass from the JSON that a command wrote. `kinds` types the fields that may hold anything.

    Raises: InputError if the file is something else.
    """
    try:
        return read_fields(kind, json.loads(path.read_text("utf-8")), "the file", SourceError, kinds)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, SourceError) as error:
        raise InputError(f"{path}: not written by `{written_by}` ({error})") from error

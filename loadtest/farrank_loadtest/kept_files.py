"""What a test leaves in its folder: written or refused in one line, and read back as it was."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

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

"""The SHA-256 of the files that data was read from, to detect later changes."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from farrank_trec.data_sets import is_data_set
from farrank_trec.errors import InputError
from farrank_trec.lines import STDIN


def checksums(paths: Iterable[Path | str]) -> dict[str, str]:
    """Hash files, by their paths. Standard input and pipes cannot be read again and are left out.

    Data sets of ir_datasets are left out, too: ir_datasets checks them against digests of its own.
    Raises: InputError if a file cannot be read.
    """
    hashed = (path for path in map(str, paths) if not is_stream(path) and not is_data_set(path))
    return {path: _sha256(path) for path in hashed}


def is_stream(path: Path | str) -> bool:
    """Tell standard input and pipes, which can be read once, from files. A missing path is no stream."""
    return str(path) == STDIN or (os.path.exists(path) and not os.path.isfile(path))


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error

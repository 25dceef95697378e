"""SHA-256 of files, read in pieces: a server checks gigabytes of weights without holding them."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from farrank_rankers.errors import ExportError


def checksum(path: Path) -> str:
    """Give a file's SHA-256 in hexadecimal digits.

    Raises: OSError if it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Give the SHA-256 of files in a folder, by name.

    Raises: OSError if one cannot be read.
    """
    return {name: checksum(folder / name) for name in sorted(names)}


def verify(folder: Path, expected: Mapping[str, str]) -> None:
    """Hold files to the checksums that were taken when they were written.

    Raises: ExportError naming the file that is missing, unreadable or changed.
    """
    for name, value in expected.items():
        path = folder / name
        try:
            found = checksum(path)
        except FileNotFoundError as error:
            raise ExportError(f"{path} is missing") from error
        except OSError as error:
            raise ExportError(f"{path} cannot be read: {error.strerror}") from error
        if found != value:
            raise ExportError(
                f"{path} is damaged: its SHA-256 is {found}, not {value} as its manifest says; "
                "export the ranker again"
            )

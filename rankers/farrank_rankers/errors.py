"""The exceptions of rankers.

RankerError
├── SpecError (ValueError)      a field of a spec is missing, unknown or out of its limits
├── SourceError (ValueError)    a folder or hub name holds no ranker that can be opened
│   ├── WeightsError            a weights file is damaged, does not fit its model or cannot be written
│   └── ExportError             an export is missing, damaged, stale or cannot be made
├── AttentionAbsent             no fused attention runs here, or not the given one
└── ReadingStopped              the caller stopped the reading of a long text
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RankerError(Exception):
    """Base of every error that this package raises on purpose, except for bad arguments (ValueError)."""


class SpecError(RankerError, ValueError):
    """A spec's field is missing, unknown or out of its limits; the message names field, value and limit."""


class SourceError(RankerError, ValueError):
    """A folder or hub name holds no ranker that can be opened; the message names the file and what to do."""


class WeightsError(SourceError):
    """A weights file is damaged, does not fit its model or cannot be written; the message says where."""


class ExportError(SourceError):
    """An export is missing, damaged, stale or cannot be made; the message names the file and what to do."""


class AttentionAbsent(RankerError):
    """No fused attention runs here, or not the given one; the message says what is missing."""


class ReadingStopped(RankerError):
    """Raised between two pieces of a long text by a caller that needs it no longer."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix errors with the name of the file or folder, unless they have it."""
    try:
        yield
    except RankerError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error

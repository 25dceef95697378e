"""Lines of a text file, each with the place that an error names."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farrank_trec.errors import InputError


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `file:line` and the line without its end; blank lines are skipped, `.gz` is unpacked.

    Raises: InputError if the file cannot be opened, is damaged, or a line is not UTF-8.
    """
    number = 0
    try:
        # Lines end at \n alone: a collection's text may hold what Python's text mode takes for line ends.
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                if line.strip():
                    yield f"{path}:{number}", line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number}: not UTF-8 (byte {error.start + 1} of the line)") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}:{number + 1}: the gzip file is damaged: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def json_object(where: str, line: str) -> dict[str, Any]:
    """Read a line as one JSON object.

    Raises: InputError naming the place.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{where}: a JSON object is expected, not {type(fields).__name__}")
    return fields


def named_string(where: str, fields: dict[str, Any], names: tuple[str, ...]) -> str:
    """Take the string under the first of the names that the object has.

    Raises: InputError naming the place and the names that would do.
    """
    name = next((each for each in names if each in fields), None)
    expected = " or ".join(map(repr, names))
    if name is None:
        raise InputError(f"{where}: {expected} is missing (the object has {', '.join(map(repr, fields))})")
    value = fields[name]
    if not isinstance(value, str):
        raise InputError(f"{where}: {name!r} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # JSON can spell half a character as \ud800; no encoding of Unicode can hold it.
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair") from error
    return value


def check_id(where: str, name: str, value: str) -> str:
    """Let an id through that fits in a column of a run.

    Raises: InputError if it is empty or holds white space.
    """
    if not value or any(map(str.isspace, value)):
        raise InputError(f"{where}: {name} {value!r} must be neither empty nor hold white space")
    return value

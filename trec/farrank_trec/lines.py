"""Lines of text files, each with the place that an error names: `FILE:LINE`."""

import gzip
import json
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from farrank_trec.errors import InputError

STDIN = "-"


def raw_lines(source: Path | str) -> Iterator[tuple[str, int, bytes]]:
    """Yield `FILE:LINE`, the line's offset and its bytes, without blank lines.

    The offset counts bytes of the unpacked content. A file whose name ends in `.gz` is unpacked; `-` is
    standard input.
    Raises: InputError if the file cannot be opened, or its gzip is damaged.
    """
    name = "standard input" if str(source) == STDIN else str(source)
    number = offset = 0
    try:
        with _open(source) as opened:
            # Lines end only at \n: texts may hold other line ends of Python's text mode.
            for number, line in enumerate(opened, start=1):
                # Editors on Windows begin a file with a mark, which is no part of its first line.
                mark = len(BOM_UTF8) if number == 1 and line.startswith(BOM_UTF8) else 0
                if not line[mark:].isspace():
                    yield f"{name}:{number}", offset + mark, line[mark:].rstrip(b"\r\n")
                offset += len(line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{name}:{number + 1}: the gzip file is damaged: {error}") from error
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from error


def numbered_lines(source: Path | str) -> Iterator[tuple[str, str]]:
    """Yield `FILE:LINE` and the line's text.

    Raises: InputError as `raw_lines`, and if a line is not UTF-8.
    """
    for where, _, line in raw_lines(source):
        yield where, decoded(where, line)


def decoded(where: str, line: bytes) -> str:
    """Decode a line.

    Raises: InputError if it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start + 1} of the line)") from error


def json_object(where: str, line: str) -> dict[str, Any]:
    """Read a line as one JSON object.

    Raises: InputError naming the place.
    """
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        # The error's own text would count lines within this line.
        raise InputError(f"{where}: not JSON at character {error.pos + 1}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{where}: must be a JSON object, not {type(fields).__name__}")
    return fields


def named_string(where: str, fields: dict[str, Any], names: Iterable[str]) -> str:
    """Take the string under the first of the names that the object has.

    Raises: InputError naming the place and the allowed names.
    """
    names = tuple(names)
    name = next((each for each in names if each in fields), None)
    if name is None:
        has = f"has {', '.join(map(repr, fields))}" if fields else "is empty"
        raise InputError(f"{where}: {' or '.join(map(repr, names))} is missing (the object {has})")
    value = fields[name]
    if not isinstance(value, str):
        raise InputError(f"{where}: {name!r} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # JSON can spell half a character as \ud800, which no encoding of Unicode can represent.
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair") from error
    return value


def is_blank(text: str) -> bool:
    """Tell whether a text is empty or has only white space and invisible characters."""
    return not any(each.isprintable() and not each.isspace() for each in text)


def check_id(where: str, name: str, value: str) -> str:
    """Check that an id fits in a column of a run, and return it.

    Raises: InputError if it is empty or holds white space or control characters.
    """
    if not value:
        raise InputError(f"{where}: {name} is empty")
    if any(each.isspace() or not each.isprintable() for each in value):
        raise InputError(f"{where}: {name} {value!r} holds white space or control characters")
    return value


def _open(source: Path | str) -> AbstractContextManager[Iterable[bytes]]:
    if str(source) == STDIN:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(source, "rb") if str(source).endswith(".gz") else open(source, "rb")

"""JSON in and out, as all dialects read and write it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from farrank_server.errors import InvalidArgument

Body = TypeVar("Body")

JSON = "application/json"

to_json = msgspec.json.Encoder().encode


def decoded(body: bytes, kind: type[Body]) -> Body:
    """Read JSON as a type; fields that the type does not have are ignored.

    Raises: InvalidArgument that names the place.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").removeprefix(".") or "request"
        raise InvalidArgument(
            f"{field[:200]}: is not as it must be: {what[:1].lower()}{what[1:300]}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"request: is not JSON: {str(error)[:300]}") from None


def json_of(value: object, field: str) -> str:
    """Write a value that came in a field as JSON again, its characters as they are.

    Raises: InvalidArgument if it nests too deep: what could just be read may be too deep to be written.
    """
    try:
        return to_json(value).decode()
    except RecursionError:
        raise InvalidArgument(f"{field}: nests too deep") from None


@contextmanager
def saying_what_is_no_text() -> Iterator[None]:
    """Refuse half of a surrogate pair: JSON can say it, no text can hold it."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"request: holds {error.object[error.start : error.end]!r}, which is half of a character"
        ) from None

"""Reads and writes JSON for all dialects."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig
from farrank_server.service.fields import DOCUMENT_ROOM_BYTES, MAX_FIELDS, PAUSE_S, PIECE_BYTES, SMALL_BYTES

Body = TypeVar("Body")

JSON = "application/json"

to_json = msgspec.json.Encoder().encode


# The fields of all dialects that hold documents. Their entries are decoded one by one.
_LISTS = ("documents", "texts", "text_2")

# Values are counted in blocks of this size; other threads run between two blocks.
_BLOCK_BYTES = 2**20

# At most one key and one value lie between two commas, each in two quotation marks.
_QUOTES_OF_A_VALUE = 4

# The longest JSON form of one byte: \u0041.
_ESCAPED_BYTES = 6


def decoded(body: bytes, kind: type[Body], limits: LimitsConfig) -> Body:
    """Read JSON as a type; fields that the type does not have are ignored.

    Numbers and booleans may be written as texts ("2", "true"), as some clients do.
    The values of a large body are counted first, and the body is read in parts. Each part holds the
    interpreter's lock for some milliseconds; other threads run in the pauses. Do not call this on the event
    loop's thread.
    Raises: InvalidArgument that names the place.
    """
    if len(body) <= SMALL_BYTES:
        return _decoded(body, kind)
    check_values(body, limits)
    fields = _decoded(body, dict[str, msgspec.Raw])
    time.sleep(PAUSE_S)
    lists = {}
    for name, raw in fields.items():
        is_list = name in _LISTS and name in getattr(kind, "__struct_fields__", ())
        if is_list and bytes(memoryview(raw)[:1]) == b"[":
            lists[name] = raw
            fields[name] = msgspec.Raw(b"[]")
        else:
            check_length(name, raw, "max_document_bytes" if is_list else "max_query_bytes", limits)
    read = _decoded(to_json(fields), kind)
    for name, raw in lists.items():
        entries, read_bytes = [], PIECE_BYTES
        for number, entry in enumerate(_decoded(raw, list[msgspec.Raw])):
            if read_bytes >= PIECE_BYTES:
                read_bytes = 0
                time.sleep(PAUSE_S)
            read_bytes += len(memoryview(entry))
            check_length(f"{name}[{number}]", entry, "max_document_bytes", limits)
            # The type alone knows what an entry may be, so the entry is decoded as a list of one in it.
            alone = _decoded(b'{"%s":[%s]}' % (name.encode(), entry), kind, number)
            entries += getattr(alone, name)
        setattr(read, name, entries)
    return read


def check_values(body: bytes, limits: LimitsConfig) -> None:
    """Count the values of JSON in its bytes, up to the limit, before each becomes an object.

    Raises: InvalidArgument.
    """
    max_values = MAX_FIELDS * (limits.max_documents + 1)
    values = quotes = 0
    is_text, rest = False, b""
    for at in range(0, len(body), _BLOCK_BYTES):
        block = rest + body[at : at + _BLOCK_BYTES]
        # An escaped quotation mark does not end a text. Half of an escape is left for the next block.
        block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
        rest = b"\\" if block.endswith(b"\\") else b""
        quotes += block.count(b'"')
        if quotes <= _QUOTES_OF_A_VALUE * max_values:
            parts = block.split(b'"')
            outside = b"".join(parts[is_text::2])
            is_text ^= len(parts) % 2 == 0
            values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if values > max_values or quotes > _QUOTES_OF_A_VALUE * max_values:
            raise InvalidArgument(
                f"request: has more than {max_values} values; the limit is {MAX_FIELDS} for each of "
                f"max_documents {limits.max_documents}, and {MAX_FIELDS} more"
            )


def check_length(field: str, raw: msgspec.Raw, limit: str, limits: LimitsConfig) -> None:
    """Refuse a value, before it is decoded, that is too long even if each escape stands for one byte."""
    written = memoryview(raw)
    if len(written) <= SMALL_BYTES:
        return
    min_bytes = len(written) - (_ESCAPED_BYTES - 1) * bytes(written).count(b"\\")
    max_bytes = getattr(limits, limit) + DOCUMENT_ROOM_BYTES
    if min_bytes > max_bytes:
        raise InvalidArgument(
            f"{field[:200]}: has {min_bytes} bytes or more; {limit} {getattr(limits, limit)} allows "
            f"at most {max_bytes}"
        )


def _decoded(body: bytes | msgspec.Raw, kind: type[Body], number: int = 0) -> Body:
    """Read JSON as a type. `number` is the index that errors give for the only entry of a list."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").removeprefix(".") or "request"
        if number:
            field = field.replace("[0]", f"[{number}]", 1)
        raise InvalidArgument(f"{field[:200]}: is invalid: {what[:1].lower()}{what[1:300]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"request: is not JSON: {str(error)[:300]}") from None


def json_of(value: object, field: str) -> str:
    """Write a value that was read from a field as JSON again, without escaping its characters.

    Raises: InvalidArgument if it is nested too deeply: a value that could be read may be too deep to write.
    """
    try:
        return to_json(value).decode()
    except RecursionError:
        raise InvalidArgument(f"{field}: is nested too deeply") from None


@contextmanager
def refuse_surrogates() -> Iterator[None]:
    """Refuse half of a surrogate pair: JSON can express it, but a text cannot hold it."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"request: holds {error.object[error.start : error.end]!r}, which is half of a surrogate pair"
        ) from None

"""Checks a request's fields in its bytes, before a parser makes an object of each.

An empty document has two bytes, and a parser makes about a hundred of it: 64 MB become 3 GB, in seconds
during which nothing else runs. So a large message is walked first, field by field, no further than the limits
allow, and then parsed in pieces. A message is the sequence of its fields, so pieces of it that are merged one
after the other into one message give the same result.

Source: https://protobuf.dev/programming-guides/encoding
"""

import asyncio
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig

Parsed = TypeVar("Parsed", bound=Message)

# Limit on a message's fields other than documents: enough for this contract, with repetitions and additions.
MAX_FIELDS = 32

# The parser stays below a few milliseconds for messages up to this size.
SMALL_BYTES = 65_536

# Room for a document's fields other than its text.
DOCUMENT_ROOM_BYTES = 65_536

# About this much is parsed without a pause, or one larger document. It takes a few milliseconds.
PIECE_BYTES = 2 * 2**20

# Pause for other tasks of the event loop between two pieces. One turn of the loop would not do: a small call
# takes several turns, and would wait for a piece in each.
PAUSE_S = 0.002


class LongWork:
    """Paces the work of large requests on the event loop: `PIECE_BYTES` for all together, then a pause.

    Each request alone would pause often enough, but a hundred at once would run one after the other without a
    pause.
    """

    def __init__(self) -> None:
        self._left = PIECE_BYTES
        self._lock = asyncio.Lock()
        self._refilling: asyncio.TimerHandle | None = None

    async def take_turn(self, size: int) -> None:
        """Wait until this request may work on `size` bytes. Requests take turns in the order of arrival."""
        if not self._lock.locked() and self._left >= min(size, PIECE_BYTES):
            self._left -= size
            if self._refilling is None:
                self._refilling = asyncio.get_running_loop().call_later(PAUSE_S, self._refill)
            return
        await self.pause()
        self._left -= size

    async def pause(self) -> None:
        """Leave the event loop to others after a piece; requests that pause continue one after the other."""
        async with self._lock:
            await asyncio.sleep(PAUSE_S)
            self._left = PIECE_BYTES

    def _refill(self) -> None:
        self._left = PIECE_BYTES
        self._refilling = None


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, LongWork] = WeakKeyDictionary()


def long_work() -> LongWork:
    """Return the pacing of large requests on the running event loop."""
    return _OF_LOOP.setdefault(asyncio.get_running_loop(), LongWork())


_BYTES_OF = {"query": "max_query_bytes", "text": "max_document_bytes"}

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5

# A 64-bit number has 7 bits in each byte.
_LONGEST_VARINT = 10


def check_fields(data: bytes, kind: type[Message], limits: LimitsConfig) -> list[int]:
    """Count the fields of a message in its bytes; return where it may be cut into pieces of some MB.

    This takes less than a microsecond a field, for at most as many fields as are allowed. The first cut is 0,
    the last is the end. Groups, which proto3 does not have, are refused.
    Raises: InvalidArgument naming the field.
    """
    cuts = [0]
    try:
        for begin in _checked(data, 0, len(data), cast(Descriptor, kind.DESCRIPTOR), "", limits):
            if begin - cuts[-1] >= PIECE_BYTES:
                cuts.append(begin)
    except (IndexError, _MalformedError):
        raise no_message("its bytes are invalid or contain a group") from None
    return [*cuts, len(data)]


def pieces(data: bytes, kind: type[Message], limits: LimitsConfig) -> Iterator[bytes]:
    """Cut a message into pieces that may be merged one after the other; a small message is one piece.

    Raises: InvalidArgument, before the first piece, if the message exceeds the limits.
    """
    if len(data) < SMALL_BYTES:
        yield data
        return
    cuts = check_fields(data, kind, limits)
    for begin, end in pairwise(cuts):
        yield data[begin:end]


def parsed(kind: type[Parsed], data: bytes, limits: LimitsConfig) -> Parsed:
    """Parse a message, with pauses if it is large: parse large ones on another thread than the event loop's.

    Raises: InvalidArgument naming the field, or saying that the bytes are not such a message.
    """
    message = kind()
    for number, piece in enumerate(pieces(data, kind, limits)):
        if number:
            time.sleep(PAUSE_S)
        _merge(message, piece)
    return message


async def parse_in_pieces(kind: type[Parsed], data: bytes, limits: LimitsConfig) -> Parsed:
    """Parse a message on the event loop, which runs other tasks between pieces.

    Raises: as `parsed`.
    """
    message = kind()
    if len(data) >= SMALL_BYTES:
        # The first turn also covers counting the fields.
        await long_work().take_turn(min(len(data), PIECE_BYTES))
    for number, piece in enumerate(pieces(data, kind, limits)):
        if number:
            await long_work().take_turn(len(piece))
        _merge(message, piece)
    return message


def no_message(why: object) -> InvalidArgument:
    """The error for bytes that are not a message of their method."""
    return InvalidArgument(f"request: is not a valid message of this method: {why}")


def _merge(message: Message, piece: bytes) -> None:
    try:
        message.MergeFromString(piece)
    except DecodeError as error:
        raise no_message(error) from None


class _MalformedError(Exception):
    """The bytes are not a message."""


class _Field(NamedTuple):
    """A field as the walk needs it: with its message type if it has one, and the limit on a text's bytes."""

    name: str
    is_repeated: bool
    within: Descriptor | None
    limit: str | None


@cache
def _known(message: Descriptor) -> dict[int, _Field]:
    """The fields of a message by number. Looking them up in the descriptor would take most of the time."""
    return {
        each.number: _Field(each.name, each.is_repeated, each.message_type, _BYTES_OF.get(each.name))
        for each in message.fields
    }


def _checked(
    data: bytes, at: int, end: int, message: Descriptor, name: str, limits: LimitsConfig
) -> Iterator[int]:
    """Check the fields of a message in a range of the data; yield where each begins."""
    known = _known(message)
    entries = others = 0
    for number, begin, first, after in _fields(data, at, end):
        yield begin
        field = known.get(number)
        if field is None or not field.is_repeated:
            others += 1
            if others > MAX_FIELDS:
                others_than = f" other than its {entries} documents" if entries else ""
                raise InvalidArgument(
                    f"{name or 'request'}: has more than {MAX_FIELDS} fields{others_than}; the limit is "
                    f"{MAX_FIELDS}"
                )
        else:
            entries += 1
            if entries > limits.max_documents:
                limit = limits.max_documents
                raise InvalidArgument(
                    f"{field.name}: has more than {limit} entries; max_documents is {limit}"
                )
        if field is None:
            continue
        if field.limit:
            limit = getattr(limits, field.limit)
            if after - first > limit:
                dot = "." if name else ""
                raise InvalidArgument(
                    f"{name}{dot}{field.name}: has {after - first} bytes; {field.limit} is {limit}"
                )
        elif field.within is not None:
            its = f"{field.name}[{entries - 1}]" if field.is_repeated else field.name
            limit = limits.max_document_bytes + DOCUMENT_ROOM_BYTES
            if after - first > limit:
                raise InvalidArgument(
                    f"{its}: has {after - first} bytes; max_document_bytes {limits.max_document_bytes} "
                    f"allows at most {limit}"
                )
            for _ in _checked(data, first, after, field.within, its, limits):
                pass


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields in a range: number, where the field begins, and where its value begins and ends.

    The number is 0 if the value is neither text nor message: such fields are counted without a look inside.
    Raises: _MalformedError; IndexError if the data end in the middle of a field.
    """
    while at < end:
        begin = at
        tag = data[at]
        at += 1
        if tag >= 128:
            tag, at = _varint(data, begin)
        kind, number = tag & 7, tag >> 3
        first = at
        if kind == _DELIMITED:
            length = data[at]
            at += 1
            if length >= 128:
                length, at = _varint(data, first)
            first = at
            at += length
        elif kind == _VARINT:
            while data[at] >= 128:
                at += 1
                if at - first == _LONGEST_VARINT:
                    raise _MalformedError
            at += 1
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            raise _MalformedError
        if at > end or not number:
            raise _MalformedError
        yield number if kind == _DELIMITED else 0, begin, first, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number; return it and the position after it."""
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise _MalformedError

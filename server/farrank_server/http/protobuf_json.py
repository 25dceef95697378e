"""Reads the contract's messages from protobuf's JSON mapping, without a pass over each character of a text.

`json_format` looks at every character: 50 ms for 1.4 MB. Here msgspec reads messages and texts by the
descriptor, and `json_format` reads every other value. Nothing is dropped: a field that the message does not
have is refused, and so is a field that occurs twice.

Source: https://protobuf.dev/programming-guides/json
"""

import time
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.json_bodies import check_length, check_values, refuse_surrogates
from farrank_server.service.fields import PAUSE_S, PIECE_BYTES, SMALL_BYTES

Value = TypeVar("Value")
Read = TypeVar("Read", bound=Message)


def message_of_json(body: bytes, kind: type[Read], limits: LimitsConfig) -> Read:
    """Read a message from JSON. A large body is read in parts, as `json_bodies.decoded` does.

    Raises: InvalidArgument that names the field by its whole path (`documents[3].txt`).
    """
    is_large = len(body) > SMALL_BYTES
    if is_large:
        check_values(body, limits)
    message = kind()
    with refuse_surrogates():
        _read(msgspec.Raw(body), message, "", limits, is_large)
    return message


class _Name:
    """A key of an object. No two keys are equal, so that a dict of them keeps duplicate names."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_pairs = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=lambda kind, text: kind(text))
_entries = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str | None)
_anything = msgspec.json.Decoder(Any)


def _read(value: msgspec.Raw, message: Message, path: str, limits: LimitsConfig, pauses: bool) -> None:
    """Fill a message from an object. With `pauses`, other threads run after each few MB of entries."""
    kind = cast(Descriptor, message.DESCRIPTOR)
    known = _fields(kind)
    seen: set[str] = set()
    for name, inner in _decoded(_pairs, value, path).items():
        place = f"{path}.{name.text[:100]}" if path else name.text[:100]
        field = known.get(name.text)
        if field is None:
            has = ", ".join(each.json_name for each in kind.fields)
            raise InvalidArgument(f"{place}: is not a field of {kind.name}; its fields are {has or 'none'}")
        if field.name in seen:
            raise InvalidArgument(f"{place}: occurs twice")
        seen.add(field.name)
        if not path and not field.is_repeated:
            check_length(place, inner, "max_query_bytes", limits)
        if not _is_ours(field):
            _convert(field, inner, message, place)
        elif field.is_repeated:
            entries = getattr(message, field.name)
            for number, (entry, its) in enumerate(_each(inner, place, limits, pauses)):
                filled = entries.add()
                # The request is refused for its number of entries only after all other checks.
                if number < limits.max_documents:
                    _read(entry, filled, its, limits, pauses)
        elif bytes(memoryview(inner)) == b"null":
            continue
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _read(inner, getattr(message, field.name), place, limits, pauses)
        else:
            setattr(message, field.name, _decoded(_text, inner, place))


@cache
def _fields(message: Descriptor) -> dict[str, FieldDescriptor]:
    """The fields of a message by both of their names."""
    return {name: field for field in message.fields for name in (field.json_name, field.name)}


def _is_ours(field: FieldDescriptor) -> bool:
    """Whether a field is read here: messages of the contract, single or repeated, and single texts."""
    inner = field.message_type
    if inner is None:
        return field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated
    return not inner.GetOptions().map_entry and inner.file.package != "google.protobuf"


def _each(
    value: msgspec.Raw, path: str, limits: LimitsConfig, pauses: bool
) -> Iterator[tuple[msgspec.Raw, str]]:
    """The entries of a list with their paths."""
    if bytes(memoryview(value)[:4]) == b"null":
        return
    entries = _decoded(_entries, value, path)
    if pauses and len(entries) > limits.max_documents:
        max_documents = limits.max_documents
        raise InvalidArgument(
            f"{path}: has more than {max_documents} entries; max_documents is {max_documents}"
        )
    read_bytes = 0
    for number, entry in enumerate(entries):
        if pauses and read_bytes >= PIECE_BYTES:
            read_bytes = 0
            time.sleep(PAUSE_S)
        read_bytes += len(memoryview(entry))
        its = f"{path}[{number}]"
        check_length(its, entry, "max_document_bytes", limits)
        yield entry, its


def _convert(field: FieldDescriptor, value: msgspec.Raw, message: Message, path: str) -> None:
    """Read a value by protobuf's mapping: numbers may come as text, enum values as name or number."""
    try:
        json_format.ParseDict({field.json_name: _decoded(_anything, value, path)}, message)
    except (json_format.ParseError, ValueError) as error:
        # The library's message may contain the whole value.
        raise InvalidArgument(f"{path}: is invalid: {str(error)[:300]}") from None


def _decoded(decoder: "msgspec.json.Decoder[Value]", value: msgspec.Raw, path: str) -> Value:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        why = str(error)
        raise InvalidArgument(f"{path or 'request'}: is invalid: {why[:1].lower()}{why[1:300]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"request: is not JSON: {str(error)[:300]}") from None

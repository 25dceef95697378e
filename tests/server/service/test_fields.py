"""Fields are counted in the bytes as the parser reads them, and the pieces of a message add up to it."""

import asyncio
from itertools import pairwise

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig
from farrank_server.service import fields
from farrank_server.service.fields import (
    MAX_FIELDS,
    PAUSE_S,
    PIECE_BYTES,
    check_fields,
    long_work,
    parse_in_pieces,
    parsed,
)

LIMITS = LimitsConfig(max_documents=3, max_document_bytes=100_000, max_query_bytes=50_000)
WIDE = LimitsConfig(max_documents=10_000)
REQUEST = pb.RerankRequest


def varint(value: int, longer: int = 0) -> bytes:
    """Write a number with a number of superfluous bytes."""
    written = bytearray()
    while value > 127 or longer:
        longer -= value <= 127
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def delimited(number: int, value: bytes, longer: int = 0) -> bytes:
    return varint(number << 3 | 2) + varint(len(value), longer) + value


numbers = st.integers(1, 6) | st.integers(1, 2**29 - 1)
plain = st.one_of(
    st.builds(
        lambda n, v, more: varint(n << 3) + varint(v, more), numbers, st.integers(0, 2**40), st.integers(0, 3)
    ),
    st.builds(lambda n, v: varint(n << 3 | 1) + v, numbers, st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: varint(n << 3 | 5) + v, numbers, st.binary(min_size=4, max_size=4)),
    st.builds(delimited, numbers, st.text(max_size=200).map(str.encode), st.integers(0, 2)),
)
bodies = st.lists(plain, max_size=8).map(b"".join)
within = st.builds(delimited, st.sampled_from((2, 3)), bodies, st.integers(0, 2))
messages = st.lists(within | plain, max_size=20).map(b"".join)


def documents_in(data: bytes) -> int | None:
    """Return how many documents the parser finds, or None if it finds no message."""
    try:
        return len(pb.RerankRequest.FromString(data).documents)
    except DecodeError:
        return None


@given(messages)
def test_accepted_messages_are_counted_as_by_the_parser(data: bytes) -> None:
    count = documents_in(data)
    if count is None:
        return
    check_fields(data, REQUEST, LimitsConfig(max_documents=max(1, count)))
    if count > 1:
        with pytest.raises(
            InvalidArgument, match=f"^documents: has more than {count - 1} entries; max_documents is"
        ):
            check_fields(data, REQUEST, LimitsConfig(max_documents=count - 1))


@given(messages, st.data())
def test_damaged_bytes_never_have_more_documents_than_were_counted(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for at in draw.draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=4)) if data else ():
        damaged[at] = draw.draw(st.integers(0, 255))
    damaged = damaged[: draw.draw(st.integers(0, len(damaged)))]
    try:
        check_fields(bytes(damaged), REQUEST, LIMITS)
    except InvalidArgument:
        return
    assert (documents_in(bytes(damaged)) or 0) <= LIMITS.max_documents


@given(messages, st.integers(1, 50))
async def test_pieces_of_a_message_are_the_message(data: bytes, piece: int) -> None:
    count = documents_in(data)
    if count is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "SMALL_BYTES", 0)
        patch.setattr(fields, "PIECE_BYTES", piece)
        cuts = check_fields(data, REQUEST, WIDE)
        assert cuts[-1] == len(data)
        assert all(end - begin >= piece for begin, end in pairwise(cuts[:-1]))
        whole = pb.RerankRequest.FromString(data)
        assert parsed(pb.RerankRequest, data, WIDE) == whole
        assert await parse_in_pieces(pb.RerankRequest, data, WIDE) == whole


# Larger than the messages that are parsed without a check.
PADDING = delimited(15, bytes(fields.SMALL_BYTES))
QUERY = delimited(1, b"q")


REFUSED = [
    (QUERY + b"\x12\x00" * 4, "documents: has more than 3 entries; max_documents is 3"),
    (QUERY + b"\x12\x00" * 10_000_000, "documents: has more than 3 entries; max_documents is 3"),
    (b"\x0a\x00" * MAX_FIELDS, "request: has more than 32 fields; the limit is 32"),
    (
        b"\x12\x00" + b"\x7a\x00" * 32,
        "request: has more than 32 fields other than its 1 documents; the limit is 32",
    ),
    (b"\x1a\x42" + b"\x28\x01" * 33, "options: has more than 32 fields; the limit is 32"),
    (b"\x12\x00\x12\x42" + b"\x0a\x00" * 33, "documents[1]: has more than 32 fields; the limit is 32"),
    (delimited(1, bytes(50_001)), "query: has 50001 bytes; max_query_bytes is 50000"),
    (
        b"\x12\x00" + delimited(2, delimited(2, bytes(100_001))),
        "documents[1].text: has 100001 bytes; max_document_bytes is 100000",
    ),
    (
        delimited(2, delimited(1, bytes(165_533))),
        "documents[0]: has 165537 bytes; max_document_bytes 100000 allows at most 165536",
    ),
    (b"\x7b\x7c", "request: is not a valid message of this method: its bytes are invalid or contain a group"),
    (b"\x00\x00", "request: is not a valid message of this method: its bytes are invalid"),
    (b"\x0a" + b"\xff" * 12, "request: is not a valid message of this method: its bytes are invalid"),
    (b"\x78" + b"\xff" * 12, "request: is not a valid message of this method: its bytes are invalid"),
    (
        delimited(2, b"\x12\x02") + b"xx",
        "request: is not a valid message of this method: its bytes are invalid",
    ),
    (b"\x12", "request: is not a valid message of this method: its bytes are invalid"),
]


@pytest.mark.parametrize(("data", "message"), [pytest.param(*each, id=each[1][:40]) for each in REFUSED])
def test_values_beyond_limits_are_named(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parsed(pb.RerankRequest, PADDING + data, LIMITS)
    assert str(caught.value).startswith(message)


def test_a_small_message_is_left_to_the_parser() -> None:
    many = parsed(pb.RerankRequest, QUERY + b"\x12\x00" * 20_000, LIMITS)
    assert len(many.documents) == 20_000


@pytest.mark.parametrize("kind", [pb.SearchAndRerankRequest, pb.ListRankersRequest])
def test_other_methods_are_counted_alike(kind: type[pb.SearchAndRerankRequest]) -> None:
    with pytest.raises(InvalidArgument, match=r"^request: has more than 32 fields; the limit is 32"):
        parsed(kind, b"\x7a\x00" * fields.SMALL_BYTES, LIMITS)


async def test_large_requests_share_one_pace() -> None:
    """However many are parsed at once, the event loop runs between any two pieces of about 2 MB."""
    running = 0
    most = 0
    pace = long_work()

    async def others() -> None:
        nonlocal running
        while True:
            running = 0
            await asyncio.sleep(0)

    async def parse() -> None:
        nonlocal running, most
        for _ in range(3):
            await pace.take_turn(PIECE_BYTES)
            running += 1
            most = max(most, running)

    other = asyncio.ensure_future(others())
    await asyncio.gather(*(parse() for _ in range(20)))
    other.cancel()
    assert most == 1
    # Small pieces need no pause until their sum is as large.
    await asyncio.sleep(2 * PAUSE_S)
    for _ in range(16):
        await asyncio.wait_for(pace.take_turn(PIECE_BYTES // 16), 30)

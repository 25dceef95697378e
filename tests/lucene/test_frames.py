"""Both sides agree on the framing, and a broken pipe is an end, not an error."""

import asyncio
import io

import pytest

from farrank_lucene.frames import pack, read_frame, receive_frame

TEXTS = ["", "plain", "\U0001f600 中 \x00", "x" * 100_000]


def framed() -> bytes:
    return pack({"id": 7}, TEXTS)


async def received(data: bytes) -> list[object]:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    frames: list[object] = []
    while (frame := await receive_frame(stream)) is not None:
        frames.append(frame)
    return frames


async def test_both_readers_read_what_was_packed() -> None:
    pipe = io.BytesIO(framed() + pack({"cancel": 3}))
    expected = [({"id": 7}, TEXTS), ({"cancel": 3}, [])]
    assert [read_frame(pipe), read_frame(pipe)] == expected
    assert read_frame(pipe) is None
    assert await received(pipe.getvalue()) == expected


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert read_frame(io.BytesIO(pack({}, ["\ud83d"]))) == ({}, ["?"])


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 20, 60_000])
async def test_a_torn_frame_is_the_end(kept: int) -> None:
    torn = framed()[:kept]
    assert read_frame(io.BytesIO(torn)) is None
    assert await received(torn) == []

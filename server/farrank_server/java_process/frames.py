"""How a process and its Java child talk: a JSON header and raw bytes, length first, over a pipe.

Texts travel as raw UTF-8 behind the header: escaping megabytes of them as JSON would cost more than the
search that found them. Nothing that is read here can run code, as a pickle could.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, BinaryIO

_PIPE_BYTES = 2**20  # a pipe of the usual 64 KiB wakes both sides up 60 times for 100 long documents
_LENGTHS = struct.Struct("!IQ")  # bytes of the header, bytes of the body

Frame = tuple[dict[str, Any], bytes]


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes from and to the parent.

    For all other code in the child, standard output becomes standard error: a line that Java or a library
    prints there would be read as a frame. SIGINT and SIGTERM often reach a whole process group or service;
    the parent decides when the child ends, by closing the pipe, so that searches in flight finish while it
    drains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with contextlib.suppress(AttributeError, OSError):  # Linux has it, and a quota on it
        fcntl.fcntl(to_parent, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return sys.stdin.buffer, to_parent


def pack(header: Mapping[str, Any], body: Iterable[bytes] = ()) -> bytes:
    """Make one frame; the parts of `body` are joined, and the header says where to cut them again."""
    head = json.dumps(header).encode()
    parts = list(body)
    # One join: megabytes of texts are copied once.
    return b"".join([_LENGTHS.pack(len(head), sum(map(len, parts))), head, *parts])


def read_frame(pipe: IO[bytes]) -> Frame | None:
    """Wait for the next frame; None when the other side has closed the pipe, even in the middle of one."""
    lengths = pipe.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    head, body = pipe.read(head_bytes), pipe.read(body_bytes)
    if len(head) < head_bytes or len(body) < body_bytes:
        return None
    return json.loads(head), body


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], body: Iterable[bytes] = ()) -> None:
    """Send a frame at once."""
    pipe.write(pack(header, body))
    pipe.flush()


async def receive_frame(stream: asyncio.StreamReader) -> Frame | None:
    """Do what `read_frame` does, without blocking the event loop."""
    try:
        head_bytes, body_bytes = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
        return json.loads(await stream.readexactly(head_bytes)), await stream.readexactly(body_bytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def cut_texts(body: bytes, sizes: Iterable[int]) -> list[str]:
    """Cut a body into its texts by their sizes in bytes."""
    texts, start = [], 0
    for size in sizes:
        texts.append(body[start : start + size].decode())
        start += size
    return texts

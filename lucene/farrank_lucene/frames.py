"""The protocol between a process and its Java child: frames of a JSON header and texts over a pipe.

Lengths come first. Texts travel as raw UTF-8 after the header: escaping megabytes of them as JSON would cost
more than the search that found them. Unlike a pickle, a frame cannot run code when it is read.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, BinaryIO

_PIPE_BYTES = 2**20  # a pipe of the usual 64 KiB wakes both sides up 60 times for 100 long documents
_LENGTHS = struct.Struct("!IQ")  # bytes of the header with the sizes of the texts, bytes of all texts

_SIGNAL_WHEN_PARENT_DIES = 1  # PR_SET_PDEATHSIG of Linux

Frame = tuple[dict[str, Any], list[str]]


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes from and to the parent.

    For all other code in the child, standard output becomes standard error: otherwise a line that Java or a
    library prints would be read as a frame. SIGINT and SIGTERM often reach a whole process group or service,
    so the child ignores them. The parent ends the child by closing the pipe, so that searches in flight
    finish while it drains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it, and limits it by a quota
        fcntl.fcntl(to_parent, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return sys.stdin.buffer, to_parent


def end_with_parent() -> None:
    """Have Linux kill this process when its parent is killed, even in the middle of work.

    On other systems it ends when it next reads the pipe, which may be minutes later if it is writing.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_SIGNAL_WHEN_PARENT_DIES, signal.SIGKILL)


def pack(header: Mapping[str, Any], texts: Iterable[str] = ()) -> bytes:
    """Build one frame. Half a surrogate pair in a text, which cannot be encoded, becomes a question mark."""
    parts = [text.encode(errors="replace") for text in texts]
    sizes = [len(part) for part in parts]
    head = json.dumps([header, sizes]).encode()
    # One join copies megabytes of texts only once.
    return b"".join([_LENGTHS.pack(len(head), sum(sizes)), head, *parts])


def _unpack(head: bytes, body: bytes) -> Frame:
    header, sizes = json.loads(head)
    ends = list(itertools.accumulate(sizes, initial=0))
    return header, [body[start:end].decode() for start, end in itertools.pairwise(ends)]


def read_frame(pipe: IO[bytes]) -> Frame | None:
    """Wait for the next frame; None if the other side has closed the pipe, even in the middle of a frame."""
    lengths = pipe.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    head, body = pipe.read(head_bytes), pipe.read(body_bytes)
    return _unpack(head, body) if len(head) == head_bytes and len(body) == body_bytes else None


async def receive_frame(stream: asyncio.StreamReader) -> Frame | None:
    """Do what `read_frame` does, without blocking the event loop."""
    try:
        head_bytes, body_bytes = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
        return _unpack(await stream.readexactly(head_bytes), await stream.readexactly(body_bytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_frame(pipe: IO[bytes], header: Mapping[str, Any]) -> None:
    """Send a frame without texts, and flush the pipe."""
    pipe.write(pack(header))
    pipe.flush()

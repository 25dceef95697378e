"""What a Java child does first: keep its pipe to the parent clean, and leave its end to the parent."""

import contextlib
import fcntl
import os
import signal
import sys
from typing import BinaryIO

_PIPE_BYTES = 2**20  # a pipe of the usual 64 KiB wakes both sides up 60 times for 100 long documents


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes from and to the parent.

    Standard output becomes standard error for everybody else: a line that Java or a library prints there
    would be read as a frame. SIGINT and SIGTERM often reach a whole process group or service; the parent
    decides when the child ends, by closing the pipe, so that searches in flight finish while it drains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with contextlib.suppress(AttributeError, OSError):  # Linux has it, and a quota on it
        fcntl.fcntl(to_parent, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return sys.stdin.buffer, to_parent

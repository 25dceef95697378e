"""A process in its own network namespace, which has only loopback.

`python -m farrank_bench.scaling.loopback -m pytest …` runs Python there. Only the processes that it starts
can reach a port that listens on every interface. The namespace needs root or user namespaces. Without them,
the command says so and runs Python anyway; code that needs the namespace asks `only_loopback`.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

import psutil

# Source: sched.h, linux/if.h, linux/sockios.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_IFF_UP = 0x1
_SIOCSIFFLAGS = 0x8914
# struct ifreq: the interface's name, its flags, and room for other requests' fields.
_IFREQ = "16sH22x"


def only_loopback() -> bool:
    """Return whether loopback is the only interface that is up."""
    return [name for name, found in psutil.net_if_stats().items() if found.isup] == ["lo"]


def enter() -> None:
    """Move this process, which must have one thread, to a network namespace with only loopback.

    Raises: OSError if that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) != 0:
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", _IFF_UP))


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        print(f"no network namespace with only loopback: {error}", file=sys.stderr)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])

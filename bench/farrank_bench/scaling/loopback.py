"""A process in a network of its own, of which loopback is all there is.

`python -m farrank_bench.scaling.loopback -m pytest …` runs Python there: what listens on every interface is
heard by the processes that this one starts alone. Where no such network can be had (it takes root, or user
namespaces), the command says so, and Python runs all the same: what needs it asks `only_loopback`.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

# Source: sched.h, linux/if.h, linux/sockios.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_IFF_UP = 0x1
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
# struct ifreq: the interface's name, its flags, what other requests have there.
_IFREQ = "16sH22x"


def only_loopback() -> bool:
    """Say whether no interface but loopback is up here."""
    up = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            _, flags = _interface(asked, _SIOCGIFFLAGS, name)
            if flags & _IFF_UP:
                up.append(name)
    return up == ["lo"]


def enter() -> None:
    """Leave the machine's network for one with loopback alone; for a process of one thread.

    Raises: OSError where that is not allowed.
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
        _interface(asked, _SIOCSIFFLAGS, "lo", _IFF_UP)


def _interface(asked: socket.socket, request: int, name: str, flags: int = 0) -> tuple[bytes, int]:
    told: tuple[bytes, int] = struct.unpack(
        _IFREQ, fcntl.ioctl(asked, request, struct.pack(_IFREQ, name.encode(), flags))
    )
    return told


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        print(f"no network with loopback alone: {error}", file=sys.stderr)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])

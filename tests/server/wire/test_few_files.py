"""The choice of connections to end when few files are left."""

import socket
from contextlib import ExitStack

import pytest

from farrank_server.wire import few_files
from farrank_server.wire.few_files import end_newest

# More files than this process has open.
FILES = 2000


@pytest.mark.parametrize(
    ("kept", "number", "left"), [(0.0, 3, (3, 2)), (0.0, 5, (1, 2)), (0.0, 99, (0, 0)), (0.002, 99, (2, 2))]
)
def test_the_caller_with_most_loses_its_newest_first_and_some_are_kept(
    kept: float, number: int, left: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_files, "KEPT", kept)
    with ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]
        callers: dict[str, list[socket.socket]] = {"127.0.0.2": [], "127.0.0.3": []}
        for address in ("127.0.0.2",) * 6 + ("127.0.0.3",) * 2:
            caller = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            callers[address].append(opened.enter_context(caller))
            opened.enter_context(listening.accept()[0])
        ended = end_newest(port, FILES, number)
        assert ended == 8 - sum(left)
        for those, number_left in zip(callers.values(), left, strict=True):
            for caller in those[number_left:]:
                caller.settimeout(30)
                assert caller.recv(1) == b""
            for caller in those[:number_left]:
                caller.setblocking(False)
                with pytest.raises(BlockingIOError):
                    caller.recv(1)
        # The listening socket stays open.
        opened.enter_context(socket.create_connection(("127.0.0.1", port)))

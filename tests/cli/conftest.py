"""A small real server for the commands, and `farrank` as a function."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from farrank.v1 import rerank_pb2_grpc
from support.counting_server import WordCounter


@pytest.fixture
def server() -> Iterator[tuple[str, WordCounter]]:
    """A server's address, and the servicer with its requests."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = WordCounter()
    rerank_pb2_grpc.add_RerankServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(0).wait()

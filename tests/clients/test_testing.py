"""The fake network with which applications test."""

import pytest
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2
from farrank_client import AsyncClient, Client, InvalidArgument
from farrank_client.testing import MockTransport


def answer(request: Message) -> Message:
    assert isinstance(request, rerank_pb2.RerankRequest)
    if not request.query:
        raise InvalidArgument("query: empty")
    return rerank_pb2.RerankResponse(results=[rerank_pb2.Result(id=each.id) for each in request.documents])


def test_the_synchronous_client_needs_no_server() -> None:
    transport = MockTransport(answer)
    with Client(transport=transport) as client:
        assert len(client.rerank("q", ["x", "y"]).results) == 2
        with pytest.raises(InvalidArgument):
            client.rerank("", ["x"])
    assert len(transport.requests) == 2


async def test_the_asyncio_client_needs_no_server() -> None:
    async with AsyncClient(transport=MockTransport(answer)) as client:
        assert len((await client.rerank("q", ["x", "y"])).results) == 2


def test_an_answer_of_another_kind_is_a_mistake_of_the_test() -> None:
    client = Client(transport=MockTransport(lambda request: rerank_pb2.Limits()))

    with pytest.raises(TypeError, match="RerankResponse, not Limits"):
        client.rerank("q", ["x"])

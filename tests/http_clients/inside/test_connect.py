"""A stock Connect client, generated from `rerank.proto` by the stock plugins."""

import importlib
import subprocess
import sys
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.codec import proto_binary_codec, proto_json_codec
from connectrpc.errors import ConnectError

from support.asked_server import AskedServer
from support.documentation import ROOT


@pytest.fixture(scope="module", autouse=True)
def made(server: AskedServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run the page's command, and make its output importable for the page's lines."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "proto").symlink_to(ROOT / "proto")
    (command,) = server.written("Connect", "bash")
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True, timeout=60)
    sys.path.insert(0, str(folder / "gen"))


@pytest.fixture
def messages() -> Any:
    return importlib.import_module("farrank.v1.rerank_pb")


def request_of(server: AskedServer, messages: Any, **options: Any) -> Any:
    return messages.RerankRequest(
        query=server.query,
        documents=[messages.Document(id=str(n), text=text) for n, text in enumerate(server.documents)],
        options=messages.RerankOptions(score_scale=messages.ScoreScale.SIGMOID, **options),
    )


@pytest.mark.parametrize("codec", [proto_binary_codec(), proto_json_codec()], ids=["protobuf", "json"])
def test_the_lines_of_the_page(server: AskedServer, messages: Any, codec: Any) -> None:
    names = server.run_written("Connect")
    client = names["RerankServiceClientSync"](server.url, codec=codec)
    for each in (client, names["client"]):
        answer = each.rerank(request_of(server, messages, return_texts=True, top_n=4), timeout_ms=60_000)
        server.check(((result.index, result.score) for result in answer.results), 4)
        assert [result.text for result in answer.results] == [server.documents[n] for n in server.order[:4]]
        assert [result.id for result in answer.results] == [str(n) for n in server.order[:4]]
    assert [ranker.name for ranker in client.list_rankers(messages.ListRankersRequest()).rankers] == ["maxp"]


def refusal(client: Any, request: Any, **options: Any) -> ConnectError:
    with pytest.raises(ConnectError) as refused:
        client.rerank(request, **options)
    return refused.value


def test_errors_have_their_codes_and_the_servers_words(server: AskedServer, messages: Any) -> None:
    client = server.run_written("Connect")["client"]
    unknown = refusal(client, request_of(server, messages, ranker="nobody"))
    assert unknown.code == Code.NOT_FOUND
    assert "'nobody'" in unknown.message
    empty = refusal(client, messages.RerankRequest(query="q"))
    assert empty.code == Code.INVALID_ARGUMENT
    assert empty.message.startswith("documents: is empty")
    assert refusal(client, request_of(server, messages), timeout_ms=1).code == Code.DEADLINE_EXCEEDED
    with server.without_room():
        full = refusal(client, request_of(server, messages))
    assert full.code == Code.RESOURCE_EXHAUSTED
    assert "max_concurrent_calls" in full.message

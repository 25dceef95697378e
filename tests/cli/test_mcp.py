"""`farrank mcp`: the official SDK's client, over stdio and HTTP, against a real server with a real index."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server

COLLECTION = {
    "rivers": "The Rhine 🏞️ rises in the Alps. " * 1500 + "It meets the sea near Rotterdam.",
    "bread": "Bread is baked from flour, water, salt and yeast. " * 40,
}
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "how-to" / "agents.md"


@pytest.fixture(scope="module")
def server(
    tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpawnedServer]:
    folder = tmp_path_factory.mktemp("agents")
    collection = folder / "collection.jsonl"
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in COLLECTION.items()]
    collection.write_text("\n".join(lines))
    assert main(["index", str(collection), "--out", str(folder / "index")]) == 0
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", f"--index=things={folder / 'index'}"]
    with spawned_server([*arguments, "--log-level=warning"]) as spawned:
        yield spawned


def command(server: SpawnedServer, *more: str) -> list[str]:
    return ["-m", "farrank_cli", "mcp", "--server", server.address, *more]


@asynccontextmanager
async def over_stdio(server: SpawnedServer, *more: str) -> AsyncIterator[Client]:
    """Let the SDK start the command and talk to it."""
    started = StdioServerParameters(command=sys.executable, args=command(server, *more), env=dict(os.environ))
    async with Client(started) as agent:
        yield agent


@asynccontextmanager
async def over_http(server: SpawnedServer, *more: str) -> AsyncIterator[Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [sys.executable, *command(server, "--http-port", str(port), *more)]
    started = await asyncio.create_subprocess_exec(*arguments)
    try:
        await asyncio.to_thread(wait_for_port, port)
        async with Client(f"http://127.0.0.1:{port}/mcp") as agent:
            yield agent
    finally:
        started.terminate()
        await started.wait()


def wait_for_port(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at port {port}")


def content(result: CallToolResult) -> Any:
    assert not result.is_error, result.content
    return result.structured_content


def message(result: CallToolResult) -> str:
    assert result.is_error
    (text,) = result.content
    assert isinstance(text, TextContent)
    return text.text


@pytest.mark.parametrize("over", [over_stdio, over_http])
async def test_an_agent_finds_evidence_and_reads_on(server: SpawnedServer, over: Any) -> None:
    async with over(server) as agent:
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert set(tools) == {"list_indexes", "search_and_rerank", "rerank", "read_passage"}
        for tool in tools.values():
            assert tool.description
            assert tool.output_schema
            assert tool.annotations
            assert tool.annotations.read_only_hint
        (index,) = content(await agent.call_tool("list_indexes", {}))["result"]
        assert (index["index"], index["documents"]) == ("things", 2)

        query = {"query": "where does the Rhine meet the sea?", "tokens": 60}
        found = content(await agent.call_tool("search_and_rerank", query))
        assert found["index"] == "things"
        rivers = next(each for each in found["documents"] if each["document"] == "rivers")
        assert rivers["characters"] == len(COLLECTION["rivers"])
        assert 0 <= rivers["score"] <= 1
        assert found["evidence"]
        for piece in found["evidence"]:
            text = COLLECTION[piece["document"]]
            assert text[piece["start"] : piece["end"]] == piece["text"]
        piece = next(each for each in found["evidence"] if each["document"] == "rivers")
        place = {"document": "rivers", "start": piece["start"], "end": piece["end"]}
        assert content(await agent.call_tool("read_passage", place))["text"] == piece["text"]


async def test_a_document_is_read_in_parts(server: SpawnedServer) -> None:
    async with over_stdio(server) as agent:
        text, start, calls = "", 0, 0
        while start is not None:
            part = content(
                await agent.call_tool(
                    "read_passage", {"document": "rivers", "index": "things", "start": start}
                )
            )
            assert part["characters"] == len(COLLECTION["rivers"])
            text, start, calls = text + part["text"], part["next_start"], calls + 1
        assert text == COLLECTION["rivers"]
        assert calls == 3


async def test_an_agents_own_documents_are_ranked(server: SpawnedServer) -> None:
    documents = [{"id": doc_id, "text": text} for doc_id, text in COLLECTION.items()]
    async with over_stdio(server, "--ranker", "maxp", "--context-tokens", "30") as agent:
        asked = {"query": "what is bread baked from?", "documents": documents, "top_n": 1}
        found = content(await agent.call_tool("rerank", asked))
        assert len(found["documents"]) == 1
        assert found["index"] == ""
        assert all(len(each["text"].split()) <= 30 for each in found["evidence"])


async def test_a_model_reads_why_a_call_failed(server: SpawnedServer) -> None:
    async with over_stdio(server) as agent:
        call = agent.call_tool
        assert "known are: things" in message(
            await call("search_and_rerank", {"query": "river", "index": "nowhere"})
        )
        assert "INVALID_ARGUMENT" in message(await call("search_and_rerank", {"query": " "}))
        assert "top_n" in message(await call("search_and_rerank", {"query": "river", "top_n": 0}))
        assert "has no documents[0] 'nobody'" in message(await call("read_passage", {"document": "nobody"}))
        assert "k: is 2147483648; it must be at most 2147483647 [INVALID_ARGUMENT]" in message(
            await call("search_and_rerank", {"query": "river", "k": 2**31})
        )
        beyond = {"document": "bread", "start": 10**6}
        assert "start: is 1000000; the document has" in message(await call("read_passage", beyond))
        assert "end: is 1;" in message(
            await call("read_passage", {"document": "bread", "start": 5, "end": 1})
        )


@pytest.mark.parametrize("over", [over_stdio, over_http])
async def test_only_the_server_limits_documents(server: SpawnedServer, over: Any) -> None:
    async with over(server) as agent:

        def ranked(megabytes: int) -> Any:
            # Blanks are no tokens, so that nothing takes long.
            documents = [{"id": "long", "text": "rivers" + " " * (megabytes * 2**20)}]
            return agent.call_tool("rerank", {"query": "river", "documents": documents})

        (found,) = content(await ranked(6))["documents"]
        assert found["characters"] > 6 * 2**20
        assert "max_document_bytes 16777216 allows" in message(await ranked(17))


async def test_a_server_that_is_not_there_is_a_message(server: SpawnedServer) -> None:
    """An agent starts its tools before the server may be up."""
    arguments = ["-m", "farrank_cli", "mcp", "--server", "127.0.0.1:1", "--timeout-s", "1"]
    started = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with Client(started) as agent:
        assert "no server listens there" in message(await agent.call_tool("list_indexes", {}))


def test_a_wrong_flag_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--api-key-file", "/nowhere"]) == 2
    assert "/nowhere" in capsys.readouterr().err


def test_the_documented_session(server: SpawnedServer) -> None:
    page = DOCUMENTATION.read_text(encoding="utf-8")
    (session,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    session = session.replace("localhost:50051", server.address)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    session = session.replace('args=["mcp"', f'env={{"PATH": {path!r}}}, args=["mcp"')
    done = subprocess.run([sys.executable, "-c", session], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rivers ")

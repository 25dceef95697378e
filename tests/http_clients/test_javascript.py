"""JavaScript clients from npm, unmodified, call a running server with the lines of the page."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.asked_server import AskedServer
from support.client_environments import CACHE, IndexUnreachable, made_modules, plain_environ

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "javascript"

# The part of each client's answer that is compared: the position and score of each document, best first.
RANKINGS = {
    "Cohere, JavaScript": "answer.results.map((each) => [each.index, each.relevanceScore])",
    "AI SDK": "answer.ranking.map((each) => [each.originalIndex, each.score])",
    "Voyage, JavaScript": "answer.data.map((each) => [each.index, each.relevanceScore])",
}


@pytest.fixture(scope="session")
def modules() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("NO JAVASCRIPT CLIENT WAS TESTED: npm is not installed")
    try:
        return made_modules(HERE, CACHE)
    except IndexUnreachable as error:
        pytest.skip(f"NO JAVASCRIPT CLIENT WAS TESTED: no package index can be reached: {error}")


def run(modules: Path, server: AskedServer, name: str, code: str, result: str) -> Any:
    """Run JavaScript that sees the query and documents. Returns the value of `result`."""
    given = f"const [query, documents] = {json.dumps([server.query, server.documents])};\n"
    # Imports are resolved from the place of the file.
    path = modules / f"{name}.mjs"
    path.write_text(f"{given}{code}\nconsole.log(JSON.stringify({result}));\n", encoding="utf-8")
    done = subprocess.run(
        ["node", str(path)],
        capture_output=True,
        text=True,
        env={**plain_environ(), "NO_PROXY": "*"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("heading", RANKINGS)
def test_the_lines_of_the_page(modules: Path, server: AskedServer, heading: str) -> None:
    name = f"{heading.replace(', ', '-').replace(' ', '-')}-{os.getpid()}"
    code = server.written(heading, "js")[0]
    server.check((place, score) for place, score in run(modules, server, name, code, RANKINGS[heading]))


def test_voyages_client_with_top_k_and_documents(modules: Path, server: AskedServer) -> None:
    (code,) = server.written("Voyage, JavaScript", "js")
    options = '{ model: "rerank-2.5", query, documents, topK: 2, returnDocuments: true }'
    more = f"const best = await client.rerank({options});"
    found = run(modules, server, f"voyage-top-{os.getpid()}", f"{code}\n{more}", "best.data")
    server.check(((each["index"], each["relevanceScore"]) for each in found), 2)
    assert [each["document"] for each in found] == [server.documents[n] for n in server.order[:2]]


def test_cohere_keeps_the_passages(modules: Path, server: AskedServer) -> None:
    heading = "Cohere, JavaScript"
    code = "\n".join(server.written(heading, "js")[:2])
    found = run(modules, server, f"spans-{os.getpid()}", code, "passages")

    assert len(found) == len(server.documents)
    spans = [span for its in found for span in its or []]
    assert spans, "nothing was packed"
    assert all(0 <= span["start"] < span["end"] and 0 <= span["score"] <= 1 for span in spans)

"""`make audit` with an index that has advisories, an index without any, and no index."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CANARY = ("jinja2", "2.4.1")


def advisory(name: str, fixed: str) -> dict[str, Any]:
    """Return an advisory in OSV's schema. Source: https://ossf.github.io/osv-schema/."""
    events = [{"introduced": "0"}, {"fixed": fixed}]
    affected = {"package": {"name": name, "ecosystem": "PyPI"}}
    ranges = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"schema_version": "1.6.0", "id": f"TEST-{name}", "summary": "s", "affected": [affected | ranges]}


@contextmanager
def osv(vulnerable: dict[tuple[str, str], str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Answer as OSV does: the release that mends each vulnerable one. Gives what was asked for, too."""
    asked: list[tuple[str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            package = query["package"]["name"], query["version"]
            asked.append(package)
            known = vulnerable.get(package)
            body = json.dumps({"vulns": [advisory(package[0], known)]} if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query", asked
        server.shutdown()


def audited(folder: Path, index: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "audit_dependencies.py")]
    variables = {**os.environ, "FARRANK_ADVISORIES": index}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=280)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    (tmp_path / "constraints.txt").write_text("# pins\nalpha==1.0\ntransformers==5.1\n")
    (tmp_path / "constraints-transformers-4.txt").write_text("# pins\nalpha==1.0\ntransformers==4.57\n")
    return tmp_path


def test_vulnerable_packages_fail_and_are_named(pinned: Path) -> None:
    with osv({CANARY: "2.7.2", ("transformers", "4.57"): "4.58"}) as (index, asked):
        code, said = audited(pinned, index)
    assert (code, said) == (1, "audit: transformers 4.57: TEST-transformers, fixed in 4.58\n")
    # Every pin of both files, once.
    pins = [("alpha", "1.0"), ("transformers", "4.57"), ("transformers", "5.1")]
    assert sorted(asked) == sorted([CANARY, *pins])


def test_packages_without_advisories_pass(pinned: Path) -> None:
    with osv({CANARY: "2.7.2"}) as (index, _):
        assert audited(pinned, index) == (0, "audit: none of 3 packages has a known vulnerability\n")


def test_an_empty_index_does_not_count(pinned: Path) -> None:
    with osv({}) as (index, asked):
        code, said = audited(pinned, index)
    assert code == 0
    assert re.fullmatch(
        r"audit: nothing was audited, because no index .+ can be reached: .+ has no advisory for .+\n",
        said,
    )
    assert asked == [CANARY]


def test_without_an_index_one_line_says_so_and_the_rest_goes_on(pinned: Path) -> None:
    with osv({}) as (gone, _):
        pass
    code, said = audited(pinned, gone)
    assert code == 0
    assert re.fullmatch(
        r"audit: nothing was audited, because no index of advisories can be reached: .+\n", said
    )

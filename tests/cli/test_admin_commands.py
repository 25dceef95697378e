"""docs/how-to/swapping.md as a user types it: each command of the page runs, against a server of its own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, NotFound
from support.documentation import ROOT, blocks

PAGE = (ROOT / "docs" / "how-to" / "swapping.md").read_text(encoding="utf-8")
SESSION = [block.text for block in blocks(PAGE) if block.language == "sh"]
ADMIN = ("list", "load", "unload", "swap", "canary")

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a block in the folder, with `farrank` on the path; the page's port stands for the server's."""
    command = tmp_path / "bin" / "farrank"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m farrank_cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"

    def run(text: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-euc", text],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@contextlib.contextmanager
def served(folder: Path, port: int) -> Iterator[SpawnedServer]:
    """The server of the page, on other ports."""
    (serve,) = (line for line in SESSION[0].splitlines() if line.startswith("farrank serve"))
    words = serve.replace("listen.admin.port=50052", f"listen.admin.port={port}").split()[2:]
    with contextlib.chdir(folder), spawned_server([*words, "--log-level=warning"]) as server:
        yield server


def test_the_session_of_the_page(shell: Shell, tmp_path: Path) -> None:
    port = free_port()

    def run(line: str) -> "subprocess.CompletedProcess[str]":
        words = line.partition("#")[0].strip()
        if words.startswith("farrank rankers ") and words.split()[2] in ADMIN:
            words += f" --admin localhost:{port}"
        elif words.startswith("farrank rerank"):
            words += f" --server {server.address}"
        return shell(words)

    def done(line: str) -> str:
        found = run(line)
        assert found.returncode == 0, found.stderr
        return found.stdout

    first, reload, trial, after, by_name = SESSION
    made = [line for line in first.splitlines() if not line.startswith("farrank serve")]
    for line in made:
        # The page's `ln -s v1 models/current` makes the link beside the folders.
        assert shell(line).returncode == 0, line
    with served(tmp_path, port) as server, Client(server.address) as client:

        def version() -> str:
            return client.rerank("river", ["a river", "salt"]).ranker.version

        old = version()
        shell(reload.replace("# or: kill -HUP", "")).check_returncode()
        new = version()
        assert new != old

        heredoc, commands = trial.split("END\nfarrank", 1)
        shell(f"{heredoc}END\n").check_returncode()
        canary, listing = f"farrank{commands}".strip().splitlines()
        assert f"mine: version {old} gets 0.1 of the calls; on 2 recorded queries tau " in done(canary)
        listed = done(listing)
        assert [line.split()[:4] for line in listed.splitlines()[1:4] if line.startswith("mine")] == [
            ["mine", new, "serving", "0.9"],
            ["mine", old, "canary", "0.1"],
        ]
        assert client.rerank("q", ["a", "b"], ranker=f"mine@{old[:6]}").ranker.version == old

        share, swap, again, stop = after.splitlines()
        assert done(share) == f"mine: version {old} gets 0.5 of the calls\n"
        assert done(swap) == f"mine: version {old} gets all calls\n"
        assert version() == old
        assert done(again).startswith(f"mine: version {new} gets 0.1 of the calls")
        assert done(stop) == "mine: the canary is stopped\n"

        bound = run(canary.replace("models/v1", "models/v2").replace("--min-tau -1", "--min-tau 1"))
        assert bound.returncode == 1
        assert bound.stderr.startswith(
            f"farrank: localhost:{port}: the new version is refused after 2 recorded queries: "
        )
        assert bound.stderr.endswith("[FAILED_PRECONDITION]\n")

        load, rerank, unload = by_name.splitlines()
        assert done(load) == f"more: loaded version {new}\n"
        assert "recorded.jsonl" in done(rerank)
        as_json = json.loads(done(f"{listing} --json"))
        assert [(each["ranker"], each["configured"]) for each in as_json["versions"]] == [
            ("mine", True),
            ("more", False),
        ]
        assert done(unload) == "more: unloaded\n"
        with pytest.raises(NotFound, match="no ranker 'more' here, it was unloaded"):
            client.rerank("q", ["a"], ranker="more")

        # The command reads its file and its flags before it asks the server.
        (tmp_path / "wrong.jsonl").write_text('{"query": "q", "documents": [1]}\n')
        for flags, problem in (
            ("--share 0.1 --recorded wrong.jsonl", "wrong.jsonl:1: documents[0]: must be a string"),
            ("--share 0.1 --min-tau 1", "--min-tau and --max-latency-ratio: need --recorded"),
            ("", "rankers canary: give --share or --stop"),
            ("--stop --share 0.1", "--stop takes neither"),
            ("--share 0.1 --set precision", "--set precision: must be KEY=VALUE"),
            ("--share 2", "share: is 2; it must be from 0 to 1 [INVALID_ARGUMENT]"),
        ):
            refused = run(f"farrank rankers canary mine models/v2 {flags}")
            assert refused.returncode in (1, 2), flags
            assert problem in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
    gone = run(listing)
    assert gone.returncode == 3
    assert f"localhost:{port}" in gone.stderr

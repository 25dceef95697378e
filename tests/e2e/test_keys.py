"""A server process that requires API keys, and clients that send them."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farrank_calls.key_file import END_MARK, add_key, revoke_key
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import AccessDenied, Client, ResourceExhausted, RetryPolicy
from farrank_loadtest.targets import CandidateDocument, TargetError
from farrank_loadtest.targets.address import open_target

ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Keyed:
    server: SpawnedServer
    file: Path
    pid_file: Path
    key: str
    log: Path

    def client(self, key: str | None) -> Client:
        return Client(self.server.address, api_key=key, retry=ONCE)


@pytest.fixture
def keyed(tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyed]:
    file, pid_file, log = tmp_path / "keys.toml", tmp_path / "pid", tmp_path / "log"
    key = add_key(file, "team", {"rankers": ["biencoder"], "indexes": ["news"]})
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("maxp", "biencoder")]
    arguments += [f"--keys={file}", f"--pid-file={pid_file}", "--http-port=0", "--log-level=debug"]
    # All output of the server on standard error.
    kept = os.dup(2)
    with log.open("wb") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        with spawned_server(arguments) as server:
            os.dup2(kept, 2)
            yield Keyed(server, file, pid_file, key, log)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def farrank(*arguments: object, key: str | None = None) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "FARRANK_API_KEY"}
    if key is not None:
        variables["FARRANK_API_KEY"] = key
    command = [sys.executable, "-m", "farrank_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=variables)


def status_of(request: urllib.request.Request | str) -> int:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as page:
        text: str = page.read().decode()
        return text


async def test_keys_of_a_running_server(
    keyed: Keyed,
    tmp_path: Path,
    metric_of: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    server = keyed.server
    with keyed.client(None) as nobody, keyed.client(keyed.key) as team:
        assert nobody.is_healthy()
        with pytest.raises(AccessDenied, match="an API key is required"):
            nobody.rerank("river", ["a"])
        assert team.rerank("river", ["a river", "b"]).ranker.name == "biencoder"
        assert [each.name for each in team.rankers().rankers] == ["biencoder"]
        with pytest.raises(AccessDenied, match="key team may use no ranker 'maxp'"):
            team.rerank("river", ["a"], ranker="maxp")

    # The command takes its API key from a file or a variable.
    text, key_file = tmp_path / "text", tmp_path / "key"
    text.write_text("a river")
    key_file.write_text(f"{keyed.key}\n")
    ask = ("rerank", "--server", server.address, "--query", "river", text)
    refused = farrank(*ask)
    assert refused.returncode == 1
    assert refused.stderr.endswith("[UNAUTHENTICATED]\n")
    assert farrank(*ask, key=keyed.key).returncode == 0
    assert farrank(*ask, "--api-key-file", key_file, key="wrong").returncode == 0

    # A load test does so, too, with both endpoints.
    for address in (server.address, f"cohere:{server.http_url}"):
        for key in (None, keyed.key):
            target = open_target(address, api_key=key)
            try:
                if key is None:
                    with pytest.raises(TargetError, match=r"UNAUTHENTICATED|401"):
                        await target.rerank("river", [CandidateDocument("a", "a river")], timeout_s=30)
                else:
                    assert await target.rerank("river", [CandidateDocument("a", "a river")], timeout_s=30)
            finally:
                await target.close()
    assert status_of(f"{server.http_url}/health") == 200
    until(lambda: metric_of(server, "farrank_key_requests_total", key="team", code="OK") == 6)
    assert metric_of(server, "farrank_key_tokens_total", key="team") > 0
    assert metric_of(server, "farrank_unauthenticated_total", why="missing") == 4

    # SIGHUP, sent by `farrank reload`; then a change without a signal.
    second = add_key(keyed.file, "second", {"calls_per_s": 0.001})
    assert farrank("reload", "--pid-file", keyed.pid_file).stdout == "reloaded\n"
    with keyed.client(second) as caller:
        assert caller.rerank("river", ["a"]).ranker.name == "maxp"
        with pytest.raises(ResourceExhausted, match="key second: has used up its calls_per_s") as beyond:
            caller.rerank("river", ["a"])
        assert beyond.value.retry_after_s is not None
    done = metric_of(server, "farrank_key_reloads_total", outcome="done")
    revoke_key(keyed.file, "team")
    until(lambda: metric_of(server, "farrank_key_reloads_total", outcome="done") > done)
    with keyed.client(keyed.key) as team, pytest.raises(AccessDenied, match="unknown or was revoked"):
        team.rerank("river", ["a"])

    # A problem of the file is logged, and the old keys stay valid.
    keyed.file.write_text(f"{keyed.file.read_text()}\n[keys.third]\nsha256 = '{keyed.key}'\n{END_MARK}\n")
    failed = farrank("reload", "--pid-file", keyed.pid_file)
    assert failed.returncode == 1
    assert "the server keeps what it could not reload: keys.third.sha256: must be 64" in failed.stderr
    os.kill(server.process.pid, signal.SIGHUP)
    with keyed.client(second) as caller, pytest.raises(ResourceExhausted, match="calls_per_s"):
        caller.rerank("river", ["a"])
    shown, said = text_of(server.metrics_url), keyed.log.read_text()
    assert "reloaded the API keys" in said
    assert "keys.team.indexes: there is no news here" in said
    assert "keys.team.rankers" not in said
    for key in (keyed.key, second):
        assert key not in said
        assert key not in shown
        assert key.removeprefix("farrank_") not in said


def test_a_file_that_is_wrong_stops_the_start(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    arguments = (f"--ranker=maxp={tiny_rankers['maxp']}", "--port=0", "--metrics-port=none")
    absent = farrank("serve", *arguments, f"--keys={tmp_path / 'keys.toml'}")
    assert absent.returncode == 2
    assert absent.stderr == f"farrank serve: {tmp_path / 'keys.toml'}: No such file or directory\n"
    (tmp_path / "keys.toml").write_text(f"[keys.a]\nsha256 = 'farrank_secret'\n{END_MARK}\n")
    wrong = farrank("serve", *arguments, f"--keys={tmp_path / 'keys.toml'}", "--dry-run")
    assert wrong.returncode == 2
    assert "keys.a.sha256: must be 64 hexadecimal digits" in wrong.stderr
    assert "secret" not in wrong.stderr


def test_impossible_keys_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("farrank_a farrank_b")
    told = farrank("rankers", "--server", "127.0.0.1:1", "--api-key-file", key_file)
    assert (told.returncode, told.stderr) == (
        2,
        f"farrank: --api-key-file {key_file}: must hold one key and nothing else\n",
    )
    with pytest.raises(ValueError, match="api_key: must be a key") as refused:
        Client("127.0.0.1:1", api_key="farrank_secret\n")
    assert "secret" not in str(refused.value)

"""The metrics page over a real socket: its address, half requests, and answers that are not read."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from farrank_server import metrics_page
from farrank_server.access.token_file import TokenFile
from farrank_server.config.schema import ListenConfig, ServerConfig
from farrank_server.metrics import Metrics
from farrank_server.metrics_page import MAX_CONNECTIONS, MetricsPage
from farrank_server.replica import check
from farrank_settings.errors import ConfigError


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    opened = MetricsPage("127.0.0.1", 0, Metrics())
    yield opened
    opened.close()


def scraped(page: MetricsPage) -> str:
    with urllib.request.urlopen(page.url, timeout=30) as answer:
        assert int(answer.headers["Content-Length"]) > 0
        text: str = answer.read().decode()
    return text


def half_asked(page: MetricsPage, opened: ExitStack, asked: bytes = b"GET /metr") -> socket.socket:
    host, port = page.url.removeprefix("http://").removesuffix("/metrics").split(":")
    connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=30))
    connection.sendall(asked)
    return connection


def is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_requests_hold_no_more_threads_than_there_are_places(page: MetricsPage) -> None:
    before = threading.active_count()
    with ExitStack() as opened:
        halves = [half_asked(page, opened) for _ in range(100)]
        assert "farrank_build_info{" in scraped(page)
        # The scrape replaced one more.
        assert all(is_ended(each) for each in halves[: 100 - MAX_CONNECTIONS + 1])
        assert threading.active_count() - before <= MAX_CONNECTIONS + 5
        # The youngest may still send its request.
        halves[-1].sendall(b"ics HTTP/1.1\r\n\r\n")
        assert halves[-1].recv(12) == b"HTTP/1.0 200"


def test_slow_requests_are_ended(page: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "CONNECTION_S", 0.0)
    with ExitStack() as opened:
        assert is_ended(half_asked(page, opened))


def test_other_methods_and_garbage_are_refused(page: MetricsPage, capfd: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as opened:
        assert half_asked(page, opened, b"POST /metrics HTTP/1.1\r\n\r\n").recv(12) == b"HTTP/1.0 501"
        assert half_asked(page, opened, b"\xff\xff\r\n\r\n").recv(12) != b""
        with half_asked(page, opened):
            pass
    scraped(page)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_the_metrics_stand_at_their_path_alone(host: str) -> None:
    page = MetricsPage(host, 0, Metrics())
    try:
        with urllib.request.urlopen(page.url) as answer:
            text = answer.read().decode()
        for path in ("", "/", "/metrics/x", "/favicon.ico"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(page.url.removesuffix("/metrics") + path)
    finally:
        page.close()
    assert "farrank_build_info{" in text
    assert "process_resident_memory_bytes" in text


def test_a_token_is_required_and_reread(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    asking = MetricsPage("127.0.0.1", 0, Metrics(), TokenFile(file))

    def status(*shown: str) -> int:
        connection = HTTPConnection(urlsplit(asking.url).netloc, timeout=30)
        connection.request("GET", "/metrics", headers={"Authorization": " ".join(shown)})
        with closing(connection), connection.getresponse() as answer:
            asks = answer.headers["WWW-Authenticate"] == 'Bearer realm="farrank metrics"'
            assert (b"farrank_requests_total" in answer.read()) is not asks
            return int(answer.status)

    try:
        assert status("Bearer", "0123456789abcdef") == 200
        assert status() == status("Bearer") == status("Basic", "0123456789abcdef") == 401
        assert status("Bearer", "0123456789abcde") == status("Bearer", "é") == 401
        file.write_text("")
        assert status("Bearer", "0123456789abcdef") == 200
        file.write_text("fedcba9876543210")
        assert status("Bearer", "0123456789abcdef") == 401
        assert status("Bearer", "fedcba9876543210") == 200
    finally:
        asking.close()


@pytest.mark.parametrize("text", ["", "short", "two words of the file", "ä" * 20, "x" * 5000])
def test_a_file_without_a_token_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match=r"(?m)^listen\.metrics_token_file: .*token ") as told:
        check(
            ServerConfig(listen=ListenConfig(port=0, metrics_port=0, metrics_token_file=tmp_path / "token"))
        )
    assert not text or text not in str(told.value)

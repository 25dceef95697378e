"""A server for the tests of third-party clients, which run in environments without this project.

This module imports only the standard library and pytest.
"""

import json
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.documentation import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "http-clients.md"
WRITTEN_URL = "http://127.0.0.1:8080"

# Small, so that a test can use them up. Clients send one call after the other.
CONCURRENT_CALLS = 2
# Beyond this number, calls are refused before their bodies are read.
READ_CALLS = 2 * CONCURRENT_CALLS


@dataclass(frozen=True)
class AskedServer:
    """A running server, and its answer over gRPC: a score between 0 and 1 for each document."""

    url: str
    metrics_url: str
    query: str
    documents: Sequence[str]
    scores: Sequence[float]

    @classmethod
    def read(cls, path: Path) -> "AskedServer":
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def order(self) -> list[int]:
        """The documents' positions, best first."""
        return sorted(range(len(self.scores)), key=lambda place: -self.scores[place])

    def check(self, ranking: Iterable[tuple[int, float]], top_n: int | None = None) -> None:
        """Compare a ranking of (position, score) with gRPC's: the order, the positions, the scores."""
        found = list(ranking)
        assert [place for place, _ in found] == self.order[:top_n]
        assert all(type(score) is float and 0 <= score <= 1 for _, score in found)
        assert [score for _, score in found] == pytest.approx(
            [self.scores[place] for place, _ in found], abs=1e-5
        )

    def check_texts(self, ranking: Iterable[tuple[str, float]], top_n: int | None = None) -> None:
        """Compare a ranking of (text, score) with gRPC's."""
        self.check(((self.documents.index(text), score) for text, score in ranking), top_n)

    def written(self, heading: str, language: str = "python") -> list[str]:
        """Return the code blocks under a heading of the page, with this server's URL."""
        _, _, after = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
        section = after.partition("\n## ")[0]
        found = [each.text for each in blocks(section) if each.language == language]
        assert found, f"{PAGE} has no {language} under {heading!r}"
        return [text.replace(WRITTEN_URL, self.url) for text in found]

    def run_written(self, heading: str, **names: Any) -> dict[str, Any]:
        """Run the code under a heading. Returns its variables. `query` and `documents` are given."""
        names = {"query": self.query, "documents": list(self.documents), **names}
        for text in self.written(heading):
            exec(compile(text, f"docs/how-to/http-clients.md, {heading}", "exec"), names)
        return names

    def refused(self) -> float:
        """Return the number of calls that were refused over HTTP for lack of room."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("farrank_rejections_total{") and 'door="http"' in line
        )

    @contextmanager
    def without_room(self) -> Iterator[None]:
        """Make the server refuse every call: as many calls as it reads at once are begun and not finished."""
        with self._begun():
            yield

    @contextmanager
    def with_room_after_a_refusal(self) -> Iterator[None]:
        """Make the server refuse calls until it has refused one, and fail if it refused none."""
        with ExitStack() as begun:
            begun.enter_context(self._begun())
            before, left = self.refused(), threading.Event()

            def watch() -> None:
                while self.refused() == before and not left.wait(0.02):
                    pass
                begun.close()

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                yield
            finally:
                left.set()
                watching.join()
            assert self.refused() > before

    @contextmanager
    def _begun(self) -> Iterator[None]:
        place = urlsplit(self.url)
        head = f"POST /rerank HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 2\r\n\r\n"
        with ExitStack() as opened:

            def begin() -> socket.socket:
                connection = opened.enter_context(socket.create_connection((place.hostname, place.port), 30))
                connection.sendall(head.encode())
                return connection

            begun = [begin() for _ in range(READ_CALLS)]
            self._until_answered_by(429)
            # A call that its caller has just given up may still have had a place. Then one of these was
            # refused for it, and is begun again.
            while refused := select.select(begun, [], [], 0)[0]:
                begun = [begin() if each in refused else each for each in begun]
                self._until_answered_by(429)
            yield
        self._until_answered_by(400)

    def _until_answered_by(self, status: int) -> None:
        """Send an invalid call until the answer has this status: 429 as long as there is no room."""
        request = urllib.request.Request(f"{self.url}/rerank", b"{}", method="POST")
        while True:
            try:
                urllib.request.urlopen(request, timeout=30)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == status:
                        return

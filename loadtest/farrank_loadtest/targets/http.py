"""Peers over HTTP: one JSON request, one JSON answer, in the dialect of each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from farrank_loadtest.targets.target import MALFORMED, Answer, Document, TargetError, scores_by_index

_SHOWN_CHARACTERS = 300


class MakeRequest(Protocol):
    """How a dialect asks for scores."""

    def __call__(self, query: str, texts: list[str], ranker: str) -> dict[str, Any]:
        """Make the JSON object to send."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One peer's way: its route's URL, its request, and where its answer keeps what.

    `results` is the answer's key that holds the scored documents, None where the answer is their bare
    array; `stage_headers` names stages by the header that tells their milliseconds.
    """

    url: str
    request: MakeRequest
    results: str | None
    score: str
    stage_headers: Mapping[str, str]


def route(url: str, path: str) -> str:
    """Give the URL of a dialect's route: the path is appended unless the URL already names a rerank route."""
    return url if urlsplit(url).path.endswith("/rerank") else url.rstrip("/") + path


class HttpTarget:
    """Asks a peer in its dialect, over as many connections as there are calls in flight.

    Redirects are not followed: they could lead the load to where no one allowed it.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def rerank(
        self, query: str, documents: Sequence[Document], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents; stages are what the peer tells in headers, if any."""
        request = self._dialect.request(query, [document.text for document in documents], ranker)
        try:
            async with self._session.post(
                self._dialect.url,
                json=request,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                body = await response.read()
        except TimeoutError as error:
            raise TargetError("timeout", f"no answer in {timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise TargetError("unreachable", str(error)) from error
        except aiohttp.ClientError as error:
            raise TargetError("connection lost", str(error)) from error
        if response.status != 200:
            shown = body[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
            raise TargetError(f"HTTP {response.status}", shown or response.reason or "")
        return Answer(
            _scores(self._dialect, body, len(documents)), _stages_s(self._dialect, response.headers)
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()


def _scores(dialect: Dialect, body: bytes, documents: int) -> tuple[float, ...]:
    try:
        answer = json.loads(body)
        entries = answer if dialect.results is None else answer[dialect.results]
        scored = [(int(entry["index"]), float(entry[dialect.score])) for entry in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        shown = body[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
        raise TargetError(MALFORMED, f"{type(error).__name__} ({error}) in {shown}") from error
    return scores_by_index(scored, documents)


def _stages_s(dialect: Dialect, headers: Mapping[str, str]) -> dict[str, float]:
    stages = {}
    for stage, header in dialect.stage_headers.items():
        told = headers.get(header)
        if told is None:
            continue
        try:
            stages[stage] = float(told) / 1000
        except ValueError as error:
            raise TargetError(MALFORMED, f"header {header}: {told!r} is no number of milliseconds") from error
    return stages

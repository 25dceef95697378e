"""Peers over HTTP: one JSON request and one JSON answer, in each peer's dialect.

The dialects are Text Embeddings Inference's, Cohere's (v1 and v2; also Infinity, vLLM and others) and Jina's.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from farrank_loadtest.targets import MALFORMED, Answer, CandidateDocument, TargetError, scores_by_index

_SHOWN_CHARACTERS = 300
# Long documents make up most of a request: json would take ten times as long and slow a busy generator.
_to_json = msgspec.json.Encoder().encode
# Headers with whole milliseconds.
# Source: https://github.com/huggingface/text-embeddings-inference, router/src/lib.rs
_TEI_STAGES = {
    "total": "x-total-time",
    "tokenization": "x-tokenization-time",
    "queue": "x-queue-time",
    "inference": "x-inference-time",
}


# The query, the texts and the ranker's name ("" for the server's default) -> the JSON object to send.
MakeRequest = Callable[[str, list[str], str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class HttpProtocol:
    """One peer's protocol: its route, its request, and the places of values in its answer.

    `results` is the answer's key of the scored documents, None if the answer is a bare array; `stage_headers`
    maps stages to the headers with their milliseconds.
    """

    route: str
    request: MakeRequest
    results: str | None
    score: str
    stage_headers: Mapping[str, str] = field(default_factory=dict)


def _tei_request(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    if ranker:
        raise TargetError(
            "no such ranker", f"a TEI server has one model and takes no name such as {ranker!r}"
        )
    # Other servers return logits. A text beyond the model's limit is an error unless it may be truncated.
    return {"query": query, "texts": texts, "raw_scores": True, "truncate": True}


def _named_request(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    return {"query": query, "documents": texts, **({"model": ranker} if ranker else {})}


def _bare_request(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    # By default the answer includes the documents, whose transfer would be measured.
    return _named_request(query, texts, ranker) | {"return_documents": False}


_V1 = HttpProtocol("/v1/rerank", _bare_request, "results", "relevance_score")
_COHERE_V2 = HttpProtocol("/v2/rerank", _named_request, "results", "relevance_score")
DIALECTS: Mapping[str, HttpProtocol] = {
    "tei": HttpProtocol("/rerank", _tei_request, None, "score", _TEI_STAGES),
    "cohere": _V1,
    "jina": _V1,
}


class HttpTarget:
    """Calls a peer in its dialect, with one connection for each call in flight.

    `url` is the server's, or the route's if its path ends in `/rerank`, which selects Cohere's v2.
    Redirects are not followed: they could send load to a host that nobody allowed.
    """

    def __init__(self, protocol: str, url: str, api_key: str | None = None) -> None:
        path = urlsplit(url).path
        v2 = protocol == "cohere" and path.endswith(_COHERE_V2.route)
        self._dialect = _COHERE_V2 if v2 else DIALECTS[protocol]
        self._url = url if path.endswith("/rerank") else url.rstrip("/") + self._dialect.route
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        """Score the documents; stages come from the peer's headers, if any."""
        texts = [document.text for document in documents]
        request = self._dialect.request(query, texts, ranker)
        try:
            async with self._session.post(
                self._url,
                data=_to_json(request),
                headers=self._headers,
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
        return Answer(_scores(self._dialect, body, len(texts)), _stages_s(self._dialect, response.headers))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()


def _scores(dialect: HttpProtocol, body: bytes, documents: int) -> tuple[float, ...]:
    try:
        answer = json.loads(body)
        entries = answer if dialect.results is None else answer[dialect.results]
        scored = [(int(entry["index"]), float(entry[dialect.score])) for entry in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        shown = body[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
        raise TargetError(MALFORMED, f"{type(error).__name__} ({error}) in {shown}") from error
    return scores_by_index(scored, documents)


def _stages_s(dialect: HttpProtocol, headers: Mapping[str, str]) -> dict[str, float]:
    stages = {}
    for stage, header in dialect.stage_headers.items():
        if (told := headers.get(header)) is not None:
            try:
                stages[stage] = float(told) / 1000
            except ValueError as error:
                message = f"header {header}: {told!r} is not a number of milliseconds"
                raise TargetError(MALFORMED, message) from error
    return stages

"""Behaviour of all dialects: limits, deadlines, callers that go, refusals, and counts."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from farrank_calls.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FarrankError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    ResourceExhausted,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from farrank_rankers.tokens import EncoderInput
from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.calls import refusal_headers, status_of
from farrank_server.http.connect import JsonExchange
from farrank_server.http.dialects.routes import RerankExchange
from support.engine_bench import TEXTS, until
from support.http_endpoint import METHODS, Opened, OpenEndpoint

RERANK = f"{METHODS}Rerank"
REQUEST = {"query": "sea", "documents": [{"text": text} for text in TEXTS]}
JSON = {"Content-Type": "application/json"}
FAILED = "the server failed; its log says why"


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (InvalidArgument("x"), 400, None),
        (TooLarge("x"), 413, None),
        (NotFound("x"), 404, None),
        (Unauthenticated("x", "unknown"), 401, None),
        (PermissionDenied("x"), 403, None),
        (ResourceExhausted("x", retry_after_ms=1500), 429, ("2", "1500")),
        (ResourceExhausted("x", retry_after_ms=20), 429, ("1", "20")),
        (Unavailable("x"), 503, ("1", "1000")),
        (DeadlineExceeded("x"), 504, None),
        (Unimplemented("x"), 415, None),
        (FailedPrecondition("x"), 400, None),
        (Internal("x"), 500, None),
    ],
)
def test_each_error_has_its_status(error: FarrankError, status: int, retry: tuple[str, str] | None) -> None:
    headers = refusal_headers(error)
    assert status_of(error) == status
    assert (headers.get("Retry-After"), headers.get("retry-after-ms")) == (retry or (None, None))


async def test_a_call_is_counted_at_its_endpoint(endpoint: Opened) -> None:
    assert (await endpoint.post(RERANK, REQUEST))[0] == 200
    await until(lambda: endpoint.count("requests_total", method="Rerank", ranker="maxp", code="OK") == 1)
    assert endpoint.count("requests_in_flight", method="Rerank") == 0
    assert endpoint.count("request_duration_seconds_count", method="Rerank", ranker="maxp") == 1
    assert (await endpoint.post(RERANK, {"query": ""}))[0] == 400
    await until(
        lambda: endpoint.count("requests_total", method="Rerank", ranker="maxp", code="INVALID_ARGUMENT") == 1
    )


async def test_a_body_is_read_no_further_than_to_the_limit(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint(limits=LimitsConfig(max_request_bytes=200_000)) as endpoint:
        read = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(2_000):
                read += 100_000
                yield b"x" * 100_000

        # A body whose length is announced, and a body whose length shows only at its end.
        async with endpoint.session.post(RERANK, data=b"x" * 200_001, headers=JSON) as answer:
            assert answer.status == 413
            said = await answer.json()
        assert said == {
            "code": "invalid_argument",
            "message": "request: has 200001 bytes; max_request_bytes is 200000",
        }
        async with endpoint.session.post(RERANK, data=pieces(), headers=JSON) as answer:
            assert answer.status == 413
            assert "more than 200000 bytes; max_request_bytes is 200000" in (await answer.json())["message"]
        assert read < 2_000 * 100_000
        body = b'{"query": "sea", "documents": [{"text": "%s"}]}'
        longest = body % (b"x" * (200_000 - len(body) + 2))
        assert len(longest) == 200_000
        async with endpoint.session.post(RERANK, data=longest, headers=JSON) as answer:
            assert answer.status == 200


async def test_a_deadline_comes_with_the_call_or_from_the_configuration(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint(limits=LimitsConfig(default_timeout_s=0.001)) as endpoint:
        status, said = await endpoint.post(RERANK, REQUEST)
        assert (status, said["code"]) == (504, "deadline_exceeded")
        assert (await endpoint.post(RERANK, REQUEST, Connect_Timeout_Ms="60000"))[0] == 200
        for wrong in ("-1", "1.5", "soon", "12345678901", "٣"):
            async with endpoint.session.post(
                RERANK, json=REQUEST, headers={"Connect-Timeout-Ms": wrong}
            ) as answer:
                assert answer.status == 400
                assert "Connect-Timeout-Ms" in (await answer.json())["message"]


async def test_a_body_that_does_not_come_is_waited_for_until_the_deadline(endpoint: Opened) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    headers = {**JSON, "Connect-Timeout-Ms": "100"}
    async with endpoint.session.post(RERANK, data=never(), headers=headers) as answer:
        assert answer.status == 504
        assert "before the request was read" in (await answer.json())["message"]


class Held:
    """Delays the first batch until a test releases it."""

    def __init__(self) -> None:
        self.running, self.may_run = threading.Event(), threading.Event()
        self.batches = 0

    def __call__(self, inputs: Sequence[EncoderInput]) -> None:
        self.batches += 1
        self.running.set()
        self.may_run.wait(60)


async def test_the_work_of_a_caller_that_hangs_up_leaves_the_queue(open_endpoint: OpenEndpoint) -> None:
    held = Held()
    long = {"query": "sea", "documents": [{"text": "the river meets the sea " * 280}] * 20}
    async with open_endpoint(before=held) as endpoint:
        call = asyncio.create_task(endpoint.post(RERANK, long))
        await until(held.running.is_set)
        await until(lambda: endpoint.bench.waiting() > 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: endpoint.count("cancellations_total", ranker="maxp") == 1)
        # It is counted as ended one turn of the loop later.
        await until(lambda: endpoint.count("requests_in_flight", method="Rerank") == 0)
        held.may_run.set()
        await until(lambda: endpoint.bench.waiting() == 0)
        assert endpoint.bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        done = held.batches
        # The next call runs at once, and no more of the cancelled one runs.
        assert (await endpoint.post(RERANK, {"query": "sea", "documents": [{"text": "a"}]}))[0] == 200
        assert held.batches == done + 1
        assert endpoint.count("requests_total", method="Rerank", ranker="maxp", code="CANCELLED") == 1


async def test_a_draining_server_refuses_new_calls_and_answers_the_admitted(
    open_endpoint: OpenEndpoint,
) -> None:
    held = Held()
    async with open_endpoint(before=held) as endpoint:
        async with endpoint.session.get("/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "serving"})
        admitted = asyncio.create_task(endpoint.post(RERANK, REQUEST))
        await until(held.running.is_set)
        endpoint.listener.report(serving=False)
        draining = asyncio.create_task(endpoint.engine.drain(60))
        await asyncio.sleep(0)
        async with endpoint.session.post(RERANK, json=REQUEST) as late:
            assert (late.status, late.headers["Retry-After"]) == (503, "1")
            assert "draining" in (await late.json())["message"]
        async with endpoint.session.get("/health") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert endpoint.count("rejections_total", ranker="maxp", reason="draining") == 1
        held.may_run.set()
        status, answered = await admitted
        assert (status, len(answered["results"])) == (200, len(TEXTS))
        assert await draining


async def test_too_many_calls_are_refused_with_a_hint(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint(limits=LimitsConfig(max_concurrent_calls=1)) as endpoint:
        waiting = asyncio.Event()

        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            waiting.set()
            await asyncio.Event().wait()

        reading = []
        for _ in range(2):
            reading.append(asyncio.create_task(endpoint.session.post(RERANK, data=never(), headers=JSON)))
            await asyncio.wait_for(waiting.wait(), 60)
            waiting.clear()

        async def refused() -> bool:
            async with endpoint.session.post(RERANK, json=REQUEST) as answer:
                said: dict[str, Any] = await answer.json()
                return answer.status == 429 and "HTTP requests are open, as many as" in said["message"]

        async with asyncio.timeout(60):
            while not await refused():
                pass
        for each in reading:
            each.cancel()
        # Calls that have gone make room.
        async with asyncio.timeout(60):
            while await refused():
                pass
        assert endpoint.count("rejections_total", ranker="", reason=Reason.CALLS) > 0


async def test_a_caller_learns_of_a_bug_only_that(
    endpoint: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(endpoint.engine, "scorer_of", fail)
    status, said = await endpoint.post(RERANK, REQUEST)
    assert (status, said) == (500, {"code": "internal", "message": "the server failed; its log says why"})
    # An error's message could contain a caller's words.
    assert "KeyError" in caplog.text
    assert "in fail" in caplog.text
    assert "'secret'" not in caplog.text.replace('raise KeyError("secret")', "")


@pytest.mark.parametrize(
    ("reader", "path", "status", "said"),
    [
        (JsonExchange, RERANK, 500, {"code": "internal", "message": FAILED}),
        (RerankExchange, "/voyage/rerank", 500, {"detail": FAILED}),
        (RerankExchange, "/invocations", 424, {"error": FAILED, "error_type": "Backend"}),
    ],
)
async def test_a_bug_while_a_body_is_read_is_reported_and_counted(
    endpoint: Opened,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    reader: type[Any],
    path: str,
    status: int,
    said: dict[str, Any],
) -> None:
    def fail(self: Any, body: bytes, limits: LimitsConfig, caller: Caller) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(reader, "read", fail)
    assert await endpoint.post(path, REQUEST) == (status, said)
    # An error's message could contain a caller's words.
    assert "KeyError" in caplog.text
    assert "in fail" in caplog.text
    assert "'secret'" not in caplog.text.replace('raise KeyError("secret")', "")
    await until(lambda: endpoint.count("requests_total", method="Rerank", ranker="", code="INTERNAL") == 1)
    assert endpoint.count("requests_in_flight", method="Rerank") == 0


async def test_an_encoding_that_is_not_known_is_refused_in_the_words_of_each_client(endpoint: Opened) -> None:
    message = "Content-Encoding: is 'br'; it must be gzip or identity"
    reason = {"message": message, "type": "Unimplemented", "param": None, "code": 415}
    for path, status, said in (
        (RERANK, 501, {"code": "unimplemented", "message": message}),
        ("/v2/rerank", 415, {"message": message, "detail": message, "error": reason}),
        ("/voyage/rerank", 415, {"detail": message}),
        ("/invocations", 415, {"error": message, "error_type": "Validation"}),
    ):
        got, body = await endpoint.post(path, REQUEST, Content_Encoding="br")
        assert got == status
        assert said.items() <= body.items()
    assert (await endpoint.post(RERANK, REQUEST, Content_Encoding="Identity"))[0] == 200


async def post_bytes(endpoint: Opened, body: bytes) -> tuple[int, Any]:
    headers = {**JSON, "Content-Encoding": "gzip"}
    async with endpoint.session.post(RERANK, data=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_gzip_body_is_unpacked(endpoint: Opened) -> None:
    text = json.dumps(REQUEST).encode()
    wanted = (await endpoint.post(RERANK, REQUEST))[1]["results"]
    for body in (gzip.compress(text), gzip.compress(text[:20]) + gzip.compress(text[20:])):
        status, said = await post_bytes(endpoint, body)
        assert (status, said["results"]) == (200, wanted)
    # An empty body is refused, whatever its content type.
    status, said = await post_bytes(endpoint, b"")
    assert (status, said["code"]) == (400, "invalid_argument")
    assert said["message"].startswith("query: ")


async def test_a_gzip_body_is_unpacked_no_further_than_to_the_limit(open_endpoint: OpenEndpoint) -> None:
    text = json.dumps(REQUEST).encode()
    async with open_endpoint(limits=LimitsConfig(max_request_bytes=10_000)) as endpoint:
        for body, status, message in (
            (
                gzip.compress(text + b" " * 10**7),
                413,
                "request: has more than 10000 bytes after decompression",
            ),
            (gzip.compress(text) + gzip.compress(b" " * 10_000), 413, "request: has more than 10000 bytes"),
            (gzip.compress(text)[:-9], 400, "request: its gzip data is incomplete"),
            (text, 400, "request: is not valid gzip, although Content-Encoding is gzip: "),
            (
                gzip.compress(text) + b"rubbish",
                400,
                "request: is not valid gzip, although Content-Encoding is gzip: ",
            ),
        ):
            got, said = await post_bytes(endpoint, body)
            assert (got, said["message"][: len(message)]) == (status, message)


async def test_paths_that_lead_nowhere(endpoint: Opened) -> None:
    status, said = await endpoint.post("/nowhere", {})
    assert (status, said["message"]) == (404, "POST /nowhere: no such path")
    async with endpoint.session.delete("/health") as answer:
        assert answer.status == 405


async def test_an_end_cuts_what_does_not_end_by_itself(
    open_endpoint: OpenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_endpoint() as endpoint:
        waiting = asyncio.Event()

        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            waiting.set()
            await asyncio.Event().wait()

        call = asyncio.create_task(endpoint.session.post(RERANK, data=never(), headers=JSON))
        await waiting.wait()
        async with asyncio.timeout(60):
            await endpoint.listener.close(0)
        async with await call as answer:
            assert answer.status == 503
    assert "Exception in ASGI" not in caplog.text

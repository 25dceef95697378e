"""Each call has an id, which both endpoints return, and a log line without any words of the caller."""

import asyncio
import gzip
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.telemetry import line_rate
from farrank_calls.telemetry.log_output import JsonLines, LineWriter, TextLines, dropped_lines
from farrank_client import FarrankError, InvalidArgument
from farrank_client.errors import from_grpc
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Encoding
from farrank_server.metrics import Metrics
from farrank_server.service import guard
from support.keyed_endpoints import Endpoints
from support.waiting import until

Lines = Callable[[], list[dict[str, Any]]]

RERANK = "/farrank.v1.RerankService/Rerank"
MADE = re.compile(r"[0-9a-f]{32}")

# The mark is wherever a caller can write. Nothing else writes it.
MARK = "quokkasaurus"
TEXT = f"the {MARK} rises in the mountains"


def call_lines(lines: Lines) -> list[dict[str, Any]]:
    return [each for each in lines() if each["logger"] == "farrank.calls"]


async def told_of(lines: Lines, count: int) -> list[dict[str, Any]]:
    """Wait for the lines of a number of calls: each is written a moment after its answer."""
    await until(lambda: len(call_lines(lines)) >= count)
    told = call_lines(lines)
    assert len(told) == count, told
    return told


def id_of(call: Any) -> str:
    return str(dict(call)["x-request-id"])


async def through_grpc(
    endpoints: Endpoints, method: str, request: Any, *metadata: tuple[str, str]
) -> tuple[str, str, str]:
    """Make a call over gRPC. Returns its code, the returned id, and its message."""
    call = getattr(endpoints.stub, method)(request, metadata=metadata, timeout=30)
    code = await call.code()
    return code.name, id_of(await call.trailing_metadata()), await call.details()


async def through_http(
    endpoints: Endpoints, path: str, body: Any, key: str, **headers: str
) -> tuple[int, str, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
    async with endpoints.http.post(path, data=data, headers=sent) as answer:
        return answer.status, answer.headers["x-request-id"], await answer.text()


async def test_a_call_is_logged_under_the_id_in_its_answer(endpoints: Endpoints, lines: Lines) -> None:
    key = await endpoints.key("team")
    shown = ("x-api-key", key)
    request = pb.RerankRequest(query="q", documents=[pb.Document(id="a", text=TEXT)])
    assert (await through_grpc(endpoints, "Rerank", request, shown, ("x-request-id", "My-1/id:x")))[
        1
    ] == "My-1/id:x"
    own = {"query": "q", "documents": [{"text": TEXT}]}
    assert (await through_http(endpoints, RERANK, own, key, **{"X-Request-Id": "b" * 64}))[1] == "b" * 64
    first, second = await told_of(lines, 2)
    assert first.pop("request_id") == "My-1/id:x"
    assert second.pop("request_id") == "b" * 64
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert [first[name] for name in ("level", "logger", "message")] == ["info", "farrank.calls", "call"]
    named = ("door", "method", "code", "ranker", "key", "results", "chunks")
    assert [first[name] for name in named] == ["grpc", "Rerank", "OK", "maxp", "team", 1, 1]
    assert first["tokens"] > 5
    assert 0 < first["inference_seconds"] < first["seconds"] < 30
    assert (second["door"], second["key"]) == ("http", "team")


async def test_calls_that_fail_have_ten_lines_a_minute_for_each_caller_and_reason(
    endpoints: Endpoints, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, other = [await endpoints.key(name) for name in ("team", "other")]
    wrong, unknown = pb.RerankRequest(), pb.RerankRequest(query="q", options=pb.RerankOptions(ranker="none"))
    unknown.documents.add(text="a")
    for _ in range(14):
        assert (await through_grpc(endpoints, "Rerank", wrong, ("x-api-key", team)))[0] == "INVALID_ARGUMENT"
    for key in ("guessed", "another"):
        for _ in range(7):
            assert (await through_grpc(endpoints, "Rerank", wrong, ("x-api-key", key)))[
                0
            ] == "UNAUTHENTICATED"
    # Another code, another caller, and finally one more after a minute.
    await through_grpc(endpoints, "Rerank", unknown, ("x-api-key", team))
    await through_grpc(endpoints, "Rerank", wrong, ("x-api-key", other))
    monkeypatch.setattr(line_rate, "EVERY_S", 0.0)
    await through_grpc(endpoints, "Rerank", wrong, ("x-api-key", team))
    told = [(each["code"], each.get("key"), each.get("left_out")) for each in await told_of(lines, 23)]
    assert told == [
        *[("INVALID_ARGUMENT", "team", None)] * 10,
        *[("UNAUTHENTICATED", None, None)] * 10,
        ("NOT_FOUND", "team", None),
        ("INVALID_ARGUMENT", "other", None),
        ("INVALID_ARGUMENT", "team", 4),
    ]
    labels = {"door": "grpc", "method": "Rerank", "ranker": "maxp"}
    assert endpoints.count("requests_total", **labels, code="INVALID_ARGUMENT") == 16


@pytest.mark.parametrize("given", [None, "", "b" * 65, "two words", "a\tb", "<id>", "é", "a,b"])
async def test_an_id_that_is_none_is_replaced(endpoints: Endpoints, lines: Lines, given: str | None) -> None:
    key = await endpoints.key("team")
    headers = {} if given is None else {"X-Request-Id": given}
    status, answered, _ = await through_http(endpoints, RERANK, {"query": "q"}, key, **headers)
    assert status == 400
    assert MADE.fullmatch(answered)
    (line,) = await told_of(lines, 1)
    assert line["request_id"] == answered


async def test_every_http_answer_has_an_id(endpoints: Endpoints) -> None:
    for path in ("/health", "/nowhere", "/openapi.json"):
        async with endpoints.http.get(path, headers={"X-Request-Id": "here"}) as answer:
            assert answer.headers.getall("x-request-id") == ["here"]


async def test_a_client_learns_the_id_of_what_failed(endpoints: Endpoints) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await endpoints.stub.Rerank(
            pb.RerankRequest(), metadata=(("x-api-key", await endpoints.key("team")), ("x-request-id", "its"))
        )
    error: FarrankError = from_grpc(caught.value)
    assert isinstance(error, InvalidArgument)
    assert error.request_id == "its"


def requests_that_are_wrong() -> list[tuple[str, Any]]:
    """Requests for every kind of error that a caller can cause, with the mark wherever a caller can write."""
    document = pb.Document(id=MARK, text=TEXT)

    def rerank(**fields: Any) -> tuple[str, Any]:
        return "Rerank", pb.RerankRequest(**{"query": TEXT, "documents": [document], **fields})

    return [
        rerank(query=" "),
        rerank(documents=[]),
        rerank(documents=[document, document]),
        rerank(documents=[pb.Document(id=MARK, text=TEXT, index=MARK)]),
        rerank(documents=[pb.Document(id=MARK, index=MARK)]),
        rerank(options=pb.RerankOptions(ranker=MARK)),
        rerank(options=pb.RerankOptions(max_chunks=-1)),
        ("SearchAndRerank", pb.SearchAndRerankRequest(query=TEXT, index=MARK)),
        ("SearchAndRerank", pb.SearchAndRerankRequest(query=TEXT, index="things", k=-1)),
        ("SearchAndRerank", pb.SearchAndRerankRequest(query=TEXT)),
    ]


BODIES: list[tuple[str, Any]] = [
    (RERANK, {"query": TEXT, "documents": [{"id": MARK}], MARK: MARK}),
    (RERANK, {"query": TEXT, "documents": [{"id": MARK, "text": {MARK: MARK}}]}),
    (RERANK, {"query": TEXT, "documents": [{"text": TEXT}], "options": {"ranker": MARK}}),
    (RERANK, {"query": TEXT, "documents": [{"text": TEXT}], "options": {"maxChunks": MARK}}),
    (RERANK, {"query": TEXT, "documents": [{"text": TEXT}], "options": {"scoreScale": MARK}}),
    (RERANK, f'{{"query": {MARK}'.encode()),
    (RERANK, f'{{"query": "\\ud800 {MARK}"}}'.encode()),
    (RERANK, MARK.encode() + b"\xff"),
    ("/farrank.v1.RerankService/SearchAndRerank", {"query": TEXT, "index": MARK, "k": MARK}),
    ("/v2/rerank", {"model": MARK, "query": TEXT, "documents": [TEXT]}),
    ("/v2/rerank", {"query": TEXT, "documents": TEXT}),
    ("/v2/rerank", {"query": TEXT, "documents": [{MARK: TEXT}]}),
    ("/v1/rerank", {"query": TEXT, "documents": [{"a": TEXT}], "rank_fields": [MARK]}),
    ("/v1/rerank", {"query": TEXT, "documents": [{MARK: [[[[TEXT]]]]}], "rank_fields": [MARK], "top_n": -1}),
    ("/rerank", {"query": TEXT, "texts": [TEXT], "top_n": MARK}),
    ("/voyage/rerank", {"query": TEXT, "documents": [TEXT], "top_k": -3, "model": MARK}),
]


async def test_nothing_that_a_caller_wrote_stands_in_a_line(
    endpoints: Endpoints, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_rate, "MAX_LINES", 1000)
    open_key, bound = (
        await endpoints.key("team"),
        await endpoints.key("bound", rankers=["maxp"], indexes=["things"]),
    )
    ids: list[str] = []
    codes = set()
    bad_id = ("x-request-id", f"{MARK} and more")

    async def ask(method: str, request: Any, *shown: tuple[str, str]) -> None:
        code, its_id, _ = await through_grpc(endpoints, method, request, *shown, bad_id)
        codes.add(code)
        ids.append(its_id)

    async def post(path: str, body: Any, key: str, **headers: str) -> None:
        _, its_id, said = await through_http(
            endpoints, path, body, key, **headers, **{"X-Request-Id": bad_id[1]}
        )
        ids.append(its_id)
        assert said

    for key in (open_key, bound):
        for method, request in requests_that_are_wrong():
            await ask(method, request, ("x-api-key", key))
        for path, body in BODIES:
            await post(path, body, key)
    good = pb.RerankRequest(query=TEXT, documents=[pb.Document(id=MARK, text=TEXT)])
    await ask("Rerank", good, ("x-api-key", MARK))
    await ask("Rerank", good, ("authorization", f"{MARK} {MARK}"))
    await post(RERANK, {}, MARK)
    await post(RERANK, {}, open_key, **{"Connect-Timeout-Ms": MARK})
    await post(RERANK, {}, open_key, **{"Content-Encoding": MARK})
    await post(RERANK, gzip.compress(TEXT.encode()) + TEXT.encode(), open_key, **{"Content-Encoding": "gzip"})
    bytes_alone: Any = endpoints.channel.unary_unary("/farrank.v1.RerankService/Rerank")
    broken = bytes_alone(b"\x0a\xff" + MARK.encode(), metadata=(("x-api-key", open_key), bad_id))
    assert await broken.code() is grpc.StatusCode.INVALID_ARGUMENT
    ids.append(id_of(await broken.trailing_metadata()))
    await ask("Rerank", good, ("x-api-key", open_key))
    # A bug whose error message contains the query.
    engine = endpoints.bench.engine

    def fail(ranker: Any) -> None:
        raise KeyError(f"no such thing as {TEXT}") from ValueError(TEXT)

    with monkeypatch.context() as broken_server:
        broken_server.setattr(engine, "scorer_of", fail)
        await ask("Rerank", good, ("x-api-key", open_key))
        await post(RERANK, {"query": TEXT, "documents": [{"text": TEXT}]}, open_key)
    told = await told_of(lines, len(ids))
    assert not [each for each in lines() if MARK in json.dumps(each)]
    assert sorted(each["request_id"] for each in told) == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert codes >= {
        "OK",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "INTERNAL",
    }
    fields = {each.get("field") for each in told}
    assert {"query", "documents", "documents[1].id", "options.ranker", "index", "k", "top_n"} <= fields
    (first, second) = [each for each in lines() if "failed" in each["message"]]
    assert {first["request_id"], second["request_id"]} == {told[-1]["request_id"], told[-2]["request_id"]}
    assert first["message"].startswith("Rerank failed: KeyError from ValueError\n")
    assert "in fail" in first["message"]


async def test_a_share_of_successful_calls_is_logged(
    endpoints: Endpoints, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter([0.5, 1.0, 0.99])
    monkeypatch.setattr(guard, "random", SimpleNamespace(random=lambda: next(drawn)))
    key = await endpoints.key("team")
    request = pb.RerankRequest(query="q", documents=[pb.Document(id="a", text="b")])
    endpoints.sample(0.99)
    for name in ("first", "second", "third"):
        await through_grpc(endpoints, "Rerank", request, ("x-api-key", key), ("x-request-id", name))
    # Failures are always logged, and no random number is drawn for them.
    await through_grpc(
        endpoints, "Rerank", pb.RerankRequest(), ("x-api-key", key), ("x-request-id", "fourth")
    )
    told = await told_of(lines, 2)
    assert [each["request_id"] for each in told] == ["first", "fourth"]


async def test_a_call_whose_caller_has_gone_has_a_line(
    endpoints: Endpoints, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, runtime, released = await endpoints.key("team"), endpoints.bench.runtimes["maxp"], threading.Event()
    encode = runtime.encode

    def encode_once_released(inputs: Sequence[EncoderInput]) -> Encoding:
        assert released.wait(60)
        return encode(inputs)

    # The answer cannot come before the caller has gone.
    monkeypatch.setattr(runtime, "encode", encode_once_released)
    call = endpoints.stub.Rerank(
        pb.RerankRequest(query="q", documents=[pb.Document(id="a", text=TEXT)]),
        metadata=(("x-api-key", key), ("x-request-id", "gone")),
    )
    try:
        await until(lambda: endpoints.count("requests_in_flight", door="grpc", method="Rerank") == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (line,) = await told_of(lines, 1)
    finally:
        released.set()
    assert (line["code"], line["request_id"]) == ("CANCELLED", "gone")


def record(message: str, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("farrank.test").makeRecord(
        "farrank.test", logging.WARNING, "here.py", 1, message, (), None, extra=extra
    )


def test_a_line_is_one_line_whatever_it_holds() -> None:
    text = JsonLines().format(record("one\ntwo \ud800 \x1b[31m", fields={"seconds": 0.25}))
    assert "\n" not in text
    assert text.isascii()
    assert json.loads(text)["message"] == "one\ntwo \ud800 \x1b[31m"
    assert (
        TextLines()
        .format(record("call", fields={"code": "OK", "seconds": 0.25}))
        .endswith("WARNING farrank.test: call code=OK seconds=0.25")
    )


def test_a_log_that_is_not_read_blocks_no_call() -> None:
    before = dropped_lines["not_read"]
    reading, writing = os.pipe()
    writer = LineWriter(writing, max_waiting=100)
    writer.setFormatter(TextLines())
    for number in range(2000):
        writer.handle(record(f"line {number} {'x' * 1000}"))
    # Nothing is read until here. A writer that waited would never have come this far.
    with ThreadPoolExecutor(1) as reader, open(reading, encoding="utf-8") as log:
        read = reader.submit(log.read)
        writer.flush()
        writer.handle(record("the last"))
        writer.flush()
        os.close(writing)
        text = read.result()
    dropped = sum(int(each) for each in re.findall(r"(\d+) lines of the log were dropped", text))
    assert dropped > 1000
    assert dropped_lines["not_read"] - before == dropped
    assert text.count(" line ") + dropped == 2000
    assert text.endswith("the last\n")


def test_a_log_without_a_reader_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing)
    writer.handle(record("one"))
    writer.handle(record("two"))
    writer.flush()
    os.close(writing)


def test_lines_that_a_full_disk_takes_are_counted() -> None:
    metrics = Metrics()

    def counted() -> float:
        return (
            metrics.registry.get_sample_value("farrank_log_lines_dropped_total", {"reason": "not_written"})
            or 0
        )

    before = counted()
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        writer = LineWriter(full)
        writer.setFormatter(TextLines())
        for number in range(3):
            writer.handle(record(f"line {number}"))
        writer.flush()
        assert counted() - before == 3
    finally:
        os.close(full)

"""The errors that callers get when something fails, and the counts."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_calls.errors import (
    DeadlineExceeded,
    DroppedAt,
    FarrankError,
    Internal,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from farrank_server.access.callers import Entry
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service import guard
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.handlers import handlers
from support.waiting import until


class Scripted(RerankService):
    """Runs a test's function for every Rerank call."""

    def __init__(self) -> None:
        self.behave: Callable[[], Awaitable[pb.RerankResponse]] = self.answer

    async def answer(self) -> pb.RerankResponse:
        return pb.RerankResponse(query_tokens_cut=7)

    async def Rerank(
        self, request: pb.RerankRequest, deadline_s: float | None, entry: Entry
    ) -> pb.RerankResponse:
        return await self.behave()


LIMITS = LimitsConfig(max_request_bytes=300)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest_asyncio.fixture
async def channel(scripted: Scripted, metrics: Metrics) -> AsyncIterator[grpc.aio.Channel]:
    endpoint = GrpcListener(ListenConfig(port=0), LIMITS)
    await endpoint.open(
        handlers(
            scripted,
            Guard(Endpoint.GRPC, metrics, {"maxp"}, "maxp"),
            LIMITS,
            UnreadAnswers(LIMITS, metrics),
            ReceivingBudget(LIMITS, metrics),
        )
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.port}") as opened:
        yield opened
    await endpoint.close(0)


def stub_of(channel: grpc.aio.Channel | grpc.Channel) -> Any:
    return rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


async def refusal(channel: grpc.aio.Channel, **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub_of(channel).Rerank(pb.RerankRequest(query="q"), **options)
    return caught.value


async def counted(expected: int, metrics: Metrics, name: str, **labels: str) -> None:
    """Wait until a counter has a value: it changes while the answer is on its way."""
    await until(lambda: count(metrics, name, **labels) == expected)


def count(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"farrank_{name}", {"door": "grpc", **labels}) or 0.0


async def test_an_answer_passes_and_is_counted(channel: grpc.aio.Channel, metrics: Metrics) -> None:
    answer = await stub_of(channel).Rerank(pb.RerankRequest(query="q"))
    assert answer.query_tokens_cut == 7
    await counted(1, metrics, "requests_total", method="Rerank", ranker="maxp", code="OK")
    await counted(0, metrics, "requests_in_flight", method="Rerank")


async def test_an_error_keeps_nothing_of_its_call(scripted: Scripted, channel: grpc.aio.Channel) -> None:
    """The endpoint keeps the last error until the next call, but not its cause, which may refer to texts."""
    held: list[weakref.ref[Metrics]] = []

    async def fail() -> pb.RerankResponse:
        texts = Metrics()
        held.append(weakref.ref(texts))

        def read() -> None:
            raise ValueError(type(texts).__name__)

        try:
            read()
        except ValueError as error:
            raise Unavailable("the reader ended") from error
        raise AssertionError("it was read")

    scripted.behave = fail
    gc.disable()
    try:
        await refusal(channel)
        await until(lambda: held[0]() is None)
    finally:
        gc.enable()


async def test_a_request_of_too_many_bytes_is_refused(channel: grpc.aio.Channel, metrics: Metrics) -> None:
    query = "q" * (300 - len(pb.RerankRequest(query="q" * 200).SerializeToString()) + 200)
    await stub_of(channel).Rerank(pb.RerankRequest(query=query))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub_of(channel).Rerank(pb.RerankRequest(query=query + "q"))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "request: has 301 bytes; max_request_bytes is 300"
    await counted(1, metrics, "requests_total", method="Rerank", ranker="", code="INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("error", "hint", "counter", "labels"),
    [
        (InvalidArgument("query: is empty"), None, "", {}),
        (NotFound("no ranker"), None, "", {}),
        (
            ResourceExhausted("full", reason=Reason.QUEUE_FULL, retry_after_ms=250),
            "250",
            "rejections_total",
            {"reason": "queue_full"},
        ),
        (
            Unavailable("draining", reason=Reason.DRAINING),
            None,
            "rejections_total",
            {"reason": "draining"},
        ),
        (
            DeadlineExceeded("hopeless", reason=Reason.DEADLINE_TOO_SHORT),
            None,
            "rejections_total",
            {"reason": "deadline_too_short"},
        ),
        (
            DeadlineExceeded("late", dropped_at=DroppedAt.FIRST_STAGE),
            None,
            "deadline_drops_total",
            {"stage": "first_stage"},
        ),
        (Internal("a bug"), None, "", {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FarrankError) else "",
)
async def test_each_error_has_its_code_its_message_and_its_hint(
    channel: grpc.aio.Channel,
    scripted: Scripted,
    metrics: Metrics,
    error: FarrankError,
    hint: str | None,
    counter: str,
    labels: dict[str, str],
) -> None:
    async def fail() -> pb.RerankResponse:
        raise error

    scripted.behave = fail
    seen = await refusal(channel)
    assert (seen.code(), seen.details()) == (error.code, error.message)
    trailing = dict(seen.trailing_metadata() or ())
    assert trailing.get("grpc-retry-pushback-ms") == hint
    await counted(1, metrics, "requests_total", method="Rerank", ranker="maxp", code=error.code.name)
    for name in ("rejections_total", "deadline_drops_total"):
        if name == counter:
            await counted(1, metrics, name, ranker="maxp", **labels)


@pytest.mark.parametrize("fails", [True, False])
async def test_answers_to_callers_that_go_at_that_moment_are_not_logged(
    scripted: Scripted, metrics: Metrics, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """At a deadline gRPC may find that it cannot send the answer. Nobody can do anything about that."""
    timeout_s, rounds, together = 0.01, 150, 4
    begun = itertools.count()

    async def answer() -> pb.RerankResponse:
        # From half a millisecond before the deadline to two milliseconds after it.
        await asyncio.sleep(timeout_s - 0.0005 + 0.0025 * (next(begun) % 50) / 50)
        if fails:
            raise DeadlineExceeded("late")
        return pb.RerankResponse()

    def ask(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            rerank = stub_of(channel).Rerank
            for _ in range(rounds):
                for each in [rerank.future(pb.RerankRequest(), timeout=timeout_s) for _ in range(together)]:
                    each.exception()

    scripted.behave = answer
    endpoint = GrpcListener(ListenConfig(port=0), LIMITS)
    await endpoint.open(
        handlers(
            scripted,
            Guard(Endpoint.GRPC, metrics, {"maxp"}, "maxp"),
            LIMITS,
            UnreadAnswers(LIMITS, metrics),
            ReceivingBudget(LIMITS, metrics),
        )
    )
    try:
        await asyncio.to_thread(ask, endpoint.port)
    finally:
        await endpoint.close(0)
    assert not [each for each in caplog.records if each.name != "farrank.calls"], caplog.text


async def test_a_bug_is_logged_and_its_caller_learns_only_that(
    channel: grpc.aio.Channel, scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> pb.RerankResponse:
        raise KeyError("secret")

    scripted.behave = fail
    seen = await refusal(channel)
    assert (seen.code(), seen.details()) == (
        grpc.StatusCode.INTERNAL,
        "the server failed; its log says why",
    )
    # An error's message could contain a caller's words.
    assert "KeyError" in caplog.text
    assert "in fail" in caplog.text
    assert "'secret'" not in caplog.text.replace('raise KeyError("secret")', "")


def never_answered(scripted: Scripted) -> asyncio.Event:
    """Make all later calls wait forever. Returns an event that is set once the server has begun one."""
    entered = asyncio.Event()

    async def wait() -> pb.RerankResponse:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    scripted.behave = wait
    return entered


async def call_and_go(channel: grpc.aio.Channel, scripted: Scripted, timeout: float | None = None) -> None:
    """Cancel a call once the server has begun it. From then on no call is answered."""
    entered = never_answered(scripted)
    call = stub_of(channel).Rerank(pb.RerankRequest(query="q"), timeout=timeout)
    await asyncio.wait_for(entered.wait(), 60)
    call.cancel()


async def test_a_caller_that_goes_and_one_that_is_late_are_counted_apart(
    channel: grpc.aio.Channel, scripted: Scripted, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call_and_go(channel, scripted, timeout=600)
    await counted(1, metrics, "cancellations_total", ranker="maxp")
    # On a busy machine the server's clock starts long after the caller's.
    monkeypatch.setattr(guard, "LATE_S", 100.0)
    entered, timeout_s = never_answered(scripted), 0.2
    while not entered.is_set():
        assert (await refusal(channel, timeout=timeout_s)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        timeout_s *= 2
    await counted(1, metrics, "deadline_drops_total", ranker="maxp", stage="in_flight")
    await counted(1, metrics, "cancellations_total", ranker="maxp")


async def test_a_caller_that_goes_just_before_its_deadline_was_late(
    channel: grpc.aio.Channel, scripted: Scripted, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's clock started before the server's."""
    monkeypatch.setattr(guard, "LATE_S", 100.0)
    await call_and_go(channel, scripted, timeout=60)
    await counted(1, metrics, "deadline_drops_total", ranker="maxp", stage="in_flight")
    assert count(metrics, "cancellations_total", ranker="maxp") == 0


async def test_bytes_that_are_no_request_and_names_of_the_callers_own(
    channel: grpc.aio.Channel, metrics: Metrics
) -> None:
    send: Any = channel.unary_unary("/farrank.v1.RerankService/Rerank")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(b"\x0a\x02\xff\xfe")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not a valid message of this method" in (caught.value.details() or "")
    request = pb.RerankRequest(query="q", options=pb.RerankOptions(ranker="a name of the caller's own"))
    await stub_of(channel).Rerank(request)
    await counted(1, metrics, "requests_total", method="Rerank", ranker="unknown", code="OK")

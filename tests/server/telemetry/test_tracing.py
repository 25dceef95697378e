"""The choice of traced calls, and the links between their traces and the batches that they shared."""

import asyncio
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from pathlib import Path

import grpc
import pytest

from farrank_calls.telemetry import tracing
from farrank_calls.telemetry.call_record import CallRecord
from farrank_calls.telemetry.config import TracingConfig
from farrank_calls.telemetry.tracing import CallTrace, Tracing
from farrank_rankers.tokens import EncoderInput
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config
from farrank_server.engine.call import RerankCall, text_documents
from farrank_server.replica import check
from farrank_settings.errors import ConfigError
from farrank_settings.sources import Setting
from support.engine_bench import QUERY, Faulty, opened_bench
from support.otlp_collector import Collector, collecting
from support.waiting import until

NO_HEADERS: dict[str, str] = {}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    # On a busy machine the collector may need longer than an ending server waits.
    monkeypatch.setattr(tracing, "CLOSE_S", 60.0)
    with collecting() as opened:
        yield opened


def opened(collector: Collector, **options: float | bool) -> Tracing:
    return Tracing(TracingConfig(endpoint=collector.url, **options), "farrank")  # type: ignore[arg-type]


def begun(sender: Tracing, sent: dict[str, str] = NO_HEADERS) -> CallTrace | None:
    """Begin a trace in its own context, as endpoints do. It would otherwise be the parent of later ones."""
    return copy_context().run(sender.begin, sent.get)


def header(flags: str, number: int = 1) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-00f067aa0ba902b7-{flags}"}


def test_a_callers_decision_is_followed_or_not(collector: Collector) -> None:
    high, low = 2**64 - 1, 1
    for follow, sent, ratio, is_traced in (
        (True, NO_HEADERS, 0.0, False),
        (True, NO_HEADERS, 1.0, True),
        (True, header("01"), 0.0, True),
        (True, header("00"), 1.0, False),
        (True, {"traceparent": "00-what is this"}, 1.0, True),
        (False, header("01", high), 0.01, False),
        (False, header("01", low), 0.01, True),
        (False, header("00", low), 1.0, False),
    ):
        opened_here = opened(collector, sample_ratio=ratio, follow_callers=follow)
        found = begun(opened_here, sent)
        assert (found is not None) is is_traced, (follow, sent, ratio)
        if found is not None and "traceparent" in sent and sent != {"traceparent": "00-what is this"}:
            assert found.trace_id == sent["traceparent"].split("-")[1]
        opened_here.close()


async def test_a_batch_leads_to_all_traced_calls_that_shared_it(
    tiny_rankers: dict[str, Path], collector: Collector
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(inputs: Sequence[EncoderInput]) -> None:
        entered.set()
        go_on.wait(60)

    sender = opened(collector, sample_ratio=1.0)
    async with opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, hold)) as bench:

        async def ask(record: CallRecord) -> None:
            now_s = time.monotonic()
            documents = text_documents(("the river rises",))
            call = RerankCall("maxp", QUERY, documents, None, now_s, now_s + 60, record=record)
            await bench.engine.rerank(call)

        first = asyncio.create_task(ask(CallRecord("first")))
        assert await asyncio.to_thread(entered.wait, 60)
        records = [CallRecord(name, trace=begun(sender)) for name in ("second", "third")]
        others = [asyncio.create_task(ask(each)) for each in (*records, CallRecord("fourth"))]
        await until(lambda: bench.waiting() == 3)
        go_on.set()
        await asyncio.gather(first, *others)
    for record in records:
        assert record.trace is not None
        record.trace.end("a/call", grpc.StatusCode.OK, {})
    sender.close()
    (batch,) = collector.spans("batch")
    calls = collector.spans("a/call")
    assert batch.links == {each.span.span_id for each in calls}
    assert len(batch.links) == 2
    assert (batch.facts["farrank.calls"], batch.facts["farrank.inputs"]) == (3, 3)
    on_device = collector.spans("device")
    assert [each.links for each in on_device] == [{batch.span.span_id}] * 2
    assert sum(each.facts["farrank.tokens"] for each in on_device) * 3 == batch.facts["farrank.tokens"] * 2
    for waited in collector.spans("queue"):
        # Up to the rounding of clocks.
        assert abs(waited.span.end_time_unix_nano - batch.span.start_time_unix_nano) < 1e6
        assert waited.span.start_time_unix_nano < waited.span.end_time_unix_nano


def test_a_trace_has_no_more_spans_than_are_read(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_STEPS", 3)
    sender = opened(collector, sample_ratio=1.0)
    record = CallRecord("long", trace=begun(sender))
    for number in range(10):
        record.step("device", number, number + 1)
    assert record.trace is not None
    record.trace.end("a/call", grpc.StatusCode.OK, {})
    sender.close()
    assert len(collector.spans("device")) == 3
    assert collector.spans("a/call")[0].facts["farrank.steps_left_out"] == 7


def test_an_absent_collector_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 0.2)
    with collecting() as gone:
        pass
    sender = opened(gone, sample_ratio=1.0)
    found = begun(sender)
    assert found is not None
    found.end("a/call", grpc.StatusCode.OK, {})
    # OpenTelemetry itself would wait half a minute for it.
    started_s = time.monotonic()
    sender.close()
    assert time.monotonic() - started_s < 25


def test_without_its_packages_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    config = ServerConfig(tracing=TracingConfig(endpoint="http://127.0.0.1:4318"))
    with pytest.raises(ConfigError, match=re.escape("pip install 'farrank[otel]'")):
        check(config)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_has_the_usual_one(endpoint: str, url: str) -> None:
    assert TracingConfig(endpoint=endpoint).url == url


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("endpoint", value)
            for value in ("collector:4318", "http://", "http://a:x", "ftp://a", "http://a b")
        ),
        *(("sample_ratio", value) for value in ("-0.1", "1.5", "some")),
    ],
)
def test_an_invalid_endpoint_or_ratio_stops_the_start(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tracing\.{key}: "):
        build_config([Setting(("tracing", key), value, "here")])

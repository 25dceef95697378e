"""Traces of a server process, its search process and its client, as a collector receives them."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import AsyncClient, Client
from support.otlp_collector import Collector, collecting

CALL = "farrank.v1.RerankService/SearchAndRerank"
RERANK = "farrank.v1.RerankService/Rerank"

# A word that no other text contains.
MARK = "quokkasaurus"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as opened:
        yield opened


@pytest.fixture(scope="module")
def traced(
    collector: Collector, tiny_rankers: dict[str, Path], index_folder: Path
) -> Iterator[SpawnedServer]:
    """A server that traces only calls that their callers trace."""
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("maxp", "biencoder")]
    arguments += [f"--index=things={index_folder}", "--http-port=0", "--log-level=error"]
    arguments += [f"--set=tracing.endpoint={collector.url}", "--set=tracing.sample_ratio=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
        with spawned_server(arguments) as server:
            yield server


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    """An application's own tracer."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("an application")


async def test_a_call_is_one_trace_from_its_caller_to_lucene(
    traced: SpawnedServer, collector: Collector, tracer: trace.Tracer
) -> None:
    with Client(traced.address) as client, tracer.start_as_current_span("asking") as asking:
        ranking = client.search_and_rerank(f"the sea {MARK}")
    context = asking.get_span_context()
    trace_id = trace.format_trace_id(context.trace_id)
    (call,) = await collector.collected(1, CALL, trace_id)
    (lucene,) = await collector.collected(1, "lucene search", trace_id)
    spans = collector.spans(trace_id=trace_id)
    stages = ("first_stage", "tokenize", "queue", "device", "aggregate")
    assert {each.name for each in spans} == {CALL, "lucene search", *stages}
    (searched,) = collector.spans("first_stage", trace_id)
    (read,) = collector.spans("tokenize", trace_id)
    on_device = collector.spans("device", trace_id)
    assert call.span.parent_span_id == context.span_id.to_bytes(8, "big")
    assert call.span.kind == lucene.span.kind == Span.SPAN_KIND_SERVER
    for stage in (each.span for each in spans if each.name in stages):
        assert stage.parent_span_id == call.span.span_id, stage.name
        assert stage.start_time_unix_nano <= stage.end_time_unix_nano
        # The clocks are of one machine, but one may be set in the meantime.
        assert abs(stage.start_time_unix_nano - call.span.start_time_unix_nano) < 60e9
    # Lucene's own span, from another process, is a child of the search.
    assert lucene.span.parent_span_id == searched.span.span_id
    assert lucene.process["process.pid"] != call.process["process.pid"] == traced.process.pid
    assert (call.process["service.name"], lucene.process["service.name"]) == ("farrank", "farrank-search")
    assert call.process["deployment.environment"] == lucene.process["deployment.environment"] == "test"
    assert {each["x-tenant"] for each in collector.headers} == {"ours"}
    assert lucene.facts["farrank.index"] == searched.facts["farrank.index"] == "things"
    assert 0 <= lucene.facts["farrank.waited_seconds"] < 60
    # The figures of the call.
    usage = ranking.usage
    assert (call.facts["farrank.tokens"], call.facts["farrank.chunks"]) == (usage.tokens, usage.chunks)
    assert (call.facts["rpc.method"], call.facts["rpc.grpc.status_code"]) == ("SearchAndRerank", 0)
    assert call.facts["farrank.ranker"] == "maxp"
    assert len(call.facts["farrank.request_id"]) == 32
    # The encoder's tokens are known once chunks are chosen from these.
    assert "farrank.tokens" not in read.facts
    assert read.facts["farrank.chunks"] == sum(each.chunks_scored for each in ranking.results) > usage.chunks
    assert {(each.facts["farrank.ranker"], each.facts["farrank.runtime"]) for each in on_device} == {
        ("maxp", "torch")
    }
    assert sum(each.facts["farrank.inputs"] for each in on_device) == usage.pairs
    assert sum(each.facts["farrank.tokens"] for each in on_device) == usage.tokens
    # A batch is a trace of its own, and call and batch link to each other.
    batches = collector.spans("batch")
    assert {each.span.span_id for each in batches} == set.union(*(each.links for each in on_device))
    assert {link for each in batches for link in each.links} == {call.span.span_id}
    assert trace_id not in {each.trace_id for each in batches}
    assert sum(each.facts["farrank.padded_tokens"] for each in batches) == usage.padded_tokens
    assert {(each.facts["farrank.device"], each.facts["farrank.calls"]) for each in batches} == {("cpu", 1)}
    assert not [body for body in collector.bodies if MARK.encode() in body]


async def test_calls_without_a_trace_have_none(
    traced: SpawnedServer, collector: Collector, tracer: trace.Tracer
) -> None:
    unsampled = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False).get_tracer("an application")
    async with AsyncClient(traced.address) as client:
        await client.rerank("river", ["the river"])
        with unsampled.start_as_current_span("asking") as silent:
            await client.rerank("river", ["the river"])
        # Later spans are there, too.
        with tracer.start_as_current_span("asking") as asking:
            await client.rerank("river", ["the river"])
        await collector.collected(1, RERANK, trace.format_trace_id(asking.get_span_context().trace_id))
    assert not collector.spans(trace_id=trace.format_trace_id(silent.get_span_context().trace_id))
    assert len(collector.spans(RERANK)) == 1


async def test_a_call_through_http_and_one_that_fails(traced: SpawnedServer, collector: Collector) -> None:
    trace_id, parent = "5" * 32, "6" * 16
    request = urllib.request.Request(
        f"{traced.http_url}/{RERANK}",
        json.dumps({"query": "river", "documents": [{"text": MARK}]}).encode(),
        {"Content-Type": "application/json", "Traceparent": f"00-{trace_id}-{parent}-01"},
    )
    with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
        request_id = answer.headers["x-request-id"]
    (call,) = await collector.collected(1, RERANK, trace_id)
    assert call.span.parent_span_id.hex() == parent
    assert (call.facts["farrank.door"], call.facts["farrank.request_id"]) == ("http", request_id)
    trace_id = "7" * 32
    request.add_header("Traceparent", f"00-{trace_id}-{parent}-01")
    request.add_header("Connect-Timeout-Ms", "0")
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, request)
    refused.value.close()
    (late,) = await collector.collected(1, RERANK, trace_id)
    assert late.facts["rpc.grpc.status_code"] == 4
    assert late.span.status.code == Status.STATUS_CODE_ERROR
    # An exception's message could contain a caller's words.
    assert not late.span.status.message
    assert not late.span.events
    assert not [body for body in collector.bodies if MARK.encode() in body]

"""/metrics after calls of every kind."""

import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_cli.spawn import SpawnedServer
from farrank_client import Client, InvalidArgument, NotFound
from support.server_deadline import server_deadline

TEXTS = ["the river and the sea " * 150, "bread", ""]


def test_a_call_is_counted_at_every_stage(
    client: Client, metric: Callable[..., float], until: Callable[[Callable[[], bool]], None]
) -> None:
    names = {
        "farrank_requests_total": {"method": "Rerank", "ranker": "sump", "code": "OK"},
        "farrank_request_duration_seconds_count": {"method": "Rerank", "ranker": "sump"},
        "farrank_batch_pairs_sum": {"ranker": "sump"},
        "farrank_batch_tokens_sum": {"ranker": "sump"},
        "farrank_batch_padding_ratio_count": {"ranker": "sump"},
        "farrank_batch_duration_seconds_sum": {"ranker": "sump"},
        "farrank_encoded_tokens_total": {"ranker": "sump"},
        "farrank_padded_tokens_total": {"ranker": "sump"},
        "farrank_encoded_chunks_total": {"ranker": "sump"},
        "farrank_document_chunks_count": {"ranker": "sump"},
        "farrank_deciding_chunk_number_count": {"ranker": "sump"},
        "farrank_device_busy_seconds_total": {"device": "cpu"},
        "farrank_cut_tokens_total": {"ranker": "sump", "side": "query"},
    }
    names_by_stage = [("tokenization", 1), ("queue", 1), ("inference", 1), ("aggregation", 1)]
    before = {name: metric(name, **labels) for name, labels in names.items()}
    stages = {
        s: metric("farrank_stage_duration_seconds_count", ranker="sump", stage=s) for s, _ in names_by_stage
    }
    ranking = client.rerank("river " * 40, TEXTS, ranker="sump")
    usage, gained = ranking.usage, dict[str, float]()
    exact = {
        "farrank_encoded_chunks_total": usage.pairs,
        "farrank_batch_pairs_sum": usage.pairs,
        "farrank_padded_tokens_total": usage.padded_tokens,
        "farrank_batch_tokens_sum": usage.padded_tokens,
        "farrank_document_chunks_count": 3,
        "farrank_cut_tokens_total": 8,
    }

    def is_counted() -> bool:
        gained.update({name: metric(name, **labels) - before[name] for name, labels in names.items()})
        return all(gained.values()) and exact.items() <= gained.items()

    # The device's thread counts its work when the answer is already on its way.
    until(is_counted)
    for stage, count in stages.items():
        now = metric("farrank_stage_duration_seconds_count", ranker="sump", stage=stage)
        assert now == count + 1


@pytest.mark.parametrize("depth", ["adaptive", "all"])
def test_chunks_are_counted_as_read_scored_or_cut(
    client: Client,
    metric: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
    depth: Literal["adaptive", "all"],
) -> None:
    def counts() -> list[float]:
        states = ("read", "scored", "cut")
        chunks = [metric("farrank_chunks_total", ranker="sump", state=each) for each in states]
        return [*chunks, metric("farrank_stage_duration_seconds_count", ranker="sump", stage="selection")]

    before, is_adaptive = counts(), depth == "adaptive"
    ranking = client.rerank("river", ["the river rises " * 400], ranker="sump", depth=depth, max_chunks=3)
    (result,) = ranking.results
    only_scored = max(0, result.chunks_scored - result.chunks_read)
    gained = [result.chunks_read, only_scored, result.chunks_cut, is_adaptive]
    until(lambda: counts() == [old + new for old, new in zip(before, gained, strict=True)])
    assert (result.chunks_read > 0, only_scored > 0, result.chunks_cut > 0) == (
        True,
        is_adaptive,
        not is_adaptive,
    )
    assert (ranking.timings.selection_ns > 0) == is_adaptive


def test_failures_are_counted_by_code_and_where_they_were_noticed(
    client: Client,
    server: SpawnedServer,
    metric: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    codes = ("INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED")
    before = {code: metric("farrank_requests_total", code=code) for code in codes}
    refused = {"ranker": "biencoder", "reason": "deadline_too_short"}
    hopeless = metric("farrank_rejections_total", **refused)
    with pytest.raises(InvalidArgument):
        client.rerank("", TEXTS)
    with pytest.raises(NotFound):
        client.rerank("q", TEXTS, ranker="a-name-of-the-callers-own")
    # This takes seconds of work.
    request = pb.RerankRequest(query="q", options=pb.RerankOptions(ranker="biencoder"))
    request.documents.extend(pb.Document(text=f"{n} the river and the sea " * 700) for n in range(40))
    with (
        grpc.insecure_channel(server.address) as channel,
        pytest.raises(grpc.RpcError, match="at the measured speed"),
    ):
        rerank_pb2_grpc.RerankServiceStub(channel).Rerank(request, metadata=(server_deadline(0.5),))  # type: ignore[no-untyped-call]
    until(lambda: metric("farrank_requests_total", code=codes[2]) == before[codes[2]] + 1)
    for code in codes:
        assert metric("farrank_requests_total", code=code) == before[code] + 1
    assert metric("farrank_rejections_total", **refused) == hopeless + 1
    assert metric("farrank_requests_total", ranker="a-name-of-the-callers-own") == 0


def test_search_is_timed_by_index(client: Client, metric: Callable[..., float]) -> None:
    before = metric("farrank_first_stage_duration_seconds_count", index="things")
    client.search_and_rerank("sea", index="things")
    assert metric("farrank_first_stage_duration_seconds_count", index="things") == before + 1


def test_state_and_identity_are_shown(server: SpawnedServer, metric: Callable[..., float]) -> None:
    libraries = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
    releases = {runtime: version(package) for runtime, package in libraries.items()}
    assert metric("farrank_build_info", version="0.1.0", tensorrt="", **releases) == 1
    assert metric("process_resident_memory_bytes") > 2**20
    assert 0 < metric("process_open_fds") < metric("process_max_fds")
    assert metric("farrank_ranker_info", ranker="maxp", runtime="torch", device="cpu", precision="fp32") == 1
    assert metric("farrank_device_tokens_per_second", ranker="maxp") > 0
    assert metric("farrank_admitted_tokens_limit") == 200_000
    assert metric("farrank_requests_in_flight_limit") == 1000
    assert metric("farrank_held_characters_limit") == 256 * 2**20
    assert metric("farrank_cache_bytes_limit") == 256 * 2**20
    assert metric("farrank_held_characters") == 0
    assert metric("farrank_queue_tokens") == 0
    assert metric("farrank_queue_age_seconds") == 0
    with urllib.request.urlopen(server.metrics_url) as page:
        families = {
            line.split()[2] for line in page.read().decode().splitlines() if line.startswith("# TYPE")
        }
    assert all(name.startswith(("farrank_", "process_")) for name in families)
    assert metric("process_resident_memory_bytes") > 10 * 2**20
    assert metric("process_cpu_seconds_total") > 0


def test_counters_of_events_that_never_happened_are_shown_at_zero(server: SpawnedServer) -> None:
    with urllib.request.urlopen(server.metrics_url) as page:
        lines = page.read().decode().splitlines()
    assert 'farrank_batch_failures_total{ranker="avgp",reason="error"} 0.0' in lines
    assert 'farrank_rejections_total{door="grpc",ranker="avgp",reason="device_lost"} 0.0' in lines
    assert 'farrank_deadline_drops_total{door="grpc",ranker="firstp",stage="first_stage"} 0.0' in lines
    assert (
        'farrank_requests_total{code="INTERNAL",door="grpc",method="SearchAndRerank",ranker="avgp"} 0.0'
        in lines
    )

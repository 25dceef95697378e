"""A replica's answers to callers and load balancers over real sockets while its device is not ready."""

import asyncio
import gc
import json
import shutil
import threading
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_calls.errors import Unavailable
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Runtime
from farrank_server import run
from farrank_server.config.schema import DeviceConfig, HttpConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.call import ActiveCall
from farrank_server.engine.device import supervision, watchdog
from farrank_server.engine.device.device_loop import DeviceState
from farrank_server.listen import GrpcListener
from farrank_server.replica import Replica
from support.engine_bench import POISON, POISON_ID, TEXTS, Faulty, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_hung_device_is_reported_to_callers_and_health_until_its_restart(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "TICK_S", 0.02)
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)
    hung, may_load = threading.Event(), threading.Event()

    def hang(inputs: Sequence[EncoderInput]) -> None:
        hung.wait(60)

    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(hang_after_s=1.0),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        assert replica.metrics_url is None
        # The thread that takes over gets enough time: on a busy machine a healthy batch may take a second.
        replica.engine.device._hang_after_s = 60.0
        ranker = replica.engine.loaded["maxp"]
        ranker.runtime, load = Faulty(ranker.runtime, hang), ranker.load

        def load_later() -> Runtime:
            may_load.wait(60)
            return load()

        # Loading waits for this test, and must not count as a hang.
        ranker.load, ranker.load_s = load_later, 10.0
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        health = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(health)).status == SERVING
        liveness = health_pb2.HealthCheckRequest(service="liveness")
        alive = aiter(health_pb2_grpc.HealthStub(channel).Watch(liveness))
        assert (await anext(alive)).status == SERVING
        admitted = service.Rerank(request, timeout=60)
        assert (await anext(health)).status == NOT_SERVING
        assert (await anext(alive)).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="being recovered") as refused:
            await service.Rerank(request, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "grpc-retry-pushback-ms" in dict(refused.value.trailing_metadata())
        may_load.set()
        async with asyncio.timeout(120):
            assert (await anext(health)).status == SERVING
            assert (await anext(alive)).status == SERVING
        # The calls of the hung batch run once more.
        assert len((await admitted).results) == len(TEXTS)
        assert len((await service.Rerank(request, timeout=30)).results) == len(TEXTS)
        hung.set()


async def test_a_document_without_a_finite_score_is_refused_and_counted(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    """One token of this ranker has finite weights whose products are not finite."""
    folder = shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][POISON_ID] = 3e38
    save_file(tensors, folder / "model.safetensors")
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(folder))}, listen=ListenConfig(port=0, metrics_port=None)
    )
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        documents = [pb.Document(text=text) for text in ("a river", f"a {POISON}", "the sea")]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.Rerank(pb.RerankRequest(query="sea", documents=documents), timeout=30)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (refused.value.details() or "").startswith("ranker maxp: documents[1] has no finite score")
        assert "grpc-retry-pushback-ms" not in dict(refused.value.trailing_metadata() or ())
        others = await service.Rerank(pb.RerankRequest(query="sea", documents=documents[::2]), timeout=30)
        assert len(others.results) == 2

        def counted(name: str, **labels: str) -> float | None:
            return replica.metrics.registry.get_sample_value(name, {"ranker": "maxp", **labels})

        await until(
            lambda: (
                counted("farrank_rejections_total", door="grpc", reason="not_finite") == 1
                and counted("farrank_batch_failures_total", reason="not_finite") == 1
            )
        )


async def test_full_collections_are_rare_while_it_serves(tiny_rankers: dict[str, Path]) -> None:
    """With 1,000 calls in flight, a full collection blocks the event loop for tens of milliseconds."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    async with Replica(config):
        assert gc.get_threshold() == (*before[:2], 100)
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before


async def test_an_idle_replica_keeps_nothing_of_the_call_that_it_answered_last(
    tiny_rankers: dict[str, Path],
) -> None:
    """Its texts may be megabytes, and no other call may come for hours."""
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        await service.Rerank(request, timeout=30)
        await until(lambda: not in_flight())


@pytest.mark.parametrize("ranker", ["maxp", "both"])
async def test_calls_that_fail_leave_nothing_to_a_collection(
    tiny_rankers: dict[str, Path], tmp_path: Path, ranker: str
) -> None:
    """A call in a reference cycle with its error would keep its texts until a full, and rare, collection."""
    ensemble = tmp_path / "ensemble"
    save_ensemble(Ensemble({name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp")}), ensemble)
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"])), "both": RankerConfig(str(ensemble))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    request.options.ranker = ranker
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        await service.Rerank(request, timeout=30)
        go_on, device = threading.Event(), replica.engine.device

        def hold(inputs: Sequence[EncoderInput]) -> None:
            assert go_on.wait(60)

        for loaded in replica.engine.loaded.values():
            loaded.runtime = Faulty(loaded.runtime, hold)
        gc.collect()
        gc.disable()
        try:
            # Late, and then given up by the replica, which ends in the meantime.
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await service.Rerank(request, timeout=0.3)
            await until(lambda: not device._open)
            waiting = asyncio.ensure_future(service.Rerank(request, timeout=60))
            await until(lambda: bool(device._open))
            device.abandon(Unavailable("enough"))
            with pytest.raises(grpc.aio.AioRpcError, match="enough"):
                await waiting
            go_on.set()
            await until(lambda: not in_flight())
        finally:
            go_on.set()
            gc.enable()


async def test_a_member_that_is_cancelled_for_anothers_failure_leaves_nothing(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    ensemble = tmp_path / "ensemble"
    save_ensemble(Ensemble({name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp")}), ensemble)
    config = ServerConfig(
        rankers={"both": RankerConfig(str(ensemble))}, listen=ListenConfig(port=0, metrics_port=None)
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        go_on = threading.Event()

        def hold(inputs: Sequence[EncoderInput]) -> None:
            assert go_on.wait(60)

        for loaded in replica.engine.loaded.values():
            loaded.runtime = Faulty(loaded.runtime, hold)
        gc.collect()
        gc.disable()
        try:
            waiting = asyncio.ensure_future(service.Rerank(request, timeout=30))
            await until(lambda: len(in_flight()) == 2)
            in_flight()[0].settle(Unavailable("one is enough"))
            with pytest.raises(grpc.aio.AioRpcError, match="one is enough"):
                await waiting
            go_on.set()
            await until(lambda: not in_flight())
        finally:
            go_on.set()
            gc.enable()


async def test_calls_leave_no_requests_and_no_contexts_to_a_collection(tiny_rankers: dict[str, Path]) -> None:
    """A request may have megabytes, and with each context gRPC keeps kilobytes of its own."""
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    wrong = pb.RerankRequest(query="", documents=[pb.Document(text=text) for text in TEXTS])

    def kept(kind: str) -> int:
        return sum(type(each).__name__ == kind for each in gc.get_objects())

    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        await service.Rerank(request, timeout=30)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await service.Rerank(request, timeout=30)
            # The last call's task may be about to end.
            await until(lambda: kept("_ServicerContext") == 0)
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError, match="query"):
                    await service.Rerank(wrong, timeout=30)
            # These two existed before the replica, which froze them, so they are not listed.
            await until(lambda: kept("RerankRequest") == 0)
        finally:
            gc.enable()


def in_flight() -> list[ActiveCall]:
    return [each for each in gc.get_objects() if isinstance(each, ActiveCall)]


async def test_both_endpoints_of_a_replica_lead_to_one_engine(tiny_rankers: dict[str, Path]) -> None:
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)),
    )
    request = pb.RerankRequest(query="sea", documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        through_grpc = await service.Rerank(request, timeout=30)
        url = f"{replica.http_url}/farrank.v1.RerankService/Rerank"
        body = json_format.MessageToJson(request).encode()
        through_http = await asyncio.to_thread(ask, url, body)
        assert [(each["index"], each["score"]) for each in through_http["results"]] == [
            (each.index, pytest.approx(each.score, abs=1e-6)) for each in through_grpc.results
        ]
        for endpoint in ("grpc", "http"):
            labels = {"door": endpoint, "method": "Rerank", "ranker": "maxp", "code": "OK"}
            await until(
                partial(
                    lambda had: replica.metrics.registry.get_sample_value("farrank_requests_total", had) == 1,
                    labels,
                )
            )
        assert replica.http_url is not None
        assert await asyncio.to_thread(ask, f"{replica.http_url}/health") == {"status": "serving"}


def ask(url: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


async def test_a_device_that_fails_before_the_replica_is_open_is_not_served(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    replica = Replica(config)
    listen = GrpcListener.open

    async def open_late(listener: GrpcListener, *given: Any) -> None:
        await listen(listener, *given)
        replica.engine.device._change(DeviceState.RELOADING)

    monkeypatch.setattr(GrpcListener, "open", open_late)
    async with replica, grpc.aio.insecure_channel(replica.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        found = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert found.status == NOT_SERVING
        replica.engine.device._change(DeviceState.READY)
        found = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert found.status == SERVING


async def test_a_reload_that_fails_unexpectedly_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    class Reloaded:
        failures = 1
        done = 0

        async def reload(self) -> None:
            if self.failures:
                self.failures -= 1
                raise ZeroDivisionError("a bug")
            self.done += 1

    replica, asked = Reloaded(), asyncio.Event()
    reloading = asyncio.create_task(run._reload(replica, asked, None))  # type: ignore[arg-type]
    for _ in range(2):
        asked.set()
        await until(lambda: not asked.is_set())
    await until(lambda: replica.done == 1)
    assert "the reload failed" in caplog.text
    reloading.cancel()

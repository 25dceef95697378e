"""Rankers are swapped under load, over real sockets: no call is lost, and none is scored by two versions."""

import asyncio
import gc
import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import grpc
import pytest
import torch

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_calls.errors import FailedPrecondition
from farrank_first_stage.config import FirstStageConfig
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import DeviceLost
from farrank_server.config.schema import DepthConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.engine_bench import QUERY, TEXTS, Faulty, until

DOCUMENTS = [pb.Document(id=f"d{n}", text=text) for n, text in enumerate(TEXTS)]


def configured(folders: Mapping[str, Path]) -> ServerConfig:
    return ServerConfig(
        rankers={name: RankerConfig(str(folder)) for name, folder in folders.items()},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={}),
    )


def asked() -> pb.RerankRequest:
    return pb.RerankRequest(query=QUERY, documents=DOCUMENTS)


@pytest.fixture
def folder(tiny_rankers: dict[str, Path], tmp_path: Path) -> Path:
    """The link through which a ranker is served, as a volume's `current`."""
    link = tmp_path / "current"
    link.symlink_to(tiny_rankers["maxp"])
    return link


def holds_more_than(found: list[pb.RerankResponse], count: int) -> bool:
    return len(found) > count


def point(link: Path, to: Path) -> None:
    link.unlink()
    link.symlink_to(to)


async def test_no_call_is_lost_or_scored_by_two_versions_while_rankers_are_swapped(
    tiny_rankers: dict[str, Path], folder: Path
) -> None:
    async with (
        Replica(configured({"it": folder})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        found: list[pb.RerankResponse] = []
        is_over = False

        async def caller() -> None:
            while not is_over:
                found.append(await stub.Rerank(asked(), timeout=120))

        callers = [asyncio.ensure_future(caller()) for _ in range(4)]
        for swap in range(6):
            await until(partial(holds_more_than, found, len(found) + 8))
            point(folder, tiny_rankers[("firstp", "maxp")[swap % 2]])
            await replica.reload()
        await until(partial(holds_more_than, found, len(found) + 8))
        is_over = True
        await asyncio.gather(*callers)

        # Each version has one order and one set of scores: a call with scores of two would be a third.
        by_version = defaultdict(set)
        for each in found:
            by_version[each.ranker.version].add(tuple((one.id, round(one.score, 4)) for one in each.results))
        assert len(by_version) == 2
        assert [len(each) for each in by_version.values()] == [1, 1]
        changes = sum(a.ranker.version != b.ranker.version for a, b in pairwise(found))
        assert changes >= 6
        read = replica.metrics.registry.get_sample_value
        assert read("farrank_ranker_swaps_total", {"ranker": "it", "outcome": "done"}) == 6
        await until(lambda: len(replica.engine.device.loop.work.queues) == 1)
        shown = [
            sample.labels["version"]
            for metric in replica.metrics.registry.collect()
            if metric.name == "farrank_ranker_info"
            for sample in metric.samples
        ]
        assert shown == [found[-1].ranker.version]


async def test_a_call_in_flight_keeps_its_version_which_is_freed_after_it(
    tiny_rankers: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    async with (
        Replica(configured({"it": folder})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        old = replica.engine.loaded["it"]
        kept = ref(old.runtime)
        split = Reader.document_steps

        def hold(*of: Any, **options: Any) -> Any:
            if not began.is_set():  # the new version reads a text, too
                began.set()
                assert may_end.wait(60)
            return split(*of, **options)

        monkeypatch.setattr(Reader, "document_steps", hold)
        call = asyncio.ensure_future(stub.Rerank(asked(), timeout=120))
        try:
            assert await asyncio.to_thread(began.wait, 60)
            point(folder, tiny_rankers["firstp"])
            await replica.reload()
            assert replica.engine.loaded["it"] is not old
            assert hasattr(old, "runtime")
        finally:
            may_end.set()
        assert (await call).ranker.version == old.version
        assert (await stub.Rerank(asked())).ranker.version != old.version
        await until(lambda: not hasattr(old, "runtime"))
        gc.collect()
        assert kept() is None


async def test_a_ranker_that_cannot_be_loaded_leaves_the_old_one(
    tiny_rankers: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_rankers["firstp"], damaged)
    (damaged / "model.safetensors").write_bytes(b"not weights")
    async with (
        Replica(configured({"it": folder})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        before = await stub.Rerank(asked())
        point(folder, damaged)
        with pytest.raises(ConfigError, match=r"rankers\.it: .*model\.safetensors"):
            await replica.reload()
        after = await stub.Rerank(asked())
        assert (after.ranker, list(after.results)) == (before.ranker, list(before.results))
        read = replica.metrics.registry.get_sample_value
        assert read("farrank_ranker_swaps_total", {"ranker": "it", "outcome": "failed"}) == 1
        # The next reload tries again.
        point(folder, tiny_rankers["firstp"])
        await replica.reload()
        assert (await stub.Rerank(asked())).ranker.version != before.ranker.version


async def test_a_change_of_the_configuration_is_enough(tiny_rankers: dict[str, Path]) -> None:
    config = configured({"it": tiny_rankers["maxp"], "other": tiny_rankers["firstp"]})
    read_next = [config]
    async with Replica(config, lambda: read_next[-1]) as replica:
        engine = replica.engine
        kept, depth = engine.loaded["other"], DepthConfig("all")
        read_next.append(
            replace(
                config, rankers={**config.rankers, "it": RankerConfig(str(tiny_rankers["maxp"]), depth=depth)}
            )
        )
        await replica.reload()
        assert engine.loaded["it"].depth == depth
        assert engine.loaded["other"] is kept
        now = engine.loaded["it"]
        await replica.reload()
        assert engine.loaded["it"] is now


async def test_added_and_removed_rankers_take_effect_at_a_reload(tiny_rankers: dict[str, Path]) -> None:
    config = configured({"it": tiny_rankers["maxp"], "goes": tiny_rankers["firstp"]})
    read_next = [config]
    async with (
        Replica(config, lambda: read_next[-1]) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated

        async def ask(name: str) -> pb.RerankResponse:
            named = pb.RerankRequest(query=QUERY, documents=DOCUMENTS, options=pb.RerankOptions(ranker=name))
            answer: pb.RerankResponse = await stub.Rerank(named, timeout=60)
            return answer

        going = replica.engine.loaded["goes"]
        with replica.engine.versions.using([going]):
            read_next.append(configured({"it": tiny_rankers["maxp"], "comes": tiny_rankers["firstp"]}))
            await replica.reload()
            assert (await ask("comes")).ranker.version == going.version
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask("goes")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert "known are: it, comes" in str(refused.value.details())
            assert hasattr(going, "runtime")  # a call from before uses it
        await until(lambda: not hasattr(going, "runtime"))

        read_next.append(configured({"comes": tiny_rankers["firstp"], "bad": Path("/nowhere")}))
        with pytest.raises(ConfigError) as failed:
            await replica.reload()
        assert "rankers.it: was not removed" in str(failed.value)
        assert "rankers.bad: " in str(failed.value)
        assert list(replica.rankers.entries) == ["it", "comes"]


async def test_an_ensemble_is_swapped_with_its_members(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    versions = [tmp_path / name for name in ("one", "two", "other")]
    members = [
        [("a", "maxp"), ("b", "firstp")],
        [("a", "firstp"), ("b", "maxp")],
        [("a", "maxp"), ("c", "maxp")],
    ]
    for folder, each in zip(versions, members, strict=True):
        save_ensemble(Ensemble({name: open_ranker(tiny_rankers[family]) for name, family in each}), folder)
    link = tmp_path / "current"
    link.symlink_to(versions[0])
    async with (
        Replica(configured({"it": link})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        before, old = await stub.Rerank(asked()), replica.engine.rankers["it"].members
        point(link, versions[1])
        await replica.reload()
        after = await stub.Rerank(asked())
        assert after.ranker.version != before.ranker.version
        # The members are the same two in another order, and the score is their mean.
        assert {each.id: round(each.score, 4) for each in after.results} == {
            each.id: round(each.score, 4) for each in before.results
        }
        await until(lambda: not any(hasattr(each, "runtime") for each in old))
        assert list(replica.engine.rankers) == ["it", "it/a", "it/b"]

        point(link, versions[2])
        with pytest.raises(ConfigError, match="has other members than the ensemble that serves"):
            await replica.reload()
        assert (await stub.Rerank(asked())).ranker.version == after.ranker.version


async def test_a_swapped_ranker_comes_back_after_the_device_has_failed(
    tiny_rankers: dict[str, Path], folder: Path
) -> None:
    async with (
        Replica(configured({"it": folder})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        point(folder, tiny_rankers["firstp"])
        await replica.reload()
        expected, now = await stub.Rerank(asked()), replica.engine.loaded["it"]
        failures = [DeviceLost("gone")]

        def fail(_: Sequence[EncoderInput]) -> None:
            if failures:
                raise failures.pop()

        now.runtime = Faulty(now.runtime, fail)
        answer = await stub.Rerank(asked(), timeout=120)
        assert answer.ranker.version == expected.ranker.version == now.version
        assert [each.id for each in answer.results] == [each.id for each in expected.results]
        assert not isinstance(now.runtime, Faulty)
        read = replica.metrics.registry.get_sample_value
        assert read("farrank_worker_restarts_total") == 1


async def test_a_version_whose_vectors_an_index_does_not_hold_is_refused(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    link, other = tmp_path / "current", tmp_path / "other"
    link.symlink_to(tiny_rankers["biencoder"])
    ranker = open_ranker(tiny_rankers["biencoder"])
    with torch.no_grad():
        next(ranker.encoder.parameters()).add_(0.01)
    save_ranker(ranker, other)
    async with Replica(configured({"first": tiny_rankers["maxp"], "it": link})) as replica:
        old = replica.engine.loaded["it"]
        replica.rankers._loader._encoders.asked["it"] = old.encodings_version  # as an index does that opens
        point(link, other)
        with pytest.raises(ConfigError, match=f"holds vectors of version {old.encodings_version} of it"):
            await replica.reload()
        assert replica.engine.loaded["it"] is old
        with pytest.raises(FailedPrecondition, match="an index encodes its queries with it"):
            await replica.rankers.unload("it")

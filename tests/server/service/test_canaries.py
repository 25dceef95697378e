"""Versions of a ranker side by side, over real sockets, and rankers that come and go by name."""

import asyncio
import gc
from collections import defaultdict
from functools import partial
from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import FailedPrecondition, NotFound
from farrank_server.config.schema import RankerConfig
from farrank_server.replica import Replica
from farrank_server.service.comparison import RecordedQuery, Trial
from farrank_settings.errors import ConfigError
from support.engine_bench import TEXTS, until
from support.versions import configured, serving

RECORDED = [RecordedQuery(f"river {number}", tuple(TEXTS)) for number in range(4)]


def entry(folder: Path) -> RankerConfig:
    return RankerConfig(str(folder))


async def test_a_canary_gets_its_share_then_all_calls_and_none_is_lost_or_mixed(
    tiny_rankers: dict[str, Path],
) -> None:
    async with serving(configured({"it": tiny_rankers["maxp"]})) as served:
        rankers = served.replica.rankers
        found: list[tuple[str, pb.RerankResponse]] = []
        is_over = False

        async def caller(first: int) -> None:
            number = first
            while not is_over:
                query = f"river {number % 40}"
                found.append((query, await served.ask(query)))
                number += 1

        def has_more_than(count: int) -> bool:
            return len(found) > count

        async def more() -> list[tuple[str, pb.RerankResponse]]:
            begin = len(found)
            await until(partial(has_more_than, begin + 160))
            # The first ones may have begun before the last change.
            return found[begin + 8 : begin + 160]

        callers = [asyncio.ensure_future(caller(10 * each)) for each in range(4)]
        old = (await served.ask()).ranker.version
        await rankers.begin_canary("it", entry(tiny_rankers["firstp"]), 0.3)
        new = served.replica.engine.versions.canaries["it"].scorer.version
        with_canary = await more()
        await rankers.change_share("it", 0.8)
        with_more = await more()
        await rankers.promote("it")
        after = await more()
        is_over = True
        await asyncio.gather(*callers)

        takers = [
            {query for query, answer in part if answer.ranker.version == new}
            for part in (with_canary, with_more, after)
        ]
        assert 2 <= len(takers[0]) <= 22
        assert takers[0] < takers[1] < takers[2] == {f"river {number}" for number in range(40)}
        # A query has one version as long as the share stays.
        for part in (with_canary, with_more):
            of_query = defaultdict(set)
            for query, answer in part:
                of_query[query].add(answer.ranker.version)
            assert {len(versions) for versions in of_query.values()} == {1}
        # Each version has one set of scores for a query: a call scored by two would be a third.
        scores = defaultdict(set)
        for query, answer in found:
            ranking = tuple((one.id, round(one.score, 3)) for one in answer.results)
            scores[query, answer.ranker.version].add(ranking)
        assert {version for _, version in scores} == {old, new}
        assert {len(each) for each in scores.values()} == {1}

        counted = {
            role: served.metric("version_requests_total", ranker="it", role=role, code="OK")
            for role in ("serving", "canary")
        }
        by_version = {
            version: sum(each.ranker.version == version for _, each in found) for version in (old, new)
        }
        assert sum(filter(None, counted.values())) == len(found) + 1
        assert 0 < (counted["canary"] or 0) < by_version[new]
        assert served.metric("canary_share_ratio", ranker="it") == 0
        assert served.metric("ranker_swaps_total", ranker="it", outcome="done") == 1
        await until(lambda: len(served.replica.engine.device.loop.work.queues) == 1)


async def test_a_caller_asks_for_a_version(tiny_rankers: dict[str, Path]) -> None:
    async with serving(configured({"it": tiny_rankers["maxp"]})) as served:
        rankers = served.replica.rankers
        old = (await served.ask()).ranker.version
        await rankers.begin_canary("it", entry(tiny_rankers["firstp"]), 0.0)
        new = served.replica.engine.versions.canaries["it"].scorer.version
        for version in (old, new):
            for ranker in (f"it@{version}", f"it@{version[:6]}", f"@{version}"):
                assert (await served.ask(ranker=ranker)).ranker.version == version
        asked = {"door": "grpc", "method": "Rerank", "ranker": "it", "code": "OK"}
        await until(lambda: served.metric("requests_total", **asked) == 7)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.ask(ranker="it@zzz")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == (
            f"options.ranker: no loaded version begins with 'zzz'; those of ranker it are: {old}, {new}"
        )
        await rankers.end_canary("it")
        with pytest.raises(grpc.aio.AioRpcError, match="no loaded version begins with"):
            await served.ask(ranker=f"it@{new}")
        with pytest.raises(NotFound, match="ranker it has no canary"):
            await rankers.promote("it")

        # Versions that differ in their settings alone have one hash.
        await rankers.begin_canary("it", RankerConfig(str(tiny_rankers["maxp"]), precision="bf16"), 0.0)
        scores = {
            asked: [each.score for each in (await served.ask(ranker=asked)).results]
            for asked in ("it", "it@serving", "it@canary", "@canary")
        }
        assert scores["it"] == scores["it@serving"] != scores["it@canary"] == scores["@canary"]
        by_canary = {"ranker": "it", "role": "canary", "code": "OK"}
        await until(lambda: served.metric("version_requests_total", **by_canary) == 5)


async def test_a_new_version_that_ranks_otherwise_or_slower_goes_back(tiny_rankers: dict[str, Path]) -> None:
    async with serving(configured({"it": tiny_rankers["maxp"]})) as served:
        rankers, versions = served.replica.rankers, served.replica.engine.versions
        before = (await served.ask()).ranker.version
        refused = r"after 4 recorded queries: the mean Kendall's tau is -?\d\.\d{4}; min_tau is 1$"
        trial = Trial(RECORDED, min_tau=1.0, max_latency_ratio=1000.0)
        with pytest.raises(FailedPrecondition, match=refused):
            await rankers.begin_canary("it", entry(tiny_rankers["firstp"]), 0.5, trial)
        slow = r"the latency ratio is \d+\.\d{3}; max_latency_ratio is 0\.001$"
        trial = Trial(RECORDED, min_tau=-1.0, max_latency_ratio=0.001)
        with pytest.raises(FailedPrecondition, match=slow):
            await rankers.swap("it", entry(tiny_rankers["firstp"]), trial)
        assert not versions.canaries
        assert (await served.ask()).ranker.version == before
        assert served.metric("ranker_swaps_total", ranker="it", outcome="failed") == 1
        assert (served.metric("canary_latency_ratio", ranker="it") or 0) > 0.001
        await until(lambda: len(served.replica.engine.device.loop.work.queues) == 1)

        # The same weights rank alike.
        found = await rankers.swap("it", entry(tiny_rankers["maxp"]), Trial(RECORDED, 0.99, 1000.0))
        assert found is not None
        assert (found.queries, found.tau) == (4, 1.0)
        assert served.metric("canary_kendall_tau", ranker="it") == 1.0
        with pytest.raises(
            FailedPrecondition, match=r"^recorded\[0\]: version \w+ does not answer it: query"
        ):
            await rankers.swap("it", entry(tiny_rankers["maxp"]), Trial([RecordedQuery("", ("a", "b"))]))


async def test_a_trial_that_runs_is_stopped(tiny_rankers: dict[str, Path]) -> None:
    config = configured({"it": tiny_rankers["maxp"]})
    async with serving(config) as served:
        rankers, versions = served.replica.rankers, served.replica.engine.versions
        before = (await served.ask()).ranker.version
        endless = Trial(RECORDED * 100_000, min_tau=-1.0, max_latency_ratio=1000.0)
        new = entry(tiny_rankers["firstp"])
        for begin, stop in (
            (partial(rankers.begin_canary, share=0.5), partial(rankers.end_canary, "it")),
            (rankers.swap, partial(rankers.end_canary, "it")),
            (rankers.swap, partial(rankers.reload, config.rankers)),
        ):
            change = asyncio.ensure_future(begin("it", new, trial=endless))
            await until(lambda: "it" in versions.canaries)
            async with asyncio.timeout(60):
                await stop()
                with pytest.raises(FailedPrecondition, match="the trial was stopped before its end"):
                    await change
            assert not versions.canaries
            assert (await served.ask()).ranker.version == before
        with pytest.raises(NotFound, match="ranker it has no canary"):
            await rankers.end_canary("it")


async def test_rankers_come_and_go_by_name_and_a_reload_returns_to_the_configuration(
    tiny_rankers: dict[str, Path],
) -> None:
    config = configured({"it": tiny_rankers["maxp"]})
    async with serving(config) as served:
        rankers = served.replica.rankers
        await rankers.load("more", entry(tiny_rankers["firstp"]))
        assert (await served.ask(ranker="more")).ranker.name == "more"
        assert served.metric("version_requests_total", ranker="more", role="serving", code="OK") == 1
        with pytest.raises(FailedPrecondition, match="a ranker more is loaded"):
            await rankers.load("more", entry(tiny_rankers["firstp"]))
        with pytest.raises(ConfigError, match=r"rankers\.third: "):
            await rankers.load("third", entry(tiny_rankers["maxp"].parent / "absent"))
        with pytest.raises(FailedPrecondition, match="it is the default ranker"):
            await rankers.unload("it")
        await rankers.unload("more")
        with pytest.raises(
            grpc.aio.AioRpcError, match="no ranker 'more' here, it was unloaded; known are: it"
        ):
            await served.ask(ranker="more")
        with pytest.raises(NotFound, match="no ranker 'more' is loaded, it was unloaded; loaded are: it"):
            await rankers.unload("more")

        await rankers.load("again", entry(tiny_rankers["firstp"]))
        await rankers.swap("it", entry(tiny_rankers["firstp"]))
        swapped = (await served.ask()).ranker.version
        await rankers.begin_canary("it", entry(tiny_rankers["avgp"]), 1.0)
        assert (await served.ask()).ranker.version != swapped
        with pytest.raises(FailedPrecondition, match="ranker it has the canary"):
            await rankers.swap("it", entry(tiny_rankers["avgp"]))
        await rankers.reload(config.rankers)
        assert not served.replica.engine.versions.canaries
        assert (await served.ask()).ranker.version != swapped
        assert rankers.entries == config.rankers


async def test_the_least_recently_used_ranker_leaves_for_another(tiny_rankers: dict[str, Path]) -> None:
    async with serving(configured({"it": tiny_rankers["maxp"]})) as probe:
        size = int(probe.metric("ranker_weight_bytes") or 0)
    assert size > 10_000
    small = configured({"it": tiny_rankers["maxp"]}, limits={"max_ranker_bytes": size - 1})
    with pytest.raises(ConfigError, match=rf"max_ranker_bytes: is {size - 1:,}; the .* have {size:,} bytes"):
        async with Replica(small):
            raise AssertionError("it has no room")
    limits = {"max_ranker_bytes": round(3.2 * size)}
    async with serving(configured({"it": tiny_rankers["maxp"]}, limits=limits)) as served:
        rankers, versions = served.replica.rankers, served.replica.engine.versions
        for name in ("one", "two"):
            await rankers.load(name, entry(tiny_rankers["maxp"]))
        for name in ("two", "one", "it"):
            await served.ask(ranker=name)
        await rankers.load("three", entry(tiny_rankers["maxp"]))
        assert list(versions.rankers) == ["it", "one", "three"]
        gone = r"no ranker 'two' here, it left to make room for three \(limits\.max_ranker_bytes\); known"
        with pytest.raises(grpc.aio.AioRpcError, match=gone):
            await served.ask(ranker="two")
        # With calls in flight none may leave.
        with versions.using([versions.loaded["one"], versions.loaded["three"]]):
            full = (
                rf"is {3.2 * size:,.0f}; ranker four has {size:,} bytes, "
                rf"those loaded have {3 * size:,}, and 0 of them"
            )
            with pytest.raises(FailedPrecondition, match=full):
                await rankers.load("four", entry(tiny_rankers["maxp"]))
        assert list(versions.rankers) == ["it", "one", "three"]
        # A swap needs room for one version more only until the old one has gone.
        await rankers.swap("it", entry(tiny_rankers["maxp"]))
        assert list(versions.rankers) == ["it", "one", "three"]
        # A canary stays beside the version that serves.
        await rankers.begin_canary("it", entry(tiny_rankers["maxp"]), 0.5)
        assert list(versions.rankers) == ["it", "three"]
        gc.collect()
        assert served.metric("ranker_weight_bytes") == 3 * size


async def test_a_reload_makes_room_for_the_whole_configuration_or_leaves_the_old_rankers(
    tiny_rankers: dict[str, Path],
) -> None:
    folder = tiny_rankers["maxp"]
    async with serving(configured({"it": folder})) as probe:
        size = int(probe.metric("ranker_weight_bytes") or 0)
    config = configured({"it": folder, "late": folder}, limits={"max_ranker_bytes": round(3.2 * size)})
    async with serving(config) as served:
        rankers, versions = served.replica.rankers, served.replica.engine.versions

        async def reload(*names: str) -> list[str]:
            await rankers.reload({name: entry(folder) for name in names})
            return list(versions.rankers)

        # Those that end leave for the others of the configuration, even with calls and more than one at once.
        assert await reload("it", "x", "y") == ["it", "x", "y"]
        with versions.using([versions.loaded["x"]]):
            assert await reload("it", "late") == ["it", "late"]
        await rankers.load("more", entry(folder))
        assert await reload("it", "x", "y") == ["it", "x", "y"]

        full = rf"^limits\.max_ranker_bytes: is {3.2 * size:,.0f}; rankers it, a, b, c have {4 * size:,} "
        with pytest.raises(ConfigError, match=full):
            await reload("it", "a", "b", "c")
        assert list(versions.rankers) == ["it", "x", "y"]
        for name in ("it", "x", "y"):
            assert (await served.ask(ranker=name)).ranker.name == name
        # They are still those of the configuration, which leave for no other one.
        with pytest.raises(FailedPrecondition, match="and 0 of them can leave"):
            await rankers.load("more", entry(folder))
        gc.collect()
        assert served.metric("ranker_weight_bytes") == 3 * size


async def test_a_ranker_that_a_reload_replaces_makes_room_before_others_are_added(
    tiny_rankers: dict[str, Path],
) -> None:
    folder = tiny_rankers["maxp"]
    large, small = entry(folder), RankerConfig(str(folder), precision="bf16")
    async with serving(configured({"it": folder})) as probe:
        size = int(probe.metric("ranker_weight_bytes") or 0)
    config = configured({"it": folder, "other": folder}, limits={"max_ranker_bytes": round(2.2 * size)})
    async with serving(config) as served:
        rankers, versions = served.replica.rankers, served.replica.engine.versions
        await rankers.reload({"it": small, "new": large, "other": small})
        assert list(versions.rankers) == ["it", "other", "new"]
        # One that has grown takes the room of those that end, also if the others do not fit.
        with pytest.raises(ConfigError, match="rankers it, a, b have"):
            await rankers.reload({"it": large, "a": large, "b": large})
        assert list(versions.rankers) == ["it"]
        gc.collect()
        assert served.metric("ranker_weight_bytes") == size


async def test_the_metrics_of_a_ranker_that_has_gone_end(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farrank_server.service.rankers.HIDE_AFTER_S", 0.01)
    async with serving(configured({"it": tiny_rankers["maxp"]})) as served:

        def names() -> set[str]:
            return {
                sample.labels["ranker"]
                for metric in served.replica.metrics.registry.collect()
                for sample in metric.samples
                if "ranker" in sample.labels
            }

        before = names()
        await served.replica.rankers.load("more", entry(tiny_rankers["firstp"]))
        await served.ask(ranker="more")
        assert names() == {*before, "more"}
        # A call and its batch are counted after the answer, and well before the metrics end.
        call = {"door": "grpc", "method": "Rerank", "ranker": "more", "code": "OK"}
        await until(lambda: bool(served.metric("requests_total", **call)))
        await until(lambda: bool(served.metric("encoded_chunks_total", ranker="more")))
        await served.replica.rankers.unload("more")
        await until(lambda: names() == before)

"""The operator's contract over a real port: its changes, its refusals and its token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from farrank.v1 import admin_pb2 as pb
from farrank.v1 import admin_pb2_grpc
from farrank_server.config.schema import AdminConfig
from farrank_server.replica import Replica, check
from farrank_settings.errors import ConfigError
from support.engine_bench import TEXTS, until
from support.versions import Served, configured, serving

TOKEN = "a-token-of-the-operator"
QUERIES = [pb.RecordedQuery(query=f"river {number}", documents=TEXTS) for number in range(3)]


@asynccontextmanager
async def administered(
    tiny_rankers: dict[str, Path], token_file: Path | None = None, **more: Any
) -> AsyncIterator[tuple[Served, Any]]:
    admin = AdminConfig(port=0, token_file=token_file)
    async with serving(configured({"it": tiny_rankers["maxp"]}, listen={"admin": admin}, **more)) as served:
        assert served.replica.admin is not None
        async with grpc.aio.insecure_channel(served.replica.admin.address) as channel:
            yield served, admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]


def source(folder: Path, **settings: str) -> pb.RankerSource:
    return pb.RankerSource(source=str(folder), settings=settings)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_session_of_an_operator(tiny_rankers: dict[str, Path]) -> None:
    async with administered(tiny_rankers, limits={"max_ranker_bytes": 2**30}) as (served, admin):
        old = (await served.ask()).ranker.version
        trial = pb.Trial(queries=QUERIES, min_tau=-1, max_latency_ratio=1000)
        begun = await admin.StartCanary(
            pb.StartCanaryRequest(name="it", source=source(tiny_rankers["firstp"]), share=0.25, trial=trial)
        )
        assert begun.comparison.queries == 3
        assert -1 <= begun.comparison.tau <= 1
        assert begun.comparison.latency_ratio > 0
        listed = await admin.ListVersions(pb.ListVersionsRequest())
        found = [(each.name, each.version, each.role, each.share) for each in listed.versions]
        serves, tries = pb.VERSION_ROLE_SERVING, pb.VERSION_ROLE_CANARY
        assert found == [("it", old, serves, 0.75), ("it", begun.version, tries, 0.25)]
        assert [each.source for each in listed.versions] == [
            str(tiny_rankers[family]) for family in ("maxp", "firstp")
        ]
        assert all(each.configured and not each.calls_in_flight for each in listed.versions)
        assert sum(each.weight_bytes for each in listed.versions) == listed.weight_bytes
        assert listed.max_weight_bytes == 2**30
        assert (await served.ask(ranker=f"it@{begun.version[:8]}")).ranker.version == begun.version

        raised = await admin.StartCanary(pb.StartCanaryRequest(name="it", share=1))
        assert raised.version == begun.version
        assert (await served.ask()).ranker.version == begun.version
        await admin.StopCanary(pb.StopCanaryRequest(name="it"))
        assert (await served.ask()).ranker.version == old

        await admin.StartCanary(
            pb.StartCanaryRequest(name="it", source=source(tiny_rankers["firstp"]), share=0)
        )
        swapped = await admin.SwapRanker(pb.SwapRankerRequest(name="it"))
        assert swapped.version == begun.version == (await served.ask()).ranker.version
        assert not swapped.HasField("comparison")
        back = await admin.SwapRanker(
            pb.SwapRankerRequest(
                name="it", source=source(tiny_rankers["maxp"], **{"depth.mode": "all"}), trial=trial
            )
        )
        assert back.version == old
        assert back.comparison.queries == 3
        assert served.replica.engine.loaded["it"].depth.mode == "all"

        loaded = await admin.LoadRanker(
            pb.LoadRankerRequest(name="more", source=source(tiny_rankers["firstp"]))
        )
        assert (await served.ask(ranker="more")).ranker.version == loaded.version
        listed = await admin.ListVersions(pb.ListVersionsRequest())
        assert [(each.name, each.configured) for each in listed.versions] == [("it", True), ("more", False)]
        await admin.UnloadRanker(pb.UnloadRankerRequest(name="more"))
        assert len((await admin.ListVersions(pb.ListVersionsRequest())).versions) == 1


async def test_wrong_requests_name_the_field_the_problem_and_the_limit(tiny_rankers: dict[str, Path]) -> None:
    good = source(tiny_rankers["firstp"])

    def trial(**fields: Any) -> pb.SwapRankerRequest:
        return pb.SwapRankerRequest(name="it", source=good, trial=pb.Trial(**{"queries": QUERIES, **fields}))

    async with administered(tiny_rankers) as (served, admin):
        invalid: dict[Any, list[tuple[Any, str]]] = {
            admin.LoadRanker: [
                (
                    pb.LoadRankerRequest(name="a b", source=good),
                    "name: is 'a b'; it must be 1 to 100 letters",
                ),
                (pb.LoadRankerRequest(name="more"), "source.source: is empty; it must be"),
                (
                    pb.LoadRankerRequest(name="more", source=source(tiny_rankers["maxp"], precision="int3")),
                    "source.settings.precision: 'int3' is not allowed; it must be fp32 or",
                ),
                (
                    pb.LoadRankerRequest(name="more", source=source(tiny_rankers["maxp"], source="x")),
                    "source.settings: has the key source",
                ),
            ],
            admin.StartCanary: [
                (
                    pb.StartCanaryRequest(name="it", source=good, share=1.5),
                    "share: is 1.5; it must be from 0 to 1",
                ),
                (
                    pb.StartCanaryRequest(name="it", source=good, share=float("nan")),
                    "share: is nan; it must be",
                ),
                (
                    pb.StartCanaryRequest(name="it", share=0.5, trial=pb.Trial(queries=QUERIES)),
                    "trial: needs a source",
                ),
            ],
            admin.SwapRanker: [
                (trial(queries=[]), "trial.queries: has 0 entries; it must have 1 to 10000"),
                (trial(min_tau=2), "trial.min_tau: is 2; it must be from -1 to 1"),
                (trial(max_latency_ratio=0), "trial.max_latency_ratio: is 0; it must be above 0"),
                (
                    trial(queries=[pb.RecordedQuery(query="q", documents=["a"])]),
                    "trial.queries[0].documents: has 1 entries; it must have at least 2",
                ),
                (
                    trial(queries=[pb.RecordedQuery(query=" ", documents=["a", "b"])]),
                    "trial.queries[0].query: is empty",
                ),
            ],
        }
        for method, requests in invalid.items():
            for request, expected in requests:
                code, said = await refused(method(request))
                assert code is grpc.StatusCode.INVALID_ARGUMENT, said
                assert said.startswith(expected)
        unknown = await refused(admin.SwapRanker(pb.SwapRankerRequest(name="other", source=good)))
        assert unknown == (
            grpc.StatusCode.NOT_FOUND,
            "name: no ranker 'other' is loaded; loaded are: it",
        )
        without = await refused(admin.StopCanary(pb.StopCanaryRequest(name="it")))
        assert without[0] is grpc.StatusCode.NOT_FOUND
        absent = await refused(
            admin.SwapRanker(pb.SwapRankerRequest(name="it", source=source(Path("absent"))))
        )
        assert absent[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert absent[1].startswith("rankers.it: ")
        bound = trial(min_tau=1, max_latency_ratio=1000)
        code, said = await refused(admin.SwapRanker(bound))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "; min_tau is 1" in said
        assert len((await admin.ListVersions(pb.ListVersionsRequest())).versions) == 1
        assert served.metric("ranker_swaps_total", ranker="it", outcome="failed") == 2


async def test_each_call_sends_the_token(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    async with administered(tiny_rankers, token_file) as (_, admin):
        request = pb.ListVersionsRequest()
        for shown in ((), (("authorization", "Bearer wrong"),), (("authorization", TOKEN),)):
            code, said = await refused(admin.ListVersions(request, metadata=shown))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "listen.admin.token_file" in said
            assert TOKEN not in said
        right = (("authorization", f"Bearer {TOKEN}"),)
        assert len((await admin.ListVersions(request, metadata=right)).versions) == 1


async def test_a_change_goes_on_if_its_caller_leaves(
    tiny_rankers: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with administered(tiny_rankers) as (served, admin):
        absent = admin.LoadRanker(pb.LoadRankerRequest(name="absent", source=source(Path("absent"))))
        await asyncio.sleep(0.02)
        absent.cancel()
        await until(lambda: "a change of the rankers failed: rankers.absent: " in caplog.text)
        call = admin.LoadRanker(pb.LoadRankerRequest(name="more", source=source(tiny_rankers["firstp"])))
        await asyncio.sleep(0.02)
        call.cancel()
        await until(lambda: "more" in served.replica.engine.rankers)
        assert (await served.ask(ranker="more")).ranker.name == "more"


async def test_no_endpoint_without_a_port_and_none_for_others_without_a_token(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    rankers = {"it": tiny_rankers["maxp"]}
    async with Replica(configured(rankers)) as replica:
        assert replica.admin is None
    for admin, problem in (
        (
            AdminConfig(port=0, host="0.0.0.0"),
            r"listen\.admin\.host: is 0\.0\.0\.0, which other machines may",
        ),
        (AdminConfig(port=0, token_file=tmp_path / "none"), r"listen\.admin\.token_file: .* cannot be read"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check(configured(rankers, listen={"admin": admin}))
    with pytest.raises(
        ConfigError, match=r"listen\.admin\.port: 9090 is also the port of listen\.metrics_port"
    ):
        check(configured(rankers, listen={"admin": AdminConfig(port=9090), "metrics_port": 9090}))

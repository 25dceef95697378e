"""Descriptions over a real socket: the depth of each ranker, as configured or chosen."""

from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_server.config.schema import DepthConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica

ALL, ADAPTIVE = pb.DEPTH_MODE_ALL, pb.DEPTH_MODE_ADAPTIVE


@pytest.fixture
def rankers(tiny_rankers: dict[str, Path], tmp_path: Path) -> dict[str, RankerConfig]:
    members = {name: open_ranker(str(tiny_rankers[name])) for name in ("maxp", "biencoder")}
    save_ensemble(Ensemble(members), tmp_path / "both")
    maxp = str(tiny_rankers["maxp"])
    return {
        "chosen": RankerConfig(maxp),
        "whole": RankerConfig(maxp, depth=DepthConfig("all")),
        "chunks": RankerConfig(maxp, depth=DepthConfig("adaptive", chunks=2.5)),
        "time": RankerConfig(maxp, depth=DepthConfig("adaptive", milliseconds=70)),
        "biencoder": RankerConfig(str(tiny_rankers["biencoder"])),
        "both": RankerConfig(str(tmp_path / "both")),
    }


async def test_each_rankers_own_depth_is_listed(rankers: dict[str, RankerConfig]) -> None:
    config = ServerConfig(rankers=rankers, listen=ListenConfig(port=0, metrics_port=None))
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        listed = (await stub.ListRankers(pb.ListRankersRequest())).rankers
        members = replica.engine.rankers["both"].members
        members[0].depth = DepthConfig("adaptive")
        now = {each.name: each for each in (await stub.ListRankers(pb.ListRankersRequest())).rankers}

    assert {each.name: each.depth for each in listed} == {
        "chosen": pb.Depth(mode=ADAPTIVE),
        "whole": pb.Depth(mode=ALL),
        "chunks": pb.Depth(mode=ADAPTIVE, chunks=2.5),
        "time": pb.Depth(mode=ADAPTIVE, milliseconds=70),
        "biencoder": pb.Depth(mode=ALL),
        **dict.fromkeys(("both", "both/maxp", "both/biencoder"), pb.Depth(mode=ALL)),
    }
    assert not now["both"].HasField("depth")
    assert (now["both/maxp"].depth.mode, now["both/biencoder"].depth.mode) == (ADAPTIVE, ALL)

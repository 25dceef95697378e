"""A ranker is loaded on the loader's thread while others serve, whichever runtime it has."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farrank_client import AsyncClient
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.loaded import loading
from farrank_server.replica import Replica

TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 30, 200)]


@pytest.mark.parametrize("runtime", ["torch", "onnx", "openvino"])
async def test_a_further_version_is_opened_on_the_loaders_thread(
    runtime: str, tiny_exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_on: list[str] = []

    def noted(*arguments: Any, **more: Any) -> ServableRanker:
        opened_on.append(threading.current_thread().name)
        return open_ranker_runtime(*arguments, **more)

    monkeypatch.setattr(loading, "open_ranker_runtime", noted)
    config = ServerConfig(
        rankers={"it": RankerConfig(str(tiny_exports["maxp"]), runtime=runtime)},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=2),
    )
    async with Replica(config) as replica, AsyncClient(replica.address) as client:
        before = await client.rerank("river", TEXTS)
        await replica.rankers.reload({"it": replace(config.rankers["it"], max_document_tokens=300)})
        after = await client.rerank("river", TEXTS)
        assert (await client.rankers()).rankers[0].runtime == runtime
    assert opened_on == ["farrank-device", "farrank-loader"]
    assert [each.id for each in after.results] == [each.id for each in before.results]
    assert [each.score for each in after.results] == pytest.approx(
        [each.score for each in before.results], abs=1e-5
    )

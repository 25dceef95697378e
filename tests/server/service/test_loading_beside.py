"""Threads that a runtime starts while a ranker is loaded beside others serve it at the process's priority."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farrank_client import AsyncClient
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.loaded import loading
from farrank_server.replica import Replica

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere priorities are of processes")

TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 30, 200)]


def nicer_threads() -> set[int]:
    """The threads that give way to others of this process."""
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    threads = [int(each.name) for each in Path("/proc/self/task").iterdir()]
    return {each for each in threads if os.getpriority(os.PRIO_PROCESS, each) > own}


def configured(source: Path, runtime: str) -> ServerConfig:
    return ServerConfig(
        rankers={"it": RankerConfig(str(source), runtime=runtime)},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=2),
    )


async def swap(replica: Replica, config: ServerConfig) -> None:
    async with AsyncClient(replica.address) as client:
        for tokens in (300, 301):
            await replica.rankers.reload({"it": replace(config.rankers["it"], max_document_tokens=tokens)})
            assert len((await client.rerank("river", TEXTS)).results) == len(TEXTS)


@pytest.mark.parametrize("runtime", ["onnx", "openvino", "auto"])
async def test_threads_of_a_session_do_not_give_way(runtime: str, tiny_exports: dict[str, Path]) -> None:
    config = configured(tiny_exports["maxp"], runtime)
    async with Replica(config) as replica:
        before = nicer_threads()
        await swap(replica, config)
        assert nicer_threads() == before


async def test_weights_are_read_by_a_thread_that_gives_way(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[int] = []

    def noted(*arguments: Any, **more: Any) -> ServableRanker:
        reading.append(os.getpriority(os.PRIO_PROCESS, 0))
        return open_ranker_runtime(*arguments, **more)

    monkeypatch.setattr(loading, "open_ranker_runtime", noted)
    # A plain ranker has no graph, so only torch can be chosen.
    config = configured(tiny_rankers["maxp"], "auto")
    async with Replica(config) as replica:
        await swap(replica, config)
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert reading == [own, *[min(19, own + 10)] * 2]

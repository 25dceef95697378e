"""A ranker is warmed up in turns with calls: on a real engine's device."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from farrank_calls.errors import Unavailable
from farrank_rankers.tokens import EncoderInput
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.device import device_loop
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_beside
from farrank_server.engine.loaded.warm_up import STEPS_TOKENS, warm_up_in_turns
from support.engine_bench import Faulty, opened_bench, until


async def test_a_loaded_ranker_is_warmed_up_with_short_inputs_and_then_has_a_speed(
    tiny_rankers: dict[str, Path],
) -> None:
    config = ServerConfig(rankers={"it": RankerConfig(str(tiny_rankers["firstp"]))})
    (ranker,) = load_beside("it", config, DocumentCache(0)).members
    assert ranker.tokens_per_s() == 0
    ranker.runtime = seen = Faulty(ranker.runtime, lambda _: None)
    async with opened_bench(tiny_rankers, lambda runtime: runtime) as bench:
        await bench.engine.device.in_turns(warm_up_in_turns(ranker))
    assert ranker.tokens_per_s() > 0
    assert seen.batches[:-1] == [(1, tokens) for tokens in STEPS_TOKENS]


async def test_calls_go_before_steps_but_steps_go_on_beside_calls_without_end(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_loop, "TURN_AFTER_S", 0.05)
    async with opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, lambda _: None)) as bench:
        is_over = False

        async def caller() -> None:
            while not is_over:
                await bench.rerank()

        batches = bench.runtimes["maxp"].batches
        at: list[int] = []

        def steps() -> Iterator[None]:
            for _ in range(5):
                at.append(len(batches))
                yield

        callers = [asyncio.ensure_future(caller()) for _ in range(8)]
        await until(lambda: len(batches) > 10)
        await bench.engine.device.in_turns(steps())
        is_over = True
        await asyncio.gather(*callers)
        assert len(at) == 5
        assert len(batches) > at[-1]


async def test_a_failed_step_fails_its_work_alone(tiny_rankers: dict[str, Path]) -> None:
    def steps() -> Iterator[None]:
        yield
        raise MemoryError("no room")

    async with opened_bench(tiny_rankers, lambda runtime: runtime) as bench:
        with pytest.raises(MemoryError, match="no room"):
            await bench.engine.device.in_turns(steps())
        assert len((await bench.rerank()).documents) > 0
        assert bench.count("farrank_worker_restarts_total") == 0


async def test_work_beside_calls_ends_when_the_device_hangs_or_stops(tiny_rankers: dict[str, Path]) -> None:
    began, may_end = threading.Event(), threading.Event()

    def hang(_: Sequence[EncoderInput]) -> None:
        began.set()
        may_end.wait(60)

    async with opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, hang)) as bench:
        device = bench.engine.device
        call = asyncio.ensure_future(bench.rerank())
        await asyncio.to_thread(began.wait)
        waiting = asyncio.ensure_future(device.in_turns(iter(())))
        await asyncio.sleep(0)
        device._give_up_thread()
        with pytest.raises(Unavailable, match="hung"):
            await waiting
        may_end.set()
        await call
        await asyncio.to_thread(bench.engine.close)
        with pytest.raises(Unavailable):
            await device.in_turns(iter(()))

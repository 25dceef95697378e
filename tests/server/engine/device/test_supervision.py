"""Devices that hang, fail every input, give no numbers, or restart: a real engine, faulty runtimes."""

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest

from farrank_calls.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.document_groups import kept
from farrank_runtimes.runtime import Capabilities, DeviceLost, DocumentScores, OutOfMemory, Runtime
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.call import ActiveCall, RerankCall, RerankResult, text_documents
from farrank_server.engine.device import batch_results, device_loop, supervision, watchdog
from farrank_server.engine.device.device_loop import DeviceState
from farrank_server.engine.loaded import loading
from support.engine_bench import (
    POISON,
    POISON_ID,
    QUERY,
    TEXTS,
    Bench,
    Faulty,
    OpenBench,
    Wrapped,
    opened_bench,
    scores,
    until,
)

Inputs = Sequence[EncoderInput]


class Hang:
    """Hangs in the first batches until the test ends."""

    def __init__(self, batches: int = 1) -> None:
        self.left = batches
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, inputs: Inputs) -> None:
        if self.left:
            self.left -= 1
            self.reached.set()
            self.released.wait(60)


@pytest.fixture(autouse=True)
def quick_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "TICK_S", 0.02)
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)
    monkeypatch.setattr(device_loop, "RELOAD_DELAYS_S", (0.0, 0.0))


def states_of(bench: Bench[Faulty]) -> list[DeviceState]:
    """Record the states of the device from now on."""
    states: list[DeviceState] = []
    bench.engine.device.on_change.append(states.append)
    return states


def hold_loading(bench: Bench[Faulty]) -> Hang:
    """Let the device restart only after the hang is released."""
    maxp, loading = bench.engine.loaded["maxp"], Hang()
    sound = maxp.load

    def load() -> Runtime:
        loading([])
        return sound()

    maxp.load = load
    return loading


def hangs_no_more(bench: Bench[Faulty]) -> None:
    """Give later threads enough time: on a busy machine a healthy batch may take a second."""
    bench.engine.device._hang_after_s = 60.0


def losing_once() -> Callable[[Inputs], None]:
    """Lose the device with the first batch."""
    armed = [True]

    def before(inputs: Inputs) -> None:
        if armed and armed.pop():
            raise DeviceLost("gone")

    return before


async def test_a_hung_device_is_recovered_on_another_thread_and_its_calls_run_once_more(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    hang = Hang()
    async with open_bench(hang, hang_after_s=0.3) as bench:
        hangs_no_more(bench)
        loading = hold_loading(bench)
        bench.engine.loaded["maxp"].load_s = 60.0
        states = states_of(bench)
        calls = [asyncio.create_task(bench.rerank()) for _ in range(3)]
        await until(lambda: bool(states))
        assert states == [DeviceState.RELOADING]
        assert bench.count("farrank_device_state", state="reloading") == 1
        with pytest.raises(Unavailable, match="being recovered") as refused:
            await bench.rerank()
        assert refused.value.retry_after_ms
        given_up = asyncio.create_task(bench.rerank(timeout_s=0.0))
        loading.released.set()
        for call in calls:
            assert scores(await call) == pytest.approx(wanted, abs=1e-5)
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await given_up
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 1
        assert bench.count("farrank_reruns_total", ranker="maxp") == 3
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        # The hung call returns long after. Its thread ends, and nothing else happens.
        hang.released.set()
        await until(lambda: [each.name for each in threading.enumerate()].count("farrank-device") == 1)
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert states == [DeviceState.RELOADING, DeviceState.READY]


async def test_a_call_whose_deadline_passes_while_the_device_is_recovered_is_late(
    open_bench: OpenBench,
) -> None:
    now_s = time.monotonic()
    call = RerankCall("maxp", QUERY, text_documents(TEXTS), None, now_s, now_s + 60.0)

    def before(inputs: Inputs) -> None:
        # The deadline passes while the call is pending, however long it took to arrive here.
        object.__setattr__(call, "deadline_s", time.monotonic())
        raise DeviceLost("gone")

    async with open_bench(before) as bench:
        loading = hold_loading(bench)
        with pytest.raises(DeadlineExceeded, match="while the device was recovered"):
            await bench.engine.rerank(call)
        # A drain does not wait for it, either: pending calls are refused.
        loading.released.set()
        await until(bench.is_ready)


async def test_calls_that_wait_for_the_device_are_refused_when_the_server_ends(open_bench: OpenBench) -> None:
    async with open_bench(losing_once()) as bench:
        loading = hold_loading(bench)
        call = asyncio.create_task(bench.rerank())
        await asyncio.to_thread(loading.reached.wait, 30)
        await until(lambda: bool(bench.engine.device._coming_back))
        bench.engine.device.abandon(Unavailable("the server ended"))
        with pytest.raises(Unavailable, match="the server ended"):
            await call
        loading.released.set()
        await until(bench.is_ready)


async def test_a_call_that_takes_the_device_with_it_twice_is_refused(open_bench: OpenBench) -> None:
    def before(inputs: Inputs) -> None:
        if any(POISON_ID in each.input_ids for each in inputs):
            raise DeviceLost("gone")

    async with open_bench(before) as bench:
        for ranker in bench.engine.loaded.values():
            sound = ranker.load
            ranker.load = lambda sound=sound: Faulty(sound(), before)  # type: ignore[misc]
        with pytest.raises(Unavailable, match="is being recovered") as died:
            await bench.rerank((POISON,))
        assert died.value.retry_after_ms
        assert bench.count("farrank_reruns_total", ranker="maxp") == 1
        await until(bench.is_ready)
        assert len(scores(await bench.rerank())) == len(TEXTS)
        assert bench.count("farrank_worker_restarts_total") == 2


async def test_a_thread_that_ends_is_replaced_and_its_calls_run_once_more(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench:
        states = states_of(bench)
        # More often than a device may be restarted in vain.
        times = device_loop.RELOADS_IN_VAIN + 1
        for _ in range(times):
            # An error that the loop does not catch: the restart of the device itself fails.
            loop, ends = bench.engine.device.loop, [True]
            serve = loop._serve

            def fails_once(ends: list[bool] = ends, serve: Callable[[], None] = serve) -> None:
                if ends and ends.pop():
                    raise RuntimeError("a bug in the loop")
                serve()

            def recover(error: BaseException) -> bool:
                raise RuntimeError("a bug where it is recovered")

            monkeypatch.setattr(loop, "_recover", recover)
            monkeypatch.setattr(loop, "_next_work", lambda: fails_once())
            assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert states == [DeviceState.RELOADING, DeviceState.READY] * times
        await until(lambda: [each.name for each in threading.enumerate()].count("farrank-device") == 1)


async def test_a_thread_that_is_stuck_between_two_native_calls_is_replaced(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MIN_BETWEEN_S", 0.5)
    stuck = Hang()
    async with open_bench(hang_after_s=0.3) as bench:
        hangs_no_more(bench)
        bench.engine.device.on_change.append(
            lambda state: monkeypatch.setattr(watchdog, "MIN_BETWEEN_S", 60.0)
        )
        loop = bench.engine.device.loop
        publish = loop.work.publish

        def published() -> None:
            stuck([])
            publish()

        monkeypatch.setattr(loop.work, "publish", published)
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 1
        stuck.released.set()


async def test_a_thread_at_rest_hangs_never(open_bench: OpenBench, wanted: list[float]) -> None:
    async with open_bench() as bench:
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        watching = bench.engine.device.loop.watchdog
        await until(lambda: watching._rests)
        for _ in range(100):
            assert not watching.tick(60.0)


async def test_a_ranker_whose_files_were_replaced_is_not_recovered_under_its_old_version(
    open_bench: OpenBench, tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(inputs: Inputs) -> None:
        raise DeviceLost("gone")

    opened: Callable[..., object] = vars(loading)["open_ranker_runtime"]
    async with open_bench(before) as bench:
        # As if a deployment had replaced these files by another model's.
        replaced = {str(tiny_rankers["maxp"]): str(tiny_rankers["avgp"])}

        def other(source: str, *rest: object, **named: object) -> object:
            return opened(replaced.get(source, source), *rest, **named)

        monkeypatch.setattr(loading, "open_ranker_runtime", other)
        with pytest.raises(Unavailable, match="lost"):
            await bench.rerank()
        assert bench.engine.lost.is_set()


async def test_a_device_that_hangs_again_while_it_is_loaded_is_lost_and_the_engine_can_still_end(
    open_bench: OpenBench,
) -> None:
    hang, again = Hang(), Hang()

    def load() -> Runtime:
        again([])
        raise AssertionError("never reached")

    async with open_bench(hang, hang_after_s=0.2) as bench:
        for ranker in bench.engine.loaded.values():
            ranker.load, ranker.load_s = load, 0.0
        with pytest.raises(Unavailable, match="lost"):
            await bench.rerank()
        assert bench.engine.lost.is_set()
        with pytest.raises(Unavailable, match="lost"):
            await bench.rerank()
        assert bench.count("farrank_device_state", state="lost") == 1
    hang.released.set()
    again.released.set()


async def test_a_slow_batch_is_no_hang(open_bench: OpenBench, wanted: list[float]) -> None:
    async with open_bench(lambda inputs: time.sleep(0.6), hang_after_s=0.2) as bench:
        # At these speeds such a batch takes seconds, and so does its scoring. 20 times as long is not a hang.
        bench.engine.loaded["maxp"].speeds = Speeds(Speed(100.0), Speed(10.0))
        assert scores(await bench.rerank(TEXTS[:2])) == pytest.approx(wanted[:2], abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 0


@pytest.mark.parametrize("fault", [ZeroDivisionError("a bug"), OutOfMemory("no memory at all")])
async def test_a_device_that_fails_every_input_is_recovered_after_a_few_calls(
    open_bench: OpenBench, wanted: list[float], fault: Exception
) -> None:
    attempts = 0

    def before(inputs: Inputs) -> None:
        nonlocal attempts
        attempts += 1
        raise fault

    async with open_bench(before) as bench:
        states = states_of(bench)
        answers = await asyncio.gather(*(bench.rerank(TEXTS * 8) for _ in range(6)), return_exceptions=True)
        own = [each for each in answers if isinstance(each, Internal | ResourceExhausted)]
        # The newly loaded runtime is healthy: calls that had not begun are scored there.
        assert len(own) == 3
        others = [each for each in answers if each not in own]
        assert {type(each) for each in others} <= {RerankResult, Unavailable}
        await until(bench.is_ready)
        assert states == [DeviceState.RELOADING, DeviceState.READY]
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        # Three calls are split down to one input each, and there is the probe.
        assert attempts < 3 * 9


async def test_inputs_that_fail_on_a_sound_device_cost_their_own_calls_alone(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    def before(inputs: Inputs) -> None:
        if any(POISON_ID in each.input_ids for each in inputs):
            raise ZeroDivisionError("a bug")

    async with open_bench(before) as bench:
        for _ in range(8):
            with pytest.raises(Internal):
                await bench.rerank((POISON,))
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 0


async def test_a_device_that_comes_back_in_vain_is_lost(open_bench: OpenBench) -> None:
    def before(inputs: Inputs) -> None:
        raise DeviceLost("gone")

    async with open_bench(before) as bench:
        for ranker in bench.engine.loaded.values():
            sound = ranker.load
            ranker.load = lambda sound=sound: Faulty(sound(), before)  # type: ignore[misc]
        for _ in range(device_loop.RELOADS_IN_VAIN + 1):
            with pytest.raises(Unavailable):
                await bench.rerank()
            await until(lambda: bench.engine.device.state is not DeviceState.RELOADING)
        assert bench.engine.lost.is_set()


async def test_the_old_runtimes_are_gone_before_new_ones_are_loaded(open_bench: OpenBench) -> None:
    armed = [True]

    def before(inputs: Inputs) -> None:
        if armed and armed.pop():
            raise DeviceLost("gone")

    async with open_bench(before) as bench:
        old = [ref(ranker.runtime.inner) for ranker in bench.engine.loaded.values()]  # type: ignore[attr-defined]
        alive: list[int] = []
        for ranker in bench.engine.loaded.values():
            load = ranker.load

            def counted(load: object = load) -> Runtime:
                gc.collect()
                alive.append(sum(each() is not None for each in old))
                return load()  # type: ignore[operator,no-any-return]

            ranker.load = counted
        bench.runtimes.clear()
        await bench.rerank()
        assert alive == [0, 0]


class Spoiled(Wrapped):
    """Scores the last document of every run with NaN."""

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        found = self.inner.score(documents, queries)
        return replace(found, scores=[*found.scores[:-1], math.nan])


@pytest.mark.parametrize("ranker", ["maxp", "biencoder"])
async def test_a_score_that_is_no_number_fails_the_call_and_is_not_kept(
    open_bench: OpenBench, ranker: str
) -> None:
    async with open_bench() as bench:
        loaded = bench.engine.loaded[ranker]
        loaded.runtime = Spoiled(loaded.runtime)
        with pytest.raises(FailedPrecondition, match=r"documents\[\d+\] has no finite score"):
            await bench.rerank(TEXTS, ranker=ranker)
        assert bench.count("farrank_batch_failures_total", ranker=ranker, reason="not_finite") == 1
        loaded.runtime = loaded.runtime.inner
        again = await bench.rerank(TEXTS, ranker=ranker)
        assert all(map(math.isfinite, scores(again)))
        assert again.tally.cached_chunks < len(TEXTS)


class Counting(Wrapped):
    """Counts the documents that it scores, and shows a test every batch."""

    def __init__(self, inner: Runtime) -> None:
        super().__init__(inner)
        self.scored = 0

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        self.scored += len(documents)
        return self.inner.score(documents, queries)


async def test_a_call_that_is_given_up_is_neither_scored_nor_run_again_in_halves(
    open_bench: OpenBench,
) -> None:
    hang = Hang()

    def before(inputs: Inputs) -> None:
        hang(inputs)
        raise OutOfMemory("too large")

    async with open_bench(before) as bench:
        given_up = asyncio.create_task(bench.rerank(TEXTS * 3))
        await asyncio.to_thread(hang.reached.wait, 30)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        maxp = bench.runtimes["maxp"]
        maxp.before = lambda inputs: None
        hang.released.set()
        assert len(scores(await bench.rerank(TEXTS[:1]))) == 1
        assert [rows for rows, _ in maxp.batches] == [1]


async def test_documents_of_a_call_that_is_given_up_are_not_scored(open_bench: OpenBench) -> None:
    hang = Hang()
    async with open_bench(hang) as bench:
        loaded = bench.engine.loaded["maxp"]
        loaded.runtime = counting = Counting(loaded.runtime)
        given_up = asyncio.create_task(bench.rerank(TEXTS[:4]))
        await asyncio.to_thread(hang.reached.wait, 30)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        hang.released.set()
        await bench.rerank(TEXTS[:1])
        assert counting.scored == 1


async def test_a_wrong_speed_is_measured_again_when_it_refuses_calls(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench:
        speed = bench.engine.loaded["maxp"].speeds.encoding
        speed.replace(5.0)
        with pytest.raises(DeadlineExceeded, match="at the measured speed"):
            await bench.rerank(timeout_s=10)
        # It was measured a moment ago, which is enough for a while.
        assert speed.per_s == 5.0
        monkeypatch.setattr(supervision, "MEASURED_LATELY_S", 0.0)
        with pytest.raises(DeadlineExceeded):
            await bench.rerank(timeout_s=10)
        await until(lambda: speed.per_s > 100)
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)


class Small(Wrapped):
    """Has room for the features of three chunks in addition to its batches."""

    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities(), max_kept_bytes=3 * 32 * 4)


async def test_features_of_incomplete_documents_are_bounded_on_the_device(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host: list[bool] = []
    counted: list[int] = []

    def watched(row: Features, *, on_host: bool) -> Features:
        places.append(on_host)
        return kept(row, on_host=on_host)

    places = on_host
    monkeypatch.setattr(batch_results, "kept", watched)
    texts = tuple(f"{n} " + "the river and the sea " * 300 for n in range(4))
    async with opened_bench(tiny_rankers, Small) as bench:
        work = bench.engine.device.loop.work
        count_kept = work.count_kept

        def count(call: ActiveCall, nbytes: int) -> None:
            count_kept(call, nbytes)
            counted.append(work.kept_bytes)

        monkeypatch.setattr(work, "count_kept", count)
        await bench.rerank(texts)
        await until(lambda: work.kept_bytes == 0)
        times = len(counted)
        given_up = asyncio.create_task(bench.rerank(texts * 10))
        await until(lambda: len(counted) > times)
        given_up.cancel()
        await until(lambda: work.kept_bytes == 0)
    assert set(on_host) == {True, False}
    assert 0 < max(counted) <= 3 * 32 * 4

"""Batches that begin one behind another: a real engine, real rankers, a device that a test steps through."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from farrank_calls.errors import Internal, ResourceExhausted
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Capabilities, DeviceLost, DocumentScores, Encoding, OutOfMemory, Runtime
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.call import ActiveCall
from farrank_server.engine.device import supervision
from farrank_server.engine.device.work_queue import Stop
from support.engine_bench import (
    POISON,
    POISON_ID,
    TEXTS,
    Bench,
    Wrapped,
    opened_bench,
    scores,
    until,
)

Inputs = Sequence[EncoderInput]
Hook = Callable[[Inputs], None]

# More steps than any test takes.
ALL = 10_000


def tokens(inputs: Inputs) -> int:
    return sum(each.tokens for each in inputs)


def nothing(inputs: Inputs) -> None:
    pass


@dataclass
class Device:
    """Runs batches on its own thread, in the order of their beginning, each when the test says so.

    `events` are the events of batches, numbered by their beginning: begin, refused, rows (requested), done
    (delivered); and score, which belongs to no batch. For the batches that ran, it also has the start times
    and the `seconds`.
    """

    at_begin: Hook = nothing
    on_device: Hook = nothing
    pause_s: float = 0.0
    scoring_pause_s: float = 0.0
    events: list[tuple[str, int]] = field(default_factory=list)
    batches: list[tuple[Runtime, Inputs]] = field(default_factory=list)
    ran: list[Inputs] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._thread = ThreadPoolExecutor(1)

    def step(self, batches: int = 1) -> None:
        """Let the device run a number of further batches."""
        self._steps.release(batches)

    def close(self) -> None:
        self._thread.shutdown()

    def begin(self, runtime: Runtime, inputs: Inputs) -> "OnDevice":
        number = len(self.batches)
        self.batches.append((runtime, inputs))
        try:
            self.at_begin(inputs)
        except Exception:
            self.events.append(("refused", number))
            raise
        self.events.append(("begin", number))
        return OnDevice(self, number, self._thread.submit(self._run, runtime, inputs))

    def happened(self, event: str, number: int) -> bool:
        return (event, number) in self.events

    def when(self, event: str, number: int) -> int:
        return self.events.index((event, number))

    def _run(self, runtime: Runtime, inputs: Inputs) -> tuple[list[Features], float]:
        assert self._steps.acquire(timeout=60)
        started_s = time.monotonic()
        self.on_device(inputs)
        time.sleep(self.pause_s)
        rows = runtime.encode(inputs).rows()
        self.ran.append(inputs)
        self.started_s.append(started_s)
        self.seconds.append(time.monotonic() - started_s)
        return rows, self.seconds[-1]


@dataclass
class OnDevice:
    device: Device
    number: int
    result: Future[tuple[list[Features], float]]

    def rows(self) -> list[Features]:
        self.device.events.append(("rows", self.number))
        rows, _ = self.result.result()
        self.device.events.append(("done", self.number))
        return rows

    def device_s(self) -> float:
        _, seconds = self.result.result(timeout=0)
        return seconds


class Queued(Wrapped):
    """A runtime whose batches have only begun when `encode` returns."""

    def __init__(self, inner: Runtime, device: Device) -> None:
        super().__init__(inner)
        self.device = device

    def encode(self, inputs: Inputs) -> Encoding:
        return self.device.begin(self.inner, inputs)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        self.device.events.append(("score", len(documents)))
        time.sleep(self.device.scoring_pause_s)
        return self.inner.score(documents, queries)

    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities(), packed=True, queued=True)


@dataclass
class Steps:
    """A bench on a device that stands still until it is stepped."""

    bench: Bench[Queued]
    device: Device
    timeout_s: float = 60.0

    def waiting(self, ranker: str = "maxp") -> int:
        return self.bench.waiting(ranker)

    async def queued(self, *calls: tuple[tuple[str, ...], str]) -> list[asyncio.Task[list[float]]]:
        """Make calls, one after the other. All their inputs wait behind the running batch."""
        tasks = []
        for texts, ranker in calls:
            inputs = self.waiting(ranker) + len(texts) + (ranker == "biencoder")
            tasks.append(asyncio.create_task(self.scores(texts, ranker)))
            await until(lambda inputs=inputs, ranker=ranker: self.waiting(ranker) == inputs)  # type: ignore[misc]
        return tasks

    async def scores(self, texts: tuple[str, ...], ranker: str = "maxp") -> list[float]:
        return scores(await self.bench.rerank(texts, ranker=ranker, timeout_s=self.timeout_s))

    async def busy(self) -> asyncio.Task[list[float]]:
        """Make a call of one document, and wait until the device has it and its thread waits for it."""
        task = asyncio.create_task(self.scores(TEXTS[:1]))
        await until(lambda: self.device.happened("rows", 0))
        return task


Open = Callable[..., AbstractAsyncContextManager[Steps]]


@pytest.fixture
def open_steps(tiny_rankers: dict[str, Path]) -> Open:
    @asynccontextmanager
    async def opened(**hooks: Hook) -> AsyncIterator[Steps]:
        device = Device(**hooks)  # type: ignore[arg-type]
        async with opened_bench(tiny_rankers, lambda runtime: Queued(runtime, device)) as bench:
            for lane in bench.engine.loaded.values():
                # So fast that inputs are due in the order of their calls.
                lane.speeds = Speeds.measured(1e9)
            try:
                yield Steps(bench, device)
            finally:
                device.step(ALL)
        device.close()

    return opened


async def test_the_next_batch_is_begun_before_the_last_is_waited_for_and_never_two(
    open_steps: Open, wanted: list[float]
) -> None:
    async with open_steps() as steps:
        device = steps.device
        first = await steps.busy()
        (many,) = await steps.queued((TEXTS * 8, "maxp"))
        device.step()
        await until(lambda: device.happened("rows", 1))
        # The device has batches 1 and 2, and its thread waits for 1. A third has to wait, however many inputs
        # are pending.
        assert not device.happened("begin", 3)
        assert steps.waiting() > 0
        device.step(ALL)
        assert await first + await many == pytest.approx(wanted[:1] + wanted * 8, abs=1e-5)
        last = len(device.batches) - 1
        assert last >= 3
        for number in range(1, last):
            assert device.when("begin", number + 1) < device.when("rows", number)
        for number in range(last - 1):
            assert device.when("done", number) < device.when("begin", number + 2)
        # Inputs that arrived while the thread waited for the device go before the scores of its batch.
        assert device.when("done", 0) < device.when("begin", 1) < device.when("score", 1)
        assert sum(map(len, device.ran)) == 1 + 8 * len(TEXTS)


async def test_packed_batches_are_full_whatever_the_lengths(open_steps: Open) -> None:
    async with open_steps() as steps:
        await steps.busy()
        (many,) = await steps.queued((TEXTS * 8, "maxp"))
        steps.device.step(ALL)
        await many
        sizes = [tokens(inputs) for _, inputs in steps.device.batches[1:]]
        longest = max(each.tokens for _, inputs in steps.device.batches for each in inputs)
        assert all(1024 - longest < size <= 1024 for size in sizes[:-1])
        await until(
            lambda: (
                steps.bench.count("farrank_batch_padding_ratio_count", ranker="maxp")
                == len(steps.device.batches)
            )
        )
        assert steps.bench.count("farrank_batch_padding_ratio_sum", ranker="maxp") == len(
            steps.device.batches
        )


@pytest.mark.parametrize("where", ["at_begin", "on_device"])
async def test_batches_that_run_out_of_memory_are_split_and_none_is_lost_or_doubled(
    open_steps: Open, wanted: list[float], where: str
) -> None:
    def too_large(inputs: Inputs) -> None:
        if tokens(inputs) > 150:
            raise OutOfMemory("too large")

    async with open_steps(**{where: too_large}) as steps:
        first = await steps.busy()
        (many,) = await steps.queued((TEXTS * 8, "maxp"))
        steps.device.step(ALL)
        assert await first + await many == pytest.approx(wanted[:1] + wanted * 8, abs=1e-5)
        assert sum(map(len, steps.device.ran)) == 1 + 8 * len(TEXTS)
        assert steps.bench.batcher().budget.tokens < 300


@pytest.mark.parametrize("where", ["at_begin", "on_device"])
async def test_the_budget_shrinks_once_for_a_batch_and_the_one_behind_it_runs(
    open_steps: Open, wanted: list[float], where: str
) -> None:
    failed: list[int] = []

    def once(inputs: Inputs) -> None:
        # The batch fails, and so does its first half.
        if len(inputs) > 1 and len(failed) < 2:
            failed.append(tokens(inputs))
            raise OutOfMemory("for a moment")

    async with open_steps(**{where: once}) as steps:
        first = await steps.busy()
        (many,) = await steps.queued((TEXTS * 8, "maxp"))
        steps.device.step(ALL)
        assert await first + await many == pytest.approx(wanted[:1] + wanted * 8, abs=1e-5)
        assert steps.bench.batcher().budget.tokens == failed[0] // 2
        assert sum(map(len, steps.device.ran)) == 1 + 8 * len(TEXTS)
        full = [tokens(inputs) for _, inputs in steps.device.batches if tokens(inputs) > 900]
        # A batch that could not even begin is handled before the next is formed.
        assert len(full) == (1 if where == "at_begin" else 2)


@pytest.mark.parametrize("where", ["at_begin", "on_device"])
@pytest.mark.parametrize(
    ("fault", "answer"), [(ZeroDivisionError("a bug"), Internal), (OutOfMemory("never"), ResourceExhausted)]
)
async def test_one_bad_input_costs_its_own_call_alone(
    open_steps: Open, wanted: list[float], where: str, fault: Exception, answer: type[Exception]
) -> None:
    def poisoned(inputs: Inputs) -> None:
        if any(POISON_ID in each.input_ids for each in inputs):
            raise fault

    async with open_steps(**{where: poisoned}) as steps:
        await steps.busy()
        good, bad, also_good = await steps.queued(
            (TEXTS * 3, "maxp"), ((*TEXTS, POISON), "maxp"), (TEXTS * 3, "maxp")
        )
        steps.device.step(ALL)
        assert await good == pytest.approx(wanted * 3, abs=1e-5)
        assert await also_good == pytest.approx(wanted * 3, abs=1e-5)
        with pytest.raises(answer):
            await bad


async def test_a_device_lost_with_two_batches_takes_their_calls_once_each_and_no_other(
    open_steps: Open, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    settle = ActiveCall.settle

    def counted(call: ActiveCall, error: Exception | None = None) -> None:
        if error is not None:
            failed.append(call.id)
        settle(call, error)

    monkeypatch.setattr(ActiveCall, "settle", counted)

    def gone(inputs: Inputs) -> None:
        raise DeviceLost("gone")

    async with open_steps() as steps:
        device = steps.device
        first = await steps.busy()
        one, two, waits = await steps.queued((TEXTS * 2, "maxp"), (TEXTS * 6, "maxp"), (TEXTS, "maxp"))
        device.step()
        await until(lambda: device.happened("rows", 1))
        device.on_device = gone
        device.step(ALL)
        # They run once more, starting from their texts.
        assert await one == pytest.approx(wanted * 2, abs=1e-5)
        assert await two == pytest.approx(wanted * 6, abs=1e-5)
        # It had not begun: the newly loaded runtime gets it.
        assert await waits == pytest.approx(wanted, abs=1e-5)
        assert await first == pytest.approx(wanted[:1], abs=1e-5)
        assert len(device.batches) == 3
        assert len(failed) == len(set(failed)) == 2
        assert steps.bench.count("farrank_reruns_total", ranker="maxp") == 2
        assert steps.bench.count("farrank_worker_restarts_total") == 1
        assert steps.bench.count("farrank_admitted_tokens", ranker="maxp") == 0


async def test_stopping_ends_after_what_was_begun(
    open_steps: Open, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STOP_GRACE_S", 60.0)
    async with open_steps() as steps:
        device, engine = steps.device, steps.bench.engine
        await steps.busy()
        one, two = await steps.queued((TEXTS * 2, "maxp"), (TEXTS, "maxp"))
        device.step()
        await until(lambda: device.happened("rows", 1))
        (waits,) = await steps.queued((TEXTS, "maxp"))
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await until(lambda: any(isinstance(each, Stop) for each in engine.device.loop.inbox.peek()))
        device.step(ALL)
        await closing
        assert await one + await two == pytest.approx(wanted * 3, abs=1e-5)
        assert len(device.batches) == 3
        assert not waits.done()
        waits.cancel()


async def test_a_cancelled_call_with_running_inputs_harms_no_other_call(
    open_steps: Open, wanted: list[float]
) -> None:
    async with open_steps() as steps:
        device = steps.device
        await steps.busy()
        gone, stays = await steps.queued((TEXTS * 4, "maxp"), (TEXTS * 4, "maxp"))
        device.step()
        await until(lambda: device.happened("rows", 1))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        device.step(ALL)
        assert await stays == pytest.approx(wanted * 4, abs=1e-5)
        assert steps.bench.count("farrank_admitted_tokens", ranker="maxp") == 0


async def test_rankers_begin_batches_behind_each_other(open_steps: Open) -> None:
    async with open_steps() as steps:
        device = steps.device
        await steps.busy()
        calls = [(TEXTS * 4, ranker) for ranker in ("maxp", "biencoder", "maxp", "biencoder")]
        tasks = await steps.queued(*calls)
        device.step(ALL)
        pair, dual, also_pair, also_dual = [await task for task in tasks]
        assert pair == pytest.approx(also_pair, abs=1e-5)
        assert dual == pytest.approx(also_dual, abs=1e-5)
        changes = [
            number
            for number in range(1, len(device.batches) - 1)
            if device.batches[number][0] is not device.batches[number + 1][0]
        ]
        assert len(changes) >= 2
        for number in changes:
            assert device.when("begin", number + 1) < device.when("rows", number)


async def test_a_ranker_whose_runtime_waits_takes_its_turn_when_nothing_else_runs(
    open_steps: Open,
) -> None:
    async with open_steps() as steps:
        device = steps.device
        alone = steps.bench.engine.loaded["biencoder"]
        in_flight: list[int] = []

        class Waiting(Wrapped):
            def encode(self, inputs: Inputs) -> Encoding:
                begun, done = (
                    sum(event == which for event, _ in device.events) for which in ("begin", "done")
                )
                in_flight.append(begun - done)
                return super().encode(inputs)

        alone.runtime = Waiting(alone.runtime.inner)  # type: ignore[attr-defined]
        alone.capabilities = alone.runtime.capabilities()
        await steps.busy()
        calls = [(TEXTS * 4, ranker) for ranker in ("maxp", "biencoder", "maxp", "biencoder")]
        tasks = await steps.queued(*calls)
        device.step(ALL)
        pair, dual, also_pair, also_dual = [await task for task in tasks]
        assert pair == pytest.approx(also_pair, abs=1e-5)
        assert dual == pytest.approx(also_dual, abs=1e-5)
        assert len(in_flight) >= 2
        assert set(in_flight) == {0}


async def test_an_urgent_call_waits_at_most_for_what_was_begun(open_steps: Open) -> None:
    async with open_steps() as steps:
        device = steps.device
        # Each batch of the large call is due minutes after the one before it.
        steps.bench.engine.loaded["maxp"].speeds, steps.timeout_s = Speeds.measured(10), 1e6
        await steps.busy()
        (large,) = await steps.queued((TEXTS * 20, "maxp"))
        device.step()
        await until(lambda: device.happened("rows", 1))
        (urgent,) = await steps.queued(((POISON,) * 3, "maxp"))
        device.step(3)
        await urgent
        holds = [sum(POISON_ID in each.input_ids for each in inputs) for _, inputs in device.batches]
        assert holds[:4] == [0, 0, 0, 3]
        assert not large.done()


async def test_time_behind_another_batch_is_queueing_and_no_work(open_steps: Open) -> None:
    async with open_steps() as steps:
        device, bench, lane = steps.device, steps.bench, steps.bench.engine.loaded["maxp"]
        observed: list[float] = []

        class Watched(Speed):
            def observe(self, units: float, busy_s: float) -> None:
                observed.append(busy_s)

        first = await steps.busy()
        lane.speeds = Speeds(Watched(1e9), Speed(1e9))
        device.pause_s, device.scoring_pause_s = 0.05, 0.03
        many = asyncio.create_task(bench.rerank(TEXTS * 16))
        await until(lambda: steps.waiting() == 16 * len(TEXTS))
        began_s = time.monotonic()
        device.step(ALL)
        await first
        outcome = await many
        counted = "farrank_batch_duration_seconds_count"
        await until(lambda: bench.count(counted, ranker="maxp") == len(device.batches))
        elapsed_s = time.monotonic() - began_s
        assert len(device.seconds) >= 6
        worked_s = sum(device.seconds)
        busy_s = bench.count("farrank_device_busy_seconds_total", device="cpu")
        # In addition to the batches, the scoring of the last one, behind which no batch runs.
        assert worked_s + device.scoring_pause_s <= busy_s + 1e-6
        assert busy_s <= elapsed_s + 1e-3
        assert bench.count("farrank_batch_duration_seconds_sum", ranker="maxp") == pytest.approx(worked_s)
        assert outcome.tally.inference_ns / 1e9 == pytest.approx(sum(device.seconds[1:]), abs=1e-3)
        # Its last inputs waited until the device had finished all others.
        assert outcome.tally.queue_ns / 1e9 >= device.started_s[-1] - began_s
        assert observed
        assert set(observed) <= set(device.seconds)


async def test_a_runtime_that_waits_has_each_batch_scored_before_the_next(
    tiny_rankers: dict[str, Path], wanted: list[float]
) -> None:
    events: list[str] = []

    class Watched(Wrapped):
        def encode(self, inputs: Inputs) -> Encoding:
            events.append("encode")
            return self.inner.encode(inputs)

        def score(
            self, documents: Sequence[Features], queries: Sequence[Features] | None = None
        ) -> DocumentScores:
            events.append("score")
            return self.inner.score(documents, queries)

    async with opened_bench(tiny_rankers, Watched) as bench:
        assert scores(await bench.rerank(TEXTS * 8)) == pytest.approx(wanted * 8, abs=1e-5)
    assert events == ["encode", "score"] * (len(events) // 2)
    assert len(events) >= 6

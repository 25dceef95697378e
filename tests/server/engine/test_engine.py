"""Calls while the device is slow, fails, or dies: a real engine, a real ranker, injected faults."""

import ast
import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Encoding, Tokenizer

from farrank_calls.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from farrank_rankers.features import Features
from farrank_rankers.features import batched as put_together
from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes import document_groups
from farrank_runtimes.runtime import DeviceLost, OutOfMemory, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_server.config.schema import BatchingConfig, DeviceConfig, RankerConfig, ServerConfig
from farrank_server.engine import engine as engine_module
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.call import ActiveCall, ExpectedDocument, RerankCall, text_documents
from farrank_server.engine.device import device_loop
from farrank_server.engine.device import device_loop as worker
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.device.work_queue import Inbox, Message
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.metrics import Metrics
from support.engine_bench import (
    POISON,
    POISON_ID,
    QUERY,
    TEXTS,
    Bench,
    Faulty,
    OpenBench,
    longest,
    scores,
    until,
)

ROOT = Path(__file__).parents[3]


async def test_a_batch_that_runs_out_of_memory_is_split_and_smaller_ones_follow(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        if len(inputs) * longest(inputs) > 150:
            raise OutOfMemory("too large")

    async with open_bench(before) as bench:
        assert scores(await bench.rerank(TEXTS * 4)) == pytest.approx(wanted * 4, abs=1e-5)
        assert max(rows * length for rows, length in bench.runtimes["maxp"].batches) <= 150
        assert bench.count("farrank_batch_failures_total", ranker="maxp", reason="out_of_memory") > 0
        failures = bench.count("farrank_batch_failures_total", ranker="maxp", reason="out_of_memory")
        assert bench.batcher().budget.tokens < 1024
        await bench.rerank(TEXTS[:4])
        assert (
            bench.count("farrank_batch_failures_total", ranker="maxp", reason="out_of_memory") <= failures + 1
        )


async def test_the_device_forgets_answered_calls_and_learns_of_cancelled_ones(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's thread is not woken for a call that it finished itself, while its answer is sent."""
    told: list[str] = []
    put = Inbox.put

    def noted(inbox: Inbox, message: Message, *, wakes: bool = True) -> None:
        told.append(f"{type(message).__name__}{'' if wakes else ' (wakes nobody)'}")
        put(inbox, message, wakes=wakes)

    held = threading.Event()
    held.set()
    async with open_bench(lambda inputs: held.wait(60) and None) as bench:
        monkeypatch.setattr(Inbox, "put", noted)
        await bench.rerank(TEXTS[:2])
        work = bench.engine.device.loop.work
        await until(lambda: not work._open and not work.started)
        assert told == ["Open (wakes nobody)", "Inputs"]

        told.clear()
        held.clear()
        call = asyncio.create_task(bench.rerank(TEXTS[:2]))
        await until(lambda: "Inputs" in told)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        held.set()
        assert told == ["Open (wakes nobody)", "Inputs", "Close"]
        await until(lambda: not work._open and not work.started)


async def test_the_wait_for_the_event_loop_is_no_work_of_the_device(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_loop, "ANSWER_SENT_S", 3600.0)
    async with open_bench(lambda inputs: None) as bench:

        def busy_s() -> float:
            return bench.count("farrank_device_busy_seconds_total", device="cpu")

        for _ in range(2):  # the second arrives while the thread waits to count the first
            await bench.rerank(TEXTS[:1])
            assert busy_s() == 0
        monkeypatch.setattr(device_loop, "ANSWER_SENT_S", 2.0)
        await bench.rerank(TEXTS[:1])
        await until(lambda: bench.count("farrank_encoded_tokens_total", ranker="maxp") > 0)
        assert 0 < busy_s() < 2.0
        assert bench.engine.loaded["maxp"].speeds.scoring.per_s > 1 / 2.0


async def test_documents_that_do_not_fit_together_are_scored_apart(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def batched(documents: Sequence[Features]) -> tuple[Features, torch.Tensor]:
        if len(documents) > 3:
            raise torch.OutOfMemoryError("too many")
        return put_together(documents)

    monkeypatch.setattr(document_groups, "batched", batched)
    async with open_bench() as bench:
        assert scores(await bench.rerank(TEXTS * 4)) == pytest.approx(wanted * 4, abs=1e-5)
        assert bench.count("farrank_batch_failures_total", ranker="maxp", reason="out_of_memory") > 0


async def test_a_device_found_lost_while_documents_are_put_together_is_recovered(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[bool] = []

    def batched(documents: Sequence[Features]) -> tuple[Features, torch.Tensor]:
        if armed and armed.pop():
            raise RuntimeError("CUDA error: unspecified launch failure")
        return put_together(documents)

    monkeypatch.setattr(document_groups, "batched", batched)
    async with open_bench() as bench:
        armed.append(True)
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_reruns_total", ranker="maxp") == 1


async def test_one_input_too_large_for_the_device_costs_its_own_call_alone(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        if any(POISON_ID in each.input_ids for each in inputs):
            raise OutOfMemory("never fits")

    async with open_bench(before) as bench:
        good, bad, also_good = await asyncio.gather(
            bench.rerank(), bench.rerank((*TEXTS, POISON)), bench.rerank(), return_exceptions=True
        )
        assert scores(good) == pytest.approx(wanted, abs=1e-5)
        assert scores(also_good) == pytest.approx(wanted, abs=1e-5)
        assert isinstance(bad, ResourceExhausted)
        assert bad.retry_after_ms


async def test_a_bug_met_by_one_call_is_internal_to_it_and_nothing_to_its_companions(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        if any(POISON_ID in each.input_ids for each in inputs):
            raise ZeroDivisionError("a bug")

    async with open_bench(before) as bench:
        good, bad = await asyncio.gather(
            bench.rerank(), bench.rerank((POISON, *TEXTS)), return_exceptions=True
        )
        assert scores(good) == pytest.approx(wanted, abs=1e-5)
        assert isinstance(bad, Internal)


@pytest.mark.parametrize("fault", [DeviceLost("gone"), SystemExit(3)])
async def test_a_worker_that_dies_comes_back_and_does_its_work_once_more(
    open_bench: OpenBench, wanted: list[float], fault: BaseException
) -> None:
    armed = [True]

    def before(inputs: Sequence[EncoderInput]) -> None:
        if armed and armed.pop():
            raise fault

    async with open_bench(before) as bench:
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 1
        assert bench.count("farrank_reruns_total", ranker="maxp") == 1
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0


async def test_a_device_that_stays_lost_refuses_every_call_and_says_so(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RELOAD_DELAYS_S", (0.0, 0.0))

    def before(inputs: Sequence[EncoderInput]) -> None:
        raise DeviceLost("gone")

    def load() -> Runtime:
        raise RuntimeError("no device")

    async with open_bench(before) as bench:
        for lane in bench.engine.loaded.values():
            lane.load = load
        with pytest.raises(Unavailable):
            await bench.rerank()
        await until(bench.engine.lost.is_set)
        with pytest.raises(Unavailable, match="lost"):
            await bench.rerank()


async def test_a_load_that_exits_is_a_lost_device_too(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RELOAD_DELAYS_S", (0.0,))

    def before(inputs: Sequence[EncoderInput]) -> None:
        raise DeviceLost("gone")

    def load() -> Runtime:
        raise SystemExit(1)

    async with open_bench(before) as bench:
        for lane in bench.engine.loaded.values():
            lane.load = load
        with pytest.raises(Unavailable):
            await bench.rerank()
        await until(bench.engine.lost.is_set)


async def test_a_call_that_failed_is_read_no_further(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        raise ZeroDivisionError("a bug")

    settle, has_failed = ActiveCall.settle, threading.Event()

    def failed(call: ActiveCall, error: Exception | None = None) -> None:
        settle(call, error)
        has_failed.set()

    monkeypatch.setattr(ActiveCall, "settle", failed)
    async with open_bench(before) as bench:
        texts = tuple(f"{n} {TEXTS[11] * 40}" for n in range(500))
        reader = bench.engine.loaded["maxp"].reader
        document_steps, read = reader.document_steps, []

        def counted(text: str, *arguments: object, **options: object) -> object:
            read.append(text)
            # The reading does not get further before the device has failed, however busy the machine is.
            if len(read) > 100:
                assert has_failed.wait(60)
            return document_steps(text, *arguments, **options)  # type: ignore[arg-type]

        reader.document_steps = counted  # type: ignore[assignment,method-assign]
        with pytest.raises(Internal):
            await bench.rerank(texts, timeout_s=3600)
        assert len(read) < 400


async def test_two_precisions_of_one_source_share_no_encoding(tiny_rankers: dict[str, Path]) -> None:
    source = str(tiny_rankers["biencoder"])
    config = ServerConfig(
        rankers={
            "full": RankerConfig(source, precision="fp32"),
            "half": RankerConfig(source, precision="bf16"),
        }
    )
    cache, metrics = DocumentCache(config.cache_bytes), Metrics()
    lanes = load_rankers(config, cache)
    assert lanes[0].version == lanes[1].version
    engine = Engine(config, lanes, DeviceThread(), cache, metrics)
    try:
        bench = Bench[Faulty](engine, {}, metrics)
        await bench.rerank(ranker="full")
        assert (await bench.rerank(ranker="half")).tally.cached_chunks == 0
        assert (await bench.rerank(ranker="half")).tally.cached_chunks == len(TEXTS)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("parts", "configured", "expected"), [(1, None, 1.08), (2, None, 1.2), (2, 1.5, 1.5)]
)
def test_batches_that_are_divided_by_length_may_have_more_padding(
    tiny_rankers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
    configured: float | None,
    expected: float,
) -> None:
    undivided = TorchRuntime.capabilities
    monkeypatch.setattr(TorchRuntime, "capabilities", lambda own: replace(undivided(own), parts=parts))
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        batching=BatchingConfig(max_padding_ratio=configured),
    )
    (ranker,) = load_rankers(config, DocumentCache(0))
    assert isinstance(ranker, LoadedRanker)
    assert ranker.policy.max_padding_ratio == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
async def test_cached_documents_meet_fresh_ones_on_the_device(tiny_rankers: dict[str, Path]) -> None:
    config = ServerConfig(
        rankers={"bi": RankerConfig(str(tiny_rankers["biencoder"]), precision="fp32")},
        device=DeviceConfig("cuda:0"),
    )
    cache, metrics = DocumentCache(config.cache_bytes), Metrics()
    engine = Engine(config, load_rankers(config, cache), DeviceThread(), cache, metrics)
    try:
        bench = Bench[Faulty](engine, {}, metrics)
        first = await bench.rerank(TEXTS[:6], ranker="bi")
        mixed = await bench.rerank(ranker="bi")
        assert mixed.tally.cached_chunks == 6
        assert scores(mixed)[:6] == pytest.approx(scores(first), abs=1e-5)
    finally:
        engine.close()


class Hold:
    """Stops the device before a batch until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, inputs: Sequence[EncoderInput]) -> None:
        self.reached.set()
        assert self.released.wait(120)


async def test_an_abandoned_call_never_reaches_the_device_again(open_bench: OpenBench) -> None:
    hold = Hold()
    async with open_bench(hold) as bench:
        abandoned = asyncio.create_task(bench.rerank(TEXTS * 20))
        await asyncio.to_thread(hold.reached.wait, 30)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        hold.released.set()
        await bench.rerank(TEXTS[:1])
        assert len(bench.runtimes["maxp"].batches) == 2
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0


async def test_the_backlog_shrinks_while_a_batch_runs(open_bench: OpenBench) -> None:
    hold = Hold()
    async with open_bench(hold) as bench:
        ranker = bench.engine.loaded["maxp"]
        # So slow that no machine finishes the batch before the test ends.
        ranker.speeds.encoding.replace(0.1)
        assert bench.engine.backlog_s() == 0.0
        call = asyncio.create_task(bench.rerank(TEXTS[:1], timeout_s=1e6))
        await asyncio.to_thread(hold.reached.wait, 30)
        running_s = bench.engine.backlog_s()
        assert running_s > 10
        await until(lambda: bench.engine.backlog_s() < running_s)
        hold.released.set()
        await call
        assert bench.engine.backlog_s() == 0.0


async def test_a_call_late_in_the_queue_never_reaches_the_device(open_bench: OpenBench) -> None:
    hold = Hold()
    async with open_bench(hold) as bench:
        # A speed measured on a busy machine may be so low that the late call is not admitted.
        bench.engine.loaded["maxp"].speeds = Speeds.measured(1e9)
        first = asyncio.create_task(bench.rerank(TEXTS[:1]))
        await asyncio.to_thread(hold.reached.wait, 30)
        with pytest.raises(DeadlineExceeded, match="deadline passed"):
            await bench.rerank(timeout_s=0.5)
        hold.released.set()
        await first
        await bench.rerank(TEXTS[:1])
        assert [rows for rows, _ in bench.runtimes["maxp"].batches] == [1, 1]


async def test_inputs_of_all_waiting_calls_share_batches(open_bench: OpenBench) -> None:
    hold = Hold()
    async with open_bench(hold) as bench:
        first = asyncio.create_task(bench.rerank(TEXTS[:1]))
        await asyncio.to_thread(hold.reached.wait, 30)
        others = [asyncio.create_task(bench.rerank(("the same words",))) for _ in range(20)]
        await until(lambda: bench.waiting() == 20)
        hold.released.set()
        await asyncio.gather(first, *others)
        assert [rows for rows, _ in bench.runtimes["maxp"].batches] == [1, 20]


async def test_a_call_of_5_documents_does_not_wait_for_one_of_1000(open_bench: OpenBench) -> None:
    hold, sizes, of_small = Hold(), list[int](), list[bool]()

    def before(inputs: Sequence[EncoderInput]) -> None:
        sizes.append(len(inputs))
        of_small.append(any(POISON_ID in each.input_ids for each in inputs))
        hold(inputs)

    async with open_bench(before) as bench:
        # So slow that the large call's last inputs are due minutes after the small call arrives.
        bench.engine.loaded["maxp"].speeds = Speeds.measured(100)
        texts = tuple(f"{n} {TEXTS[8]}" for n in range(1000))
        large = asyncio.create_task(bench.rerank(texts, timeout_s=1e6))
        await until(lambda: hold.reached.is_set() and bench.waiting() == 1000 - sizes[0])
        small = asyncio.create_task(bench.rerank((POISON,) * 5, timeout_s=1e6))
        await until(lambda: bench.waiting() == 1000 - sizes[0] + 5)
        hold.released.set()
        await asyncio.gather(small, large)
        # In the order of arrival, its inputs would be in the last batches.
        assert any(of_small)
        assert not any(of_small[len(of_small) // 2 :])


async def test_cached_documents_need_no_room_in_the_queue(open_bench: OpenBench) -> None:
    async with open_bench(max_queued_tokens=1500) as bench:
        for start in range(0, len(TEXTS), 4):
            await bench.rerank(TEXTS[start : start + 4], ranker="biencoder")
        together = await bench.rerank(TEXTS * 4, ranker="biencoder")
        assert together.tally.pairs == 1
        assert scores(together)[: len(TEXTS)] == pytest.approx(scores(together)[-len(TEXTS) :], abs=1e-6)


async def test_several_rankers_share_the_device(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        outcomes = await asyncio.gather(
            *(bench.rerank(ranker=name) for name in ("maxp", "biencoder", "maxp", "biencoder"))
        )
        assert scores(outcomes[0]) == pytest.approx(scores(outcomes[2]), abs=1e-5)
        assert scores(outcomes[1]) == pytest.approx(scores(outcomes[3]), abs=1e-5)
        with pytest.raises(NotFound, match="maxp, biencoder"):
            await bench.rerank(ranker="none")


async def test_max_chunks_is_part_of_what_the_cache_remembers(open_bench: OpenBench) -> None:
    long = ("the river and the sea " * 200,)
    async with open_bench() as bench:
        whole = await bench.rerank(long, ranker="biencoder")
        short = await bench.rerank(long, ranker="biencoder", max_chunks=1)
        assert len(short.documents[0].spans) == 1 < len(whole.documents[0].spans)
        again = await bench.rerank(long, ranker="biencoder")
        assert again.documents[0].spans.tolist() == whole.documents[0].spans.tolist()


def counted_readings(bench: Bench[Faulty], ranker: str) -> list[str]:
    """Record the texts that a ranker's reader gets from now on."""
    reader = bench.engine.loaded[ranker].reader
    document_steps, read = reader.document_steps, []

    def counted(text: str, *arguments: object, **options: object) -> object:
        read.append(text)
        return document_steps(text, *arguments, **options)  # type: ignore[arg-type]

    reader.document_steps = counted  # type: ignore[assignment,method-assign]
    return read


async def test_an_ensemble_is_admitted_as_one_call_and_holds_its_texts_once(open_bench: OpenBench) -> None:
    hold = Hold()
    # There is room for the inputs of either member, but not for both.
    async with open_bench(hold, max_queued_tokens=1300) as bench:
        read = counted_readings(bench, "maxp")
        first = asyncio.create_task(bench.rerank(TEXTS[:1], ranker="both"))
        await asyncio.to_thread(hold.reached.wait, 30)
        await until(lambda: bool(read))
        assert bench.count("farrank_held_characters") == len(TEXTS[0])
        assert bench.count("farrank_admitted_tokens", ranker="maxp") > 0
        with pytest.raises(ResourceExhausted, match="no room") as refused:
            await bench.rerank(TEXTS * 2, ranker="both")
        assert refused.value.retry_after_ms
        assert read == [TEXTS[0]]
        hold.released.set()
        await first
        alone = [await bench.rerank(ranker=name) for name in ("maxp", "biencoder")]
        assert scores(await bench.rerank(TEXTS, ranker="both")) == pytest.approx(
            [sum(each) / 2 for each in zip(*map(scores, alone), strict=True)], abs=1e-5
        )
        assert bench.count("farrank_held_characters") == 0


async def test_a_member_that_fails_ends_the_others_and_its_error_is_the_answer(
    open_bench: OpenBench,
) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        raise OutOfMemory("never fits")

    async with open_bench(before) as bench:
        bench.runtimes["biencoder"].before = lambda inputs: time.sleep(0.05)
        with pytest.raises(ResourceExhausted) as failed:
            await bench.rerank(TEXTS * 20, ranker="both")
        assert failed.value.retry_after_ms
        assert bench.count("farrank_admitted_tokens", ranker="biencoder") == 0
        assert len(await asyncio.gather(bench.rerank(ranker="biencoder"))) == 1


def test_nothing_is_raised_inside_except_star() -> None:
    """Before Python 3.11.4 such an error would reach the caller inside an exception group."""
    raised = [
        f"{path}:{inner.lineno}"
        for path in (ROOT / "server").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.TryStar)
        for handler in node.handlers
        for inner in ast.walk(handler)
        if isinstance(inner, ast.Raise)
    ]
    assert raised == []


async def test_a_density_that_drifted_makes_no_call_wrong_for_ever(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    async with open_bench(max_queued_tokens=2000) as bench:
        # The estimate after texts in a script with a token or more per character.
        bench.engine.loaded["maxp"].density.per_character = 2.0
        assert scores(await bench.rerank()) == pytest.approx(wanted, abs=1e-5)
        with pytest.raises(InvalidArgument, match="at least"):
            await bench.rerank(tuple("the sea " * 3000 for _ in range(4)))


async def test_a_hopeless_call_is_refused_before_anything_is_read(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        bench.engine.loaded["maxp"].speeds.encoding.replace(100.0)
        read = counted_readings(bench, "maxp")
        with pytest.raises(DeadlineExceeded, match=r"needs about \d+ s at the measured speed"):
            await bench.rerank(TEXTS * 8, timeout_s=5)
        assert read == []


async def test_a_text_whose_tokens_are_counted_is_read_whole_and_admission_knows(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[float] = []

    class Reading(Speed):
        def observe(self, units: float, busy_s: float) -> None:
            observed.append(units)

    monkeypatch.setattr(engine_module, "Speed", Reading)
    monkeypatch.setattr(engine_module, "INITIAL_READING_PER_S", 10_000.0)
    text = "the sea " * 20_000
    async with open_bench() as bench:
        now_s = time.monotonic()
        cut = RerankCall("maxp", QUERY, text_documents([text]), None, now_s, now_s + 60)
        counted = replace(cut, count_tokens=True, deadline_s=now_s + 20)
        await bench.engine.rerank(cut)
        beginning = sum(observed)
        await bench.engine.rerank(counted)
        assert beginning < sum(observed) - beginning == len(text) * ServerConfig().tokenizer_threads
        # So long that reading all of it takes longer than the call's time, but reading its beginning does
        # not.
        long = text * 10
        with pytest.raises(DeadlineExceeded, match="needs about 80 s"):
            await bench.engine.rerank(replace(counted, documents=text_documents([long])))
        expected = [ExpectedDocument(len(long), None)]
        reserved = bench.engine.admitted(replace(counted, documents=()), expected)
        with pytest.raises(DeadlineExceeded, match="needs about 80 s"):
            reserved.__enter__()
        with bench.engine.admitted(replace(cut, documents=()), expected):
            pass


async def test_an_abandoned_call_keeps_its_place_while_a_thread_reads_for_it(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on, encode = threading.Event(), threading.Event(), TextTokenizer._encode

    def slow(self: TextTokenizer, used: Tokenizer, piece: str, *, with_offsets: bool) -> Encoding:
        if len(piece) > 1000:
            reads.set()
            assert goes_on.wait(30)
        return encode(self, used, piece, with_offsets=with_offsets)

    monkeypatch.setattr(TextTokenizer, "_encode", slow)
    # Different words: the tokenizer looks up those that it has read.
    text = " ".join(f"sea{number}" for number in range(1000))
    async with open_bench() as bench:

        async def pass_the_endpoint() -> None:
            with bench.engine.gate.passing():
                await bench.rerank((text,))

        try:
            called = asyncio.create_task(pass_the_endpoint())
            assert await asyncio.to_thread(reads.wait, 30)
            called.cancel()
            with pytest.raises(asyncio.CancelledError):
                await called
            assert bench.count("farrank_held_characters") == len(text)
            assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
            assert not await bench.engine.gate.drain(0.01)
        finally:
            goes_on.set()
        assert await bench.engine.gate.drain(30)
        assert bench.count("farrank_held_characters") == 0


async def test_a_place_reserved_before_the_texts_are_known_becomes_the_calls_own(
    open_bench: OpenBench, wanted: list[float]
) -> None:
    async with open_bench() as bench:
        now_s = time.monotonic()
        call = RerankCall("maxp", QUERY, (), None, now_s, now_s + 60)
        with bench.engine.admitted(call, [ExpectedDocument(90, None)] * len(TEXTS)) as reserved:
            assert bench.count("farrank_admitted_tokens", ranker="maxp") > 100
            assert bench.count("farrank_held_characters") == 90 * len(TEXTS)
            call.documents = text_documents(TEXTS)
            assert scores(await bench.engine.rerank(call, reserved)) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        assert bench.count("farrank_held_characters") == 0
        bench.engine.loaded["maxp"].speeds.encoding.replace(100.0)
        with (
            pytest.raises(DeadlineExceeded, match="needs about"),
            bench.engine.admitted(call, [ExpectedDocument(2000, None)] * 100),
        ):
            pass


async def test_a_call_refused_once_its_documents_are_known_holds_nothing(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        now_s = time.monotonic()
        call = RerankCall("maxp", QUERY, (), None, now_s, now_s + 60)

        async def find_and_rerank() -> None:
            with bench.engine.admitted(call, [ExpectedDocument(90, None)]) as reserved:
                call.documents = text_documents(TEXTS)
                bench.engine.loaded["maxp"].speeds.encoding.replace(1.0)
                await bench.engine.rerank(call, reserved)

        with pytest.raises(DeadlineExceeded, match="needs about"):
            await find_and_rerank()
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        assert bench.count("farrank_held_characters") == 0


async def test_a_call_whose_caller_goes_during_the_search_holds_nothing(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        searching = asyncio.Event()

        async def search() -> None:
            now_s = time.monotonic()
            call = RerankCall("maxp", QUERY, (), None, now_s, now_s + 60)
            with bench.engine.admitted(call, [ExpectedDocument(90, None)]):
                searching.set()
                await asyncio.Event().wait()

        asking = asyncio.create_task(search())
        await searching.wait()
        assert bench.count("farrank_admitted_tokens", ranker="maxp") > 0
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert bench.count("farrank_admitted_tokens", ranker="maxp") == 0
        assert bench.count("farrank_held_characters") == 0


async def test_a_query_is_encoded_alone_in_turn_with_calls(
    open_bench: OpenBench, tiny_rankers: dict[str, Path]
) -> None:
    ranker = open_ranker(tiny_rankers["biencoder"])
    reader = ranker.reader
    with torch.inference_mode():
        [wanted] = ranker.encoder(*ranker.tensors([reader.query_input(reader.read_query(QUERY))]))[0]
    async with open_bench() as bench:
        deadline_s = time.monotonic() + 60
        vector, _, again = await asyncio.gather(
            bench.engine.encode_query("biencoder", QUERY, deadline_s),
            bench.rerank(ranker="biencoder"),
            bench.engine.encode_query("biencoder", QUERY, deadline_s),
        )
        assert vector.dtype == np.float32
        assert vector == pytest.approx(wanted.numpy(), abs=1e-5)
        assert again == pytest.approx(vector, abs=1e-6)
        # No part of it is left behind.
        await until(lambda: not bench.engine.device.loop.work._open)
        assert bench.count("farrank_requests_total", method="Rerank") == 0


async def test_a_query_that_cannot_be_encoded_says_why(open_bench: OpenBench) -> None:
    held = threading.Event()
    async with open_bench(lambda inputs: held.wait(30) and None) as bench:
        engine = bench.engine
        for name in ("maxp", "both", "nobody"):
            with pytest.raises(NotFound, match=f"no bi-encoder '{name}' here; known are: biencoder"):
                await engine.encode_query(name, QUERY, time.monotonic() + 60)
        with pytest.raises(InvalidArgument, match="query: holds no token that ranker biencoder can read"):
            await engine.encode_query("biencoder", "", time.monotonic() + 60)
        with pytest.raises(DeadlineExceeded):
            await engine.encode_query("biencoder", QUERY, time.monotonic() + 0.05)
        held.set()
        assert (await engine.encode_query("biencoder", QUERY, time.monotonic() + 60)).shape == (32,)


async def test_a_query_on_a_failing_device_is_encoded_once_more(open_bench: OpenBench) -> None:
    def before(inputs: Sequence[EncoderInput]) -> None:
        raise DeviceLost("unplugged")

    async with open_bench(before) as bench:
        vector = await bench.engine.encode_query("biencoder", QUERY, time.monotonic() + 60)
        again = await bench.engine.encode_query("biencoder", QUERY, time.monotonic() + 60)
        assert vector == pytest.approx(again, abs=1e-5)
        assert bench.count("farrank_reruns_total", ranker="biencoder") == 1


@pytest.mark.parametrize("ranker", ["maxp", "biencoder", "both"])
async def test_a_call_that_is_repeated_uses_as_many_tokens_whatever_the_cache_has(
    open_bench: OpenBench, ranker: str
) -> None:
    async with open_bench() as bench:
        first, again = [(await bench.rerank(ranker=ranker)).tally for _ in range(2)]
        assert (again.tokens, again.chunks) == (first.tokens, first.chunks)
        assert first.cached_tokens == 0
        assert (again.cached_tokens > 0) == (ranker != "maxp")
        # Less is encoded, and admission counts only that.
        assert (again.pairs < first.pairs) == (ranker != "maxp")
        assert bench.count("farrank_admitted_tokens", ranker="biencoder") == 0

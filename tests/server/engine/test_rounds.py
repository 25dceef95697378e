"""Calls that read in rounds: a real engine and tiny rankers; a test holds or fails a round on the device."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_calls.errors import DeadlineExceeded, Internal, InvalidArgument, Reason, Unavailable
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.reader_threads import ReaderThreads
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.depth.selection import TermCounts, count_terms
from farrank_rankers.features import Features
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.tokenizer import finished
from farrank_rankers.tokens import EncoderInput, IntArray
from farrank_runtimes.runtime import DeviceLost, DocumentScores, OutOfMemory
from farrank_server.config.schema import DepthConfig, RankerConfig, ServerConfig
from farrank_server.engine import tokenization
from farrank_server.engine.admission.reservations import CHUNKS
from farrank_server.engine.call import ActiveCall, Ended, RerankCall, RerankResult
from farrank_server.engine.device import work_queue
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import check_rankers, depth_of, load_rankers
from farrank_server.engine.rounds import CallRounds
from farrank_server.metrics import Metrics
from farrank_settings.errors import ConfigError
from support.engine_bench import (
    POISON,
    POISON_ID,
    QUERY,
    TEXTS,
    Before,
    Bench,
    Faulty,
    OpenBench,
    opened_bench,
    scores,
    until,
)

ALL, ADAPTIVE = DepthConfig("all"), DepthConfig("adaptive")
# The plan of the rankers here, unless a test says otherwise.
THREE = DepthPlan((Round(1.0, 2), Round(0.5, 2), Round(0.2, 4)))
EVERYTHING = DepthConfig("adaptive", chunks=10_000)
FILLER = "a ship sails over the sea towards the harbour and bread is baked from flour "
NEEDLE = "the river rises here "

# Ten documents of MaxP's 6 to 57 chunks. The last has the query's words in its end alone.
LONG = tuple(f"{n} " + FILLER * (40 + 40 * n) + NEEDLE * (n == 9) for n in range(10))
MARKED = tuple(text.replace("ship", POISON) for text in LONG)
FAMILIES = (
    *("maxp", "sump", "avgp", "cedr-knrm", "cedr-pacrr", "cedr-drmm", "neural-model1", "parade-avg"),
    *("parade-max", "parade-attn", "parade-transf-rand", "parade-transf-pretr", "parade-transf-pretr-q"),
    *("cross-encoder", "yes-no"),
)


class InRound:
    """Holds the first batch of a round until the test releases it, or fails it with `fault`.

    `begun` has the number of rounds that calls have begun; `documents` and `kept_bytes` are of the last.
    """

    def __init__(self, number: int, fault: BaseException | None = None) -> None:
        self.number, self.fault = number, fault
        self.begun: Counter[ActiveCall] = Counter()
        self.documents: Sequence[int] = ()
        self.held = self.kept_bytes = 0
        self.reached, self.released = threading.Event(), threading.Event()

    def watch(self, bench: Bench[Faulty]) -> None:
        """Count the rounds of the bench's calls from now on."""
        device = bench.engine.device
        begin_round = device.begin_round

        def begin(call: ActiveCall, documents: Sequence[int], kept_bytes: int, is_last: bool) -> None:
            self.begun[call] += 1
            self.documents, self.kept_bytes = documents, kept_bytes
            begin_round(call, documents, kept_bytes, is_last)

        device.begin_round = begin  # type: ignore[method-assign]

    def __call__(self, inputs: Sequence[EncoderInput]) -> None:
        if not self.reached.is_set() and max(self.begun.values(), default=0) == self.number:
            self.held = sum(each.tokens for each in inputs)
            self.reached.set()
            if self.fault is not None:
                raise self.fault
            assert self.released.wait(120)


def give(bench: Bench[Faulty], plan: DepthPlan | None) -> None:
    """Give a plan, or the default one, to all rankers that are no ensemble."""
    for each in bench.engine.loaded.values():
        (first, *_) = each.members
        first.spec = replace(first.spec, depth=plan)


@pytest.fixture
def open_bench(open_bench: OpenBench) -> OpenBench:
    @asynccontextmanager
    async def opened(
        before: Before = lambda inputs: None, plan: DepthPlan | None = THREE
    ) -> AsyncIterator[Bench[Faulty]]:
        async with open_bench(before) as bench:
            give(bench, plan)
            yield bench

    def entered(
        before: Before = lambda inputs: None, plan: DepthPlan | None = THREE
    ) -> AbstractAsyncContextManager[Bench[Faulty]]:
        return opened(before, plan)

    return entered


@asynccontextmanager
async def opened(
    folders: dict[str, Path], plan: DepthPlan | None = THREE, /, **rankers: RankerConfig
) -> AsyncIterator[Bench[Faulty]]:
    """Open an engine with rankers of these configurations, by family."""
    named = {name.replace("_", "-"): each for name, each in rankers.items()}
    config = ServerConfig(
        rankers={name: replace(each, source=str(folders[name])) for name, each in named.items()}
    )
    cache, metrics = DocumentCache(0), Metrics()
    engine = Engine(config, load_rankers(config, cache), DeviceThread(), cache, metrics)
    try:
        bench: Bench[Faulty] = Bench(engine, {}, metrics)
        give(bench, plan)
        yield bench
    finally:
        engine.close()


def is_empty(bench: Bench[Faulty]) -> bool:
    """Whether no call has left anything behind on the device's thread or in admission."""
    work, admitted = bench.engine.device.loop.work, bench.count("farrank_admitted_tokens", ranker="maxp")
    held = (work._open, work.started, work._kept, work._round_bytes, work.kept_bytes)
    return not any(held) and not admitted


def same(found: RerankResult, wanted: RerankResult) -> None:
    for one, other in zip(found.documents, wanted.documents, strict=True):
        assert one.spans.tolist() == other.spans.tolist()
        assert (one.numbers, one.round) == (other.numbers, other.round)
        assert (one.score, *one.chunk_scores) == pytest.approx((other.score, *other.chunk_scores), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
async def test_scores_are_those_of_just_the_chunks_that_were_read(
    tiny_rankers: dict[str, Path], family: str
) -> None:
    ranker = open_ranker(tiny_rankers[family]).eval()
    reader = ranker.reader
    async with opened(tiny_rankers, **{family: RankerConfig()}) as bench:
        result = await bench.rerank(LONG, ranker=family, depth=ADAPTIVE)
    assert result.rounds >= 2
    query = reader.read_query(QUERY)
    for text, document in zip(LONG, result.documents, strict=True):
        chunks = reader.split(finished(reader.document_steps(text, WHOLE_DOCUMENT)))
        assert chunks[-1].end == len(text.rstrip())
        assert document.chunks_scored == len(chunks)
        assert document.cut.characters == document.cut.tokens == 0
        assert document.numbers is not None
        read = [chunks[number] for number in document.numbers]
        assert document.spans.tolist() == [[chunk.start, chunk.end] for chunk in read]
        inputs = ranker.tensors([reader.chunk_input(query, chunk) for chunk in read])
        with torch.inference_mode():
            alone = ranker.explain(inputs, [len(read)])
        assert document.score == pytest.approx(float(alone.scores[0]), abs=1e-3)
        assert document.chunk_scores == pytest.approx(alone.chunk_scores[0].tolist(), abs=1e-3)
    chunks_read = sum(len(document.spans) for document in result.documents)
    assert len(LONG) <= chunks_read <= THREE.most_chunks(len(LONG))
    # No chunk is encoded twice.
    assert result.tally.pairs == result.tally.chunks == chunks_read
    assert not result.ended_early


@pytest.mark.parametrize("family", ["maxp", "avgp", "parade-attn", "cedr-knrm"])
async def test_a_budget_for_everything_gives_the_scores_of_reading_all(
    tiny_rankers: dict[str, Path], family: str
) -> None:
    async with opened(tiny_rankers, **{family: RankerConfig()}) as bench:
        everything = await bench.rerank(LONG, ranker=family, depth=ALL)
        adaptive = await bench.rerank(LONG, ranker=family, depth=EVERYTHING)
        tokens = DepthConfig("adaptive", tokens=everything.tally.tokens)
        in_tokens = await bench.rerank(LONG, ranker=family, depth=tokens)
    for result in (adaptive, in_tokens):
        assert result.rounds == 1
        assert result.tally.tokens == everything.tally.tokens
        assert scores(result) == pytest.approx(scores(everything), abs=1e-5)
        spans = [document.spans.tolist() for document in everything.documents]
        assert [document.spans.tolist() for document in result.documents] == spans


async def test_a_limit_of_the_ranker_cuts_what_adaptive_depth_chooses_from(
    tiny_rankers: dict[str, Path],
) -> None:
    async with opened(tiny_rankers, maxp=RankerConfig(max_document_tokens=1431)) as bench:
        limited = (await bench.rerank(LONG, ranker="maxp")).documents[9]
        read = (await bench.rerank(LONG, ranker="maxp", depth=ALL)).documents[9]
    async with opened(tiny_rankers, maxp=RankerConfig()) as bench:
        whole = (await bench.rerank(LONG, ranker="maxp")).documents[9]
    needle = LONG[9].index(NEEDLE)
    assert limited.chunks_scored == len(read.spans) == 14
    assert limited.cut == read.cut
    assert needle > len(LONG[9]) - limited.cut.characters
    assert whole.cut.characters == whole.cut.tokens == 0
    assert any(start <= needle < end for start, end in whole.spans.tolist())


FAR = FILLER * 1400 + NEEDLE + FILLER * 20


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_needle_after_20000_tokens_is_read_by_default_and_with_depth_all(
    tiny_rankers: dict[str, Path], family: str
) -> None:
    reader = open_reader(tiny_rankers[family])
    needle = FAR.index(NEEDLE)
    whole = finished(reader.document_steps(FAR, WHOLE_DOCUMENT))
    assert np.searchsorted(whole.starts, needle) > 20_000
    chunks, most = len(reader.split(whole)), reader.spec.most_chunks() or WHOLE_DOCUMENT
    async with opened(tiny_rankers, **{family: RankerConfig()}) as bench:
        if most < chunks:  # its transformer has positions for fewer than the document has
            (document,) = (await bench.rerank((FAR,), ranker=family, depth=ALL)).documents
            assert len(document.spans) == most
            assert document.cut.tokens > 0
        for depth in (None,) if most < chunks else (None, ALL):
            (document,) = (await bench.rerank((FAR,), ranker=family, depth=depth)).documents
            assert any(start <= needle < end for start, end in document.spans.tolist())
            assert document.cut.characters == document.cut.tokens == 0
            assert len(document.spans) == chunks if depth else len(document.spans) < 10


@pytest.mark.parametrize("depth", [ADAPTIVE, ALL])
async def test_a_document_of_more_tokens_than_the_server_allows_is_refused(
    tiny_rankers: dict[str, Path], depth: DepthConfig
) -> None:
    async with opened_bench(
        tiny_rankers, lambda runtime: Faulty(runtime, lambda inputs: None), max_document_tokens=300
    ) as bench:
        with pytest.raises(InvalidArgument) as refused:
            await bench.rerank((TEXTS[0], LONG[0]), depth=depth)
        assert refused.match(r"documents\[1\]: has about (\d+) tokens, and ranker maxp would read all")
        assert "limits.max_document_tokens is 300" in str(refused.value)
        await until(lambda: is_empty(bench))
        await bench.rerank(TEXTS, depth=depth)
        # A call that asks for a cut gets it, and the answer names it.
        cut = (await bench.rerank((LONG[0],), depth=ALL, max_chunks=2)).documents[0]
        assert len(cut.spans) == 2
        assert cut.cut.tokens > 0
        # More than the limit, and not all.
        spec = open_reader(tiny_rankers["maxp"]).spec
        most = next(chunks for chunks in count(1) if spec.readable_tokens(chunks) > 300)
        with pytest.raises(InvalidArgument, match=f"would read {spec.readable_tokens(most)}; limits"):
            await bench.rerank((LONG[0],), depth=ALL, max_chunks=most)
        # A bi-encoder is held to it, too.
        with pytest.raises(InvalidArgument, match="ranker biencoder would read all"):
            await bench.rerank((LONG[0],), ranker="biencoder")


async def test_empty_and_short_documents_are_read_too(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        wanted = await bench.rerank(("", *TEXTS))
        found = await bench.rerank(("", *TEXTS), depth=ADAPTIVE)
    assert scores(found) == pytest.approx(scores(wanted), abs=1e-5)
    assert found.documents[0].spans.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "depth",
    [
        DepthConfig("adaptive", chunks=1),
        DepthConfig("adaptive", chunks=2.5),
        DepthConfig("adaptive", tokens=6000),
    ],
)
async def test_no_budget_is_exceeded(open_bench: OpenBench, depth: DepthConfig) -> None:
    async with open_bench() as bench:
        result = await bench.rerank(LONG, depth=depth)
    if depth.chunks is not None:
        assert result.tally.chunks <= depth.chunks * len(LONG)
    if depth.tokens is not None:
        assert depth.tokens / 2 < result.tally.tokens <= depth.tokens
    assert min(len(document.spans) for document in result.documents) >= 1


async def test_without_a_plan_of_its_own_a_ranker_reads_two_chunks_of_all_documents(
    tiny_rankers: dict[str, Path],
) -> None:
    async with opened(tiny_rankers, None, avgp=RankerConfig()) as bench:
        result = await bench.rerank((*TEXTS[:3], *LONG), ranker="avgp", depth=ADAPTIVE)
    assert [len(document.spans) for document in result.documents] == [1, 1, 1] + [2] * len(LONG)
    assert {document.round for document in result.documents} == {result.rounds} == {1}


async def test_a_ranker_whose_best_chunk_decides_reads_the_best_documents_on(open_bench: OpenBench) -> None:
    async with open_bench(plan=None) as bench:
        for comparable in (False, True):
            found = (await bench.rerank(LONG, depth=ADAPTIVE, comparable_scores=comparable)).documents
            assert sorted((each.round, len(each.spans)) for each in found) == [(1, 1)] * 7 + [(2, 4)] * 3
            # The order by round is the order by score.
            of_round = {number: [each.score for each in found if each.round == number] for number in (1, 2)}
            assert min(of_round[2]) >= max(of_round[1])


async def test_scores_compare_without_the_rounds_of_the_best_documents(tiny_rankers: dict[str, Path]) -> None:
    plan = DepthPlan((Round(1.0, 2), Round(1.0, 1), Round(0.5, 2)))
    async with opened(tiny_rankers, plan, avgp=RankerConfig()) as bench:
        result = await bench.rerank(LONG, ranker="avgp", depth=ADAPTIVE, comparable_scores=True)
    # The shortest has 2 chunks.
    assert [len(document.spans) for document in result.documents] == [2] + [3] * (len(LONG) - 1)
    assert {document.round for document in result.documents} == {result.rounds} == {2}


async def test_a_budget_in_chunks_replaces_the_plan_and_all_scores_compare(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        result = await bench.rerank(LONG, depth=DepthConfig("adaptive", chunks=4))
    assert {len(document.spans) for document in result.documents} == {4}
    assert {document.round for document in result.documents} == {result.rounds} == {1}


async def test_a_time_budget_that_is_not_enough_for_a_round_does_not_begin_it(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        # 20 chunks of 160 tokens are 3,200; after the second round the budget has no room for 6,400 more.
        bench.engine.loaded["maxp"].speeds.encoding.replace(400.0)
        result = await bench.rerank(LONG, depth=DepthConfig("adaptive", milliseconds=20_000))
    assert (result.rounds, result.ended_early) == (2, False)
    assert {len(document.spans) for document in result.documents} == {4}


async def test_the_prior_of_the_plan_prefers_the_first_chunks(open_bench: OpenBench) -> None:
    async with open_bench(plan=DepthPlan(prior=100.0)) as bench:
        result = await bench.rerank(LONG, depth=ADAPTIVE)
    assert [document.numbers for document in result.documents] == [[0, 1]] * len(LONG)


async def test_max_chunks_bounds_what_is_read_of_each_document(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        result = await bench.rerank(LONG, depth=EVERYTHING, max_chunks=3)
    assert {len(document.spans) for document in result.documents} == {3}


async def test_documents_of_later_rounds_precede_the_others(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        documents = (await bench.rerank(LONG, depth=ADAPTIVE)).documents
    ranked = sorted(documents, key=lambda each: each.rank)
    assert [each.round for each in ranked] == [3, 3, 2, 2, 2, 1, 1, 1, 1, 1]
    for number in (1, 2, 3):
        its = [each.score for each in ranked if each.round == number]
        assert its == sorted(its, reverse=True)


async def test_a_deadline_in_the_second_round_ends_the_call_with_the_first(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        result = await bench.rerank(LONG, depth=ADAPTIVE, timeout_s=5.0)
        assert hold.reached.is_set()
        hold.released.set()
        await until(lambda: is_empty(bench))
        await until(lambda: bench.count("farrank_ended_early_total", ranker="maxp", reason="deadline") == 1)
        assert bench.count("farrank_call_rounds_sum", ranker="maxp") == 1
    assert (result.rounds, result.ended_early) == (1, True)
    assert {len(document.spans) for document in result.documents} == {2}


async def test_a_deadline_in_the_first_round_is_exceeded(open_bench: OpenBench) -> None:
    hold = InRound(1)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        with pytest.raises(DeadlineExceeded):
            await bench.rerank(LONG, depth=ADAPTIVE, timeout_s=1.0)
        hold.released.set()
        await until(lambda: is_empty(bench))


async def test_a_time_budget_ends_the_call_after_its_first_round_at_the_earliest(
    open_bench: OpenBench,
) -> None:
    async with open_bench() as bench:
        at_once = await bench.rerank(LONG, depth=DepthConfig("adaptive", milliseconds=1))
        assert at_once.rounds == 1
        assert {len(document.spans) for document in at_once.documents} == {1}
        whole = await bench.rerank(LONG, depth=DepthConfig("adaptive", milliseconds=3_600_000))
        # 2 chunks of each, 2 more, 4 more, and the rest of the 14 within the ranker's limit.
        assert (whole.rounds, whole.ended_early) == (4, False)
        assert {each.round for each in whole.documents} == {4}
        assert all(len(each.spans) == each.chunks_scored for each in whole.documents)


async def test_a_time_budget_ends_the_call_in_its_second_round(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        # As slow as a real device: the budget is enough for two rounds.
        bench.engine.loaded["maxp"].speeds.encoding.replace(4000.0)
        result = await bench.rerank(LONG, depth=DepthConfig("adaptive", milliseconds=3000))
        assert (result.rounds, result.ended_early) == (1, True)
        hold.released.set()
        await until(lambda: is_empty(bench))


async def test_a_time_budget_beyond_the_deadline_is_admitted(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        # Everything would take a hundred seconds.
        bench.engine.loaded["maxp"].speeds.encoding.replace(400.0)
        with pytest.raises(DeadlineExceeded, match="the call needs about "):
            await bench.rerank(LONG, depth=EVERYTHING, timeout_s=30.0)
        depth = DepthConfig("adaptive", milliseconds=3_600_000)
        result = await bench.rerank(LONG, depth=depth, timeout_s=30.0)
        assert 2000 < result.tally.tokens <= 0.75 * 30 * 400


async def test_admission_needs_time_for_the_first_round_alone(open_bench: OpenBench) -> None:
    hold = InRound(1)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        # The first round takes 9 s, all three at least 15 s; a hundred documents more take longer.
        bench.engine.loaded["maxp"].speeds.encoding.replace(400.0)
        with pytest.raises(DeadlineExceeded, match="the call needs about "):
            await bench.rerank(LONG * 3, depth=ADAPTIVE, timeout_s=12.0)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE, timeout_s=12.0))
        await until(hold.reached.is_set)
        # Admission still reserves the most that the call can cost.
        assert bench.engine._reservations._table[CHUNKS].sum() == THREE.most_chunks(len(LONG))
        hold.released.set()
        assert (await call).rounds >= 1


async def test_a_cancelled_call_leaves_nothing_behind(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE))
        await until(hold.reached.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        hold.released.set()
        await until(lambda: is_empty(bench))


async def test_the_device_is_lost_in_the_second_round_and_the_first_is_the_answer(
    open_bench: OpenBench,
) -> None:
    fails = InRound(2, DeviceLost("gone"))
    async with open_bench(fails) as bench:
        fails.watch(bench)
        result = await bench.rerank(LONG, depth=ADAPTIVE)
        assert (result.rounds, result.ended) == (1, Ended.DEVICE)
        assert {len(document.spans) for document in result.documents} == {2}
        await until(lambda: bench.count("farrank_ended_early_total", ranker="maxp", reason="device") == 1)
        assert bench.count("farrank_reruns_total", ranker="maxp") == 0
        await until(bench.is_ready)
        await until(lambda: is_empty(bench))
        assert (await bench.rerank(LONG, depth=ADAPTIVE)).rounds == 3


async def test_the_device_is_lost_in_the_first_round_and_the_call_runs_again(open_bench: OpenBench) -> None:
    fails = InRound(1, DeviceLost("gone"))
    async with open_bench(fails) as bench:
        wanted = await bench.rerank(LONG, depth=ADAPTIVE)
        fails.watch(bench)
        same(await bench.rerank(LONG, depth=ADAPTIVE), wanted)
        assert bench.count("farrank_reruns_total", ranker="maxp") == 1
        await until(lambda: is_empty(bench))


@pytest.mark.parametrize("fault", [OutOfMemory("for a moment"), ZeroDivisionError("a bug")])
async def test_a_batch_that_fails_once_in_the_second_round_changes_no_score(
    open_bench: OpenBench, fault: BaseException
) -> None:
    fails = InRound(2, fault)
    async with open_bench(fails) as bench:
        wanted = await bench.rerank(LONG, depth=ADAPTIVE)
        fails.watch(bench)
        same(await bench.rerank(LONG, depth=ADAPTIVE), wanted)
        assert fails.reached.is_set()
        await until(lambda: is_empty(bench))


@pytest.mark.parametrize("fault", [OutOfMemory("for good"), ZeroDivisionError("a bug")])
async def test_an_input_that_fails_alone_in_the_second_round_leaves_the_first_as_the_answer(
    open_bench: OpenBench, fault: BaseException
) -> None:
    begun = InRound(0)

    def fail(inputs: Sequence[EncoderInput]) -> None:
        # Another call's inputs do not fail: the device is not at fault.
        if 2 in begun.begun.values() and POISON_ID in {int(each) for each in inputs[0].input_ids}:
            raise fault

    async with open_bench(fail) as bench:
        begun.watch(bench)
        result = await bench.rerank(MARKED, depth=ADAPTIVE)
        assert (result.rounds, result.ended) == (1, Ended.DEVICE)
        await until(lambda: bench.count("farrank_ended_early_total", ranker="maxp", reason="device") == 1)
        await until(lambda: is_empty(bench))


async def test_a_score_that_is_not_finite_in_the_second_round_leaves_the_first_as_the_answer(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = InRound(0)
    async with open_bench() as bench:
        begun.watch(bench)
        runtime = bench.engine.loaded["maxp"].runtime
        score = runtime.score

        def not_finite(documents: Sequence[Features], queries: Sequence[Features] | None) -> DocumentScores:
            found = score(documents, queries)
            if 2 in begun.begun.values():
                return replace(found, scores=[float("nan")] * len(documents))
            return found

        monkeypatch.setattr(runtime, "score", not_finite)
        result = await bench.rerank(LONG, depth=ADAPTIVE)
        assert (result.rounds, result.ended) == (1, Ended.DEVICE)
        assert bench.count("farrank_batch_failures_total", ranker="maxp", reason="not_finite") >= 1
        await until(lambda: is_empty(bench))


async def test_a_document_that_is_read_on_never_falls(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another batch the same chunk has other last digits."""
    begun = InRound(0)
    async with open_bench(plan=None) as bench:
        begun.watch(bench)
        runtime = bench.engine.loaded["maxp"].runtime
        score = runtime.score

        def lower(documents: Sequence[Features], queries: Sequence[Features] | None) -> DocumentScores:
            found = score(documents, queries)
            lost = 100.0 if 2 in begun.begun.values() else 0.0
            return replace(found, scores=[each - lost for each in found.scores])

        monkeypatch.setattr(runtime, "score", lower)
        found = (await bench.rerank(LONG, depth=ADAPTIVE)).documents
    of_round = {number: [each.score for each in found if each.round == number] for number in (1, 2)}
    assert len(of_round[2]) == 3
    assert min(of_round[2]) >= max(of_round[1])
    assert min(of_round[1]) > -50


async def test_a_server_that_stops_answers_with_the_last_finished_round(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE))
        await until(hold.reached.is_set)
        bench.engine.device.abandon(Unavailable("stops", reason=Reason.DRAINING))
        assert (await call).rounds == 1
        hold.released.set()


async def test_a_device_that_hangs_in_the_second_round_leaves_the_first_as_the_answer(
    open_bench: OpenBench,
) -> None:
    hang = InRound(2)
    async with open_bench(hang) as bench:
        await bench.rerank(LONG, depth=ADAPTIVE)
        hang.watch(bench)
        bench.engine.device.loop.watchdog._least_bound_s = 0.3
        result = await bench.rerank(LONG, depth=ADAPTIVE)
        assert (result.rounds, result.ended) == (1, Ended.DEVICE)
        assert bench.count("farrank_worker_restarts_total") == 1
        await until(lambda: is_empty(bench))
        # The hung call returns: its thread ends, and nothing else happens.
        hang.released.set()
        await until(lambda: [each.name for each in threading.enumerate()].count("farrank-device") == 1)
        assert is_empty(bench)


@pytest.mark.parametrize("number", [2, 3])
async def test_a_round_that_ends_just_when_time_is_over_is_the_answer(
    open_bench: OpenBench, number: int
) -> None:
    hold = InRound(number)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE, timeout_s=3.0))
        await until(hold.reached.is_set)
        (active,) = hold.begun
        hold.released.set()
        # This holds the event loop, which then finds the round scored and the time over at once.
        while active.unscored or time.monotonic() < active.call.deadline_s - 0.05:
            time.sleep(0.001)  # noqa: ASYNC251
        result = await call
    assert (result.rounds, result.ended) == (number, Ended.DEADLINE if number == 2 else None)


async def test_a_round_that_is_scored_before_its_plan_was_seen_to_end_is_the_answer(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench:
        tokenizers = bench.engine._tokenizers
        next_round, planned = tokenizers.next_round, Counter[CallRounds]()

        async def seen_late(rounds: CallRounds) -> bool:
            planned[rounds] += 1
            has_next = await next_round(rounds)
            if planned[rounds] == 1:
                await asyncio.Event().wait()
            return has_next

        monkeypatch.setattr(tokenizers, "next_round", seen_late)
        result = await bench.rerank(LONG, depth=ADAPTIVE, timeout_s=5.0)
    assert (result.rounds, result.ended) == (2, Ended.DEADLINE)


async def test_rounds_of_two_calls_share_batches(open_bench: OpenBench) -> None:
    hold = InRound(2)
    mixed: list[bool] = []

    def before(inputs: Sequence[EncoderInput]) -> None:
        mixed.append(len({POISON_ID in each.input_ids for each in inputs}) == 2)
        hold(inputs)

    async with open_bench(before) as bench:
        alone = [await bench.rerank(texts, depth=ADAPTIVE) for texts in (LONG, MARKED)]
        hold.watch(bench)
        mixed.clear()
        first = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE))
        await until(hold.reached.is_set)
        second = asyncio.create_task(bench.rerank(MARKED, depth=ADAPTIVE))
        await until(lambda: len(bench.engine.device.loop.inbox.peek()) >= 2)
        hold.released.set()
        for found, wanted in zip(await asyncio.gather(first, second), alone, strict=True):
            same(found, wanted)
    assert any(mixed)


async def test_features_without_room_are_encoded_again(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench:
        wanted = await bench.rerank(LONG, depth=ADAPTIVE)
        monkeypatch.setattr(work_queue, "MAX_ROUND_BYTES", 0)
        found = await bench.rerank(LONG, depth=ADAPTIVE)
        same(found, wanted)
        # 2 of each of ten, 4 of each of five, 8 and 6 of two: the shortest has no more.
        assert (wanted.tally.pairs, found.tally.pairs) == (36, 54)
        await until(lambda: is_empty(bench))


async def test_kept_features_count_as_the_memory_of_the_device(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        lane, work = bench.engine.loaded["maxp"], bench.engine.device.loop.work
        lane.capabilities = replace(lane.capabilities, max_kept_bytes=2**20)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE))
        await until(hold.reached.is_set)
        # The five best documents are read on; each has two vectors of 32 numbers.
        assert work.kept_bytes == 5 * 2 * 32 * 4
        hold.released.set()
        await call
        await until(lambda: is_empty(bench))


async def test_features_of_documents_that_were_read_to_their_end_are_not_kept(open_bench: OpenBench) -> None:
    hold = InRound(2)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        lane = bench.engine.loaded["maxp"]
        lane.capabilities = replace(lane.capabilities, max_kept_bytes=2**20)
        call = asyncio.create_task(bench.rerank((*TEXTS[:3], *LONG), depth=ADAPTIVE))
        await until(hold.reached.is_set)
        assert min(hold.documents) >= 3
        assert hold.kept_bytes == len(hold.documents) * 2 * 32 * 4 > 0
        hold.released.set()
        documents = (await call).documents
        assert max(each.round for each in documents[:3]) > 1
        await until(lambda: is_empty(bench))


async def test_admission_holds_what_is_still_to_be_read(open_bench: OpenBench) -> None:
    hold = InRound(3)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        call = asyncio.create_task(bench.rerank(LONG, depth=ADAPTIVE))
        await until(hold.reached.is_set)
        left = hold.held + bench.batcher().queued_tokens
        uncounted = bench.engine.device.loop._results.uncounted
        left += sum(tokens for figures in uncounted for _, tokens in figures.parts)
        await until(lambda: bench.count("farrank_admitted_tokens", ranker="maxp") == left)
        hold.released.set()
        await call
        await until(lambda: is_empty(bench))


async def test_admission_holds_chunks_as_well_if_the_budget_is_in_tokens(open_bench: OpenBench) -> None:
    hold = InRound(1)
    async with open_bench(hold) as bench:
        hold.watch(bench)
        call = asyncio.create_task(bench.rerank(LONG, depth=DepthConfig("adaptive", tokens=6000)))
        await until(hold.reached.is_set)
        # An input has some 160 tokens.
        assert 20 < bench.engine._reservations._table[CHUNKS].sum() < 60
        hold.released.set()
        await call


async def test_the_device_thread_neither_plans_nor_makes_inputs(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, threads = CallRounds.next, set[str]()

    def watched(rounds: CallRounds) -> Generator[None, None, bool]:
        steps = plan(rounds)
        while True:
            threads.add(threading.current_thread().name)
            try:
                yield next(steps)
            except StopIteration as end:
                return bool(end.value)

    monkeypatch.setattr(CallRounds, "next", watched)
    async with open_bench() as bench:
        assert (await bench.rerank(LONG, depth=ADAPTIVE)).rounds == 3
    assert threads
    assert "farrank-device" not in threads


async def test_chunks_that_are_read_anyway_are_not_ranked(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(query: IntArray, chunks: Sequence[IntArray]) -> TermCounts:
        counted.append(len(chunks))
        return count_terms(query, chunks)

    monkeypatch.setattr("farrank_server.engine.rounds.count_terms", counting)
    short = ("a short text", "neural ranking")
    async with open_bench() as bench:
        whole = await bench.rerank(short, depth=DepthConfig())
        for depth in (ADAPTIVE, DepthConfig("adaptive", chunks=1.5)):
            found = await bench.rerank(short, depth=depth)
            assert [each.score for each in found.documents] == [each.score for each in whole.documents]
            assert (found.rounds, found.tally.selection_ns) == (1, 0)
        assert not counted
        # Beside a long one they compete, and a budget in tokens may not suffice for them.
        await bench.rerank((*short, LONG[9]), depth=ADAPTIVE)
        assert sorted(counted)[:2] == [1, 1] != counted
        counted.clear()
        await bench.rerank(short, depth=DepthConfig("adaptive", tokens=6000))
        assert counted == [1, 1]


@pytest.mark.parametrize(
    ("chunks", "max_chunks", "long", "is_ranked"),
    [
        (2.5, None, 2, False),
        (2.5, None, 3, True),
        (2.5, 1, 2, True),
        (None, 1, 2, True),
        (None, None, 1, False),
    ],
)
async def test_chunks_beyond_the_first_round_are_ranked(
    open_bench: OpenBench, chunks: float | None, max_chunks: int | None, long: int, is_ranked: bool
) -> None:
    async with open_bench() as bench:
        spec = bench.engine.loaded["maxp"].spec.chunking
        text = "river " * (spec.window + (long - 1) * spec.stride - 1)
        depth = DepthConfig("adaptive", chunks=chunks)
        found = await bench.rerank((text,), depth=depth, max_chunks=max_chunks)
        assert found.documents[0].chunks_scored == long
        assert (found.tally.selection_ns > 0) == is_ranked


async def test_a_small_call_has_one_turn_of_a_reader_thread(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    submit = ReaderThreads.submit_for

    def counting(own: ReaderThreads, account: Account, run: Callable[[], object]) -> Future[object]:
        turns.append(threading.current_thread().name)
        return submit(own, account, run)

    async with open_bench() as bench:
        await bench.rerank(("a short text",), depth=ADAPTIVE)
        monkeypatch.setattr(ReaderThreads, "submit_for", counting)
        await bench.rerank(("another short text",), depth=ADAPTIVE)
    assert len(turns) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_first_round_may_end_before_its_call_is_read(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The device scores a small call, or fails, while its reader thread still has something to do."""
    ended, is_late = threading.Event(), []

    def ending(name: str) -> Callable[..., None]:
        end = getattr(ActiveCall, name)

        def wrapped(call: ActiveCall, *arguments: object) -> None:
            end(call, *arguments)
            ended.set()

        return wrapped

    def waiting(call: RerankCall, indices: Sequence[int]) -> Generator[None, None, None]:
        is_late.append(ended.wait(10))
        yield

    def before(inputs: Sequence[EncoderInput]) -> None:
        if fails:
            raise RuntimeError("injected")

    async with open_bench(before) as bench:
        for name in ("end_round", "settle"):
            monkeypatch.setattr(ActiveCall, name, ending(name))
        monkeypatch.setattr(tokenization, "_read_texts", waiting)
        if fails:
            with pytest.raises(Internal):
                await bench.rerank(("a short text",), depth=ADAPTIVE)
        else:
            assert (await bench.rerank(("a short text",), depth=ADAPTIVE)).rounds == 1
    assert is_late == [True]


async def test_rankers_that_cannot_read_in_rounds_say_so(
    open_bench: OpenBench, tiny_rankers: dict[str, Path]
) -> None:
    async with open_bench() as bench:
        with pytest.raises(InvalidArgument, match=r"^options.depth: ranker biencoder cannot .* all of them$"):
            await bench.rerank(ranker="biencoder", depth=ADAPTIVE)
        with pytest.raises(InvalidArgument, match=r"^options.depth: ranker both cannot be adaptive: an ens"):
            await bench.rerank(ranker="both", depth=ADAPTIVE)
    longp = RankerConfig(str(tiny_rankers["longp"]), depth=ADAPTIVE)
    config = ServerConfig(rankers={"long": longp})
    for check in (check_rankers, lambda config: load_rankers(config, DocumentCache(0))):
        with pytest.raises(ConfigError, match=r"rankers.long.depth.mode: cannot be adaptive: family longp"):
            check(config)


async def test_a_call_without_a_depth_gets_that_of_the_ranker(tiny_rankers: dict[str, Path]) -> None:
    async with opened(tiny_rankers, maxp=RankerConfig(depth=DepthConfig("adaptive", chunks=2))) as bench:
        assert (await bench.rerank(LONG)).tally.chunks == 20
        assert (await bench.rerank(LONG, depth=DepthConfig())).documents[9].chunks_scored == 0


async def test_without_a_configured_depth_every_ranker_that_can_be_is_adaptive(
    tiny_rankers: dict[str, Path],
) -> None:
    names = ("maxp", "cedr-knrm", "yes-no", "firstp", "biencoder")
    async with opened(tiny_rankers, **{name: RankerConfig() for name in names}) as bench:
        modes = {name: bench.engine.loaded[name].depth.mode for name in names}
        spec = bench.engine.loaded["maxp"].spec
    assert modes == dict.fromkeys(names[:3], "adaptive") | dict.fromkeys(names[3:], "all")
    assert depth_of("pair", RankerConfig(), [spec, spec]).mode == "all"
    assert depth_of("one", RankerConfig(depth=ALL), [spec]).mode == "all"

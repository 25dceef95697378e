"""Inputs that run again after a failure: a document is scored with all its chunks, once, or not at all."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from farrank_calls.errors import Internal
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.document_groups import kept
from farrank_runtimes.runtime import Encoding, OutOfMemory, Runtime
from farrank_server.engine.call import ActiveCall, PendingDocument, RerankResult
from farrank_server.engine.device import batch_results
from support.engine_bench import TEXTS, Bench, OpenBench, Wrapped, opened_bench, scores

# Documents of several batches each, whose features have to wait for one another.
LONG = tuple(f"{n} " + "the river and the sea " * 300 for n in range(4))

FAULTS = [OutOfMemory("for a moment"), ZeroDivisionError("a bug")]


class FailingRows(Wrapped):
    """A runtime whose features fail once when they are requested, after a batch that began well."""

    def __init__(self, inner: Runtime) -> None:
        super().__init__(inner)
        self.fault: Exception | None = None

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        encoding = self.inner.encode(inputs)
        return encoding if self.fault is None or len(inputs) == 1 else Failing(encoding, self)


class Failing:
    def __init__(self, encoding: Encoding, runtime: FailingRows) -> None:
        self._encoding, self._runtime = encoding, runtime

    def rows(self) -> list[Features]:
        rows = self._encoding.rows()
        if (fault := self._runtime.fault) is not None:
            self._runtime.fault = None
            raise fault
        return rows

    def device_s(self) -> float:
        return self._encoding.device_s()


def fail_keeping(monkeypatch: pytest.MonkeyPatch, fault: Exception, at: int) -> list[bool]:
    """Make the storing of a chunk's features fail once, at number `at`. Records at each whether it failed."""
    failed: list[bool] = []

    def failing(row: Features, *, on_host: bool) -> Features:
        failed.append(len(failed) == at)
        if failed[-1]:
            raise fault
        return kept(row, on_host=on_host)

    monkeypatch.setattr(batch_results, "kept", failing)
    return failed


def same(found: RerankResult, wanted: RerankResult) -> None:
    for one, other in zip(found.documents, wanted.documents, strict=True):
        assert (one.spans.tolist(), one.cut) == (other.spans.tolist(), other.cut)
        assert (one.score, *one.chunk_scores) == pytest.approx((other.score, *other.chunk_scores), abs=1e-5)


async def uncached(bench: Bench[FailingRows], ranker: str) -> RerankResult:
    """Score the documents of LONG with an engine without failures, and leave the cache empty."""
    loaded = bench.engine.loaded[ranker]
    cache, loaded.cache = loaded.cache, None
    found = await bench.rerank(LONG, ranker=ranker)
    loaded.cache = cache
    return found


@pytest.mark.parametrize("ranker", ["maxp", "biencoder"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [1, 7])
async def test_a_batch_that_fails_while_its_features_are_kept_is_counted_once(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch, ranker: str, fault: Exception, at: int
) -> None:
    async with opened_bench(tiny_rankers, FailingRows) as bench:
        wanted = await uncached(bench, ranker)
        failed = fail_keeping(monkeypatch, fault, at)
        same(await bench.rerank(LONG, ranker=ranker), wanted)
        assert failed.count(True) == 1
        # A dual ranker's encodings now come from the cache.
        same(await bench.rerank(LONG, ranker=ranker), wanted)
        assert bench.engine.device.loop.work.kept_bytes == 0


@pytest.mark.parametrize("ranker", ["maxp", "biencoder"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_batch_whose_features_cannot_be_had_is_counted_once(
    tiny_rankers: dict[str, Path], ranker: str, fault: Exception
) -> None:
    async with opened_bench(tiny_rankers, FailingRows) as bench:
        wanted = await uncached(bench, ranker)
        bench.runtimes[ranker].fault = fault
        same(await bench.rerank(LONG, ranker=ranker), wanted)
        assert bench.runtimes[ranker].fault is None
        same(await bench.rerank(LONG, ranker=ranker), wanted)


@pytest.mark.parametrize("ranker", ["maxp", "biencoder"])
async def test_a_document_of_which_a_chunk_is_missing_is_an_internal_error_and_not_kept(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch, ranker: str
) -> None:
    ready_with: Callable[[ActiveCall, PendingDocument], list[PendingDocument]] = ActiveCall.ready_with
    losing = [True]

    def lossy(call: ActiveCall, document: PendingDocument) -> list[PendingDocument]:
        if losing and len(document.features) > 1:
            losing.clear()
            document.features[1] = None
        return ready_with(call, document)

    async with open_bench() as bench:
        monkeypatch.setattr(ActiveCall, "ready_with", lossy)
        with pytest.raises(Internal, match="failed on this request"):
            await bench.rerank(LONG[:1], ranker=ranker)
        assert not losing
        assert bench.count("farrank_cache_bytes") == 0
        again = await bench.rerank(LONG[:1], ranker=ranker)
        assert again.tally.cached_chunks == 0
        assert len(again.documents[0].chunk_scores) == len(again.documents[0].spans) > 1
        assert len(scores(await bench.rerank(TEXTS, ranker=ranker))) == len(TEXTS)

"""A real engine with tiny rankers, whose runtimes a test wraps to delay, fail or observe batches."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from farrank_rankers.files.open import open_ranker
from support.engine_bench import QUERY, TEXTS, Before, Bench, Faulty, OpenBench, opened_bench


@pytest.fixture
def open_bench(tiny_rankers: dict[str, Path]) -> OpenBench:
    def opened(
        before: Before = lambda inputs: None, hang_after_s: float = 600.0, **limits: int
    ) -> AbstractAsyncContextManager[Bench[Faulty]]:
        return opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, before), hang_after_s, **limits)

    return opened


@pytest.fixture
def wanted(tiny_rankers: dict[str, Path]) -> list[float]:
    """The expected scores of TEXTS."""
    return [each.score for each in open_ranker(tiny_rankers["maxp"]).score(QUERY, TEXTS)]

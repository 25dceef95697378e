"""Fixtures of the benchmarks' tests: forked processes, and texts that need not be rendered."""

import random
from collections.abc import Iterator

import pytest

from farrank_bench.gpu.inputs import train_tokenizer
from farrank_rankers.tokenizer import TextTokenizer
from support import forked


@pytest.fixture(scope="module", autouse=True)
def processes_are_forked() -> Iterator[None]:
    """Fork the benchmarks' processes, which then need no imports of their own."""
    with forked.spawning():
        yield


@pytest.fixture(scope="session")
def long_texts() -> list[str]:
    """Four texts of some 30,000 characters, of 400 words."""
    randomly = random.Random(4)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(randomly.choices(letters, k=randomly.randint(2, 9))) for _ in range(400)]
    return [" ".join(randomly.choices(words, k=5000)) for _ in range(4)]


@pytest.fixture(scope="session")
def own_tokenizer(long_texts: list[str]) -> TextTokenizer:
    """The benchmark's own tokenizer, trained on these texts."""
    return train_tokenizer(long_texts)

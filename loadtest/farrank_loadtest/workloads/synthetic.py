"""Calls made up from common words, with documents of given lengths: the same for the same seed."""

import random
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets.interface import Document
from farrank_loadtest.workloads.call import Call, Workload
from farrank_loadtest.workloads.lengths import Lengths

# Of everything that is made up, so that a slip of the finger does not fill the memory.
MOST_WORDS = 50_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How many calls, how many documents in each, and how long queries and documents are (tokens)."""

    calls: int
    documents: int
    lengths: Lengths
    query_tokens: int


def make_up(shape: Shape, seed: int) -> Workload:
    """Draw the calls.

    Every word is one token to the usual English tokenizers, so that words count tokens; what a tokenizer
    adds of its own comes on top.
    Raises: LoadtestError if a count is below 1, or all of it would be too much to hold.
    """
    for name in ("calls", "documents", "query_tokens"):
        if getattr(shape, name) < 1:
            raise LoadtestError(
                f"synthetic workload: {name} is {getattr(shape, name)}; it must be at least 1"
            )
    randomly = random.Random(seed)
    drawn = [[shape.lengths.draw(randomly) for _ in range(shape.documents)] for _ in range(shape.calls)]
    if sum(map(sum, drawn)) > MOST_WORDS:
        raise LoadtestError(
            f"synthetic workload: {sum(map(sum, drawn)):,} words are more than {MOST_WORDS:,}; "
            "ask for fewer calls (they are sent in turn, again and again)"
        )
    calls = tuple(
        Call(
            _text(randomly, shape.query_tokens),
            tuple(Document(f"d{place}", _text(randomly, tokens)) for place, tokens in enumerate(lengths)),
        )
        for lengths in drawn
    )
    return Workload(f"synthetic {shape.lengths.name}, seed {seed}", calls)


def _text(randomly: random.Random, tokens: int) -> str:
    return " ".join(randomly.choices(words(), k=tokens))


@cache
def words() -> tuple[str, ...]:
    """Read the word list."""
    return tuple((files(__package__) / "words.txt").read_text(encoding="utf-8").split())

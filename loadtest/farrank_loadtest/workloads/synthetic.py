"""Calls generated from common words, with documents of given lengths: the same for the same seed."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call, Workload

FORMS = "constant:TOKENS, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA:MOST"
# Far above any server's limit: a mistyped length must not fill the memory.
MAX_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens; `draw` gives at least 1. `name` is the distribution as given."""

    name: str
    draw: Callable[[random.Random], int]


def parse_lengths(given: str) -> Lengths:
    """Read a distribution.

    Raises: LoadtestError naming the problem and the allowed forms.
    """
    name, *texts = given.split(":")
    try:
        values = [float(text) for text in texts]
    except ValueError as error:
        raise LoadtestError(f"lengths {given!r}: {error}; it must be {FORMS}") from error
    match name, values:
        case "constant", [tokens]:
            _check(given, tokens)
            return Lengths(given, lambda _: int(tokens))
        case "uniform", [least, most]:
            _check(given, least, most)
            return Lengths(given, lambda randomly: randomly.randint(int(least), int(most)))
        case "lognormal", [median, sigma, most] if 0 < sigma <= 5:
            _check(given, median, most)
            mu = math.log(median)
            return Lengths(
                given,
                # Values above the maximum become the maximum: long documents are cut, not left out.
                lambda randomly: min(max(1, round(randomly.lognormvariate(mu, sigma))), int(most)),
            )
        case _:
            raise LoadtestError(f"lengths {given!r}: must be {FORMS}, with sigma above 0 and at most 5")


def _check(given: str, *bounds: float) -> None:
    within = all(1 <= bound <= MAX_TOKENS and bound == int(bound) for bound in bounds)
    if not within or list(bounds) != sorted(bounds):
        raise LoadtestError(
            f"lengths {given!r}: tokens must be whole numbers of 1 to {MAX_TOKENS:,}, the smaller first"
        )


# Limit of the whole workload: a mistyped count must not fill the memory.
MAX_WORDS = 50_000_000


def make_up(calls: int, documents: int, lengths: Lengths, query_tokens: int, *, seed: int) -> Workload:
    """Draw `calls` calls of `documents` documents each; lengths are in tokens.

    Every word is one token in the usual English tokenizers, so the number of words is the number of tokens
    without a tokenizer's special tokens.
    Raises: LoadtestError if the workload has too many words for the memory.
    """
    randomly = random.Random(seed)
    drawn = [[lengths.draw(randomly) for _ in range(documents)] for _ in range(calls)]
    if (count := sum(map(sum, drawn))) > MAX_WORDS:
        raise LoadtestError(
            f"synthetic workload: {count:,} words exceed the limit of {MAX_WORDS:,}; "
            "ask for fewer calls (they are repeated in turn)"
        )
    made = tuple(
        Call(
            _text(randomly, query_tokens),
            tuple(
                CandidateDocument(f"d{place}", _text(randomly, tokens)) for place, tokens in enumerate(each)
            ),
        )
        for each in drawn
    )
    return Workload(f"synthetic {lengths.name}, seed {seed}", made)


def _text(randomly: random.Random, tokens: int) -> str:
    return " ".join(randomly.choices(words(), k=tokens))


@cache
def words() -> tuple[str, ...]:
    """Read the word list."""
    return tuple((files(__package__) / "words.txt").read_text(encoding="utf-8").split())

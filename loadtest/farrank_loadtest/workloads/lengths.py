"""Distributions of document lengths, by a word such as `uniform:20:1400`."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from farrank_loadtest.errors import LoadtestError

FORMS = "constant:TOKENS, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA:MOST"
# Far beyond any limit of a server, so that a slip of the finger does not fill the memory.
MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens; `draw` gives one of at least 1. `name` is how it was asked for."""

    name: str
    draw: Callable[[random.Random], int]


def parse_lengths(given: str) -> Lengths:
    """Read a distribution.

    Raises: LoadtestError naming what is wrong and the forms that there are.
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
                # What is drawn beyond the most is drawn as the most: long documents are cut, not left out.
                lambda randomly: min(max(1, round(randomly.lognormvariate(mu, sigma))), int(most)),
            )
        case _:
            raise LoadtestError(f"lengths {given!r}: must be {FORMS}, with sigma above 0 and at most 5")


def _check(given: str, *bounds: float) -> None:
    within = all(1 <= bound <= MOST_TOKENS and bound == int(bound) for bound in bounds)
    if not within or list(bounds) != sorted(bounds):
        raise LoadtestError(
            f"lengths {given!r}: tokens are whole numbers from 1 to {MOST_TOKENS:,}, the smaller one first"
        )

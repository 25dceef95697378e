"""Types of flags that take numbers, so that a wrong one is refused with the flag's name."""

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def positive(text: str) -> float:
    """Read a finite number above 0."""
    value = _float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    """Read a number above 0 and below 1."""
    value = _float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and below 1")
    return value


def not_negative(text: str) -> float:
    """Read a finite number that is not below 0."""
    value = _float(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """Read a whole number from `least` up."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return value

    return whole


def listed(each: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    """Read numbers between commas."""
    return lambda text: [each(part) for part in text.split(",")]


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return value

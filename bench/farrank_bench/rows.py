"""One figure of the report, with its aim and whether that was reached."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, what came out, what is aimed at; `reached` is None where nothing can be said."""

    what: str
    measured: str
    aim: str = ""
    reached: bool | None = None


def spread(values: Sequence[float], form: str) -> str:
    """Write the median of the runs, the smallest and the largest in brackets.

    Raises: ValueError if there is no run.
    """
    if not values:
        raise ValueError("values is empty; a spread needs at least 1 run")
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def at_least(what: str, values: Sequence[float], limit: float, form: str = ".3f") -> Row:
    """Hold the median of the runs to a lower limit."""
    return Row(what, spread(values, form), f"at least {limit:g}", statistics.median(values) >= limit)


def below(what: str, values: Sequence[float], limit: float, form: str = ".3f") -> Row:
    """Hold the median of the runs to a limit that it must stay under."""
    return Row(what, spread(values, form), f"below {limit:g}", statistics.median(values) < limit)


def not_measured(what: str, why: str, aim: str = "") -> Row:
    """Say that a figure is missing, and why; an aim that nobody measured is not reached."""
    return Row(what, f"not measured: {' '.join(why.split())}", aim, False if aim else None)

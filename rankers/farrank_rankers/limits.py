"""Checks that several parts of a spec share."""

from farrank_rankers.errors import SpecError


def check_count(name: str, value: object, at_least: int, at_most: int | None = None) -> int:
    """Return `value` if it is a whole number between the limits.

    Raises: SpecError naming field, value and limit.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; it must be a whole number")
    if value < at_least:
        raise SpecError(f"{name} is {value}; it must be at least {at_least}")
    if at_most is not None and value > at_most:
        raise SpecError(f"{name} is {value}; it must be at most {at_most:,}")
    return value

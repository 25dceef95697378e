"""When a batch fails, find the part of it that is at fault, so that its companions do not suffer."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from farrank_runtimes.runtime import DeviceLost, forget_locals

T = TypeVar("T")


def run_isolated(
    run: Callable[[Sequence[T]], None],
    parts: Sequence[T],
    on_failure: Callable[[Sequence[T], Exception], None],
) -> None:
    """Run the parts together; if that fails, in halves, until what fails is a single part.

    `on_failure` hears of every failed attempt; the parts of an attempt with one part are lost.
    Raises: DeviceLost, at once: no smaller batch would help.
    """
    try:
        run(parts)
    except DeviceLost:
        raise
    except Exception as error:
        on_failure(parts, forget_locals(error))
        if len(parts) > 1:
            middle = len(parts) // 2
            run_isolated(run, parts[:middle], on_failure)
            run_isolated(run, parts[middle:], on_failure)

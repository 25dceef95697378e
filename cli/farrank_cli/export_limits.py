"""The flags that bound the exports of `--export auto`."""

from collections.abc import Callable
from dataclasses import dataclass

from farrank_cli.flags import positive


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """The most that an export in one precision may take: minutes, and GiB of memory, None for the default."""

    minutes: float = 10.0
    memory_gib: float | None = None


def add_export_limits(add: Callable[..., None]) -> None:
    """Add the flags that set `ExportLimits`."""
    add(
        "--export-minutes N",
        "the most time that --export auto may take for a precision of a ranker; then it tries the next one",
        positive,
        ExportLimits().minutes,
    )
    add(
        "--export-memory GIB",
        "the most memory that it may take (3 times the weights in fp32, and 1 GiB)",
        positive,
    )

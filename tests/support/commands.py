"""The outcome of a command."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: its exit code, and its output on each stream."""

    exit_code: int
    out: str
    err: str

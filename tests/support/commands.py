"""What a command left."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it printed where."""

    exit_code: int
    out: str
    err: str

"""Every failure that ends a load test with one line, and no traceback.

LoadtestError
├── InputError      a workload, run or collection cannot be read: the message begins with file and line
└── TargetFailed    a call failed that the test cannot go on without: `status` says how
    └── ProbeFailed it was the first one, before any load

What a single call fails with is `targets.TargetError`; a load counts those and goes on.
"""


class LoadtestError(Exception):
    """The load test cannot go on; the message says why and what is allowed."""


class InputError(LoadtestError):
    """A file does not hold what it should; the message begins with `file:line: `."""


class TargetFailed(LoadtestError):
    """The target cannot be asked, or not for this; the message says why and for what."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class ProbeFailed(TargetFailed):
    """The target did not answer the call that comes before any load: there is nothing to measure."""

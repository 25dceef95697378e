"""Every failure that ends a load test with one line, and no traceback.

LoadtestError
├── InputError      a workload, run or collection cannot be read: the message begins with file and line
└── ProbeFailed     the target did not answer the first call, before any load: `status` says how

What a single call fails with is `targets.TargetError`; a load test counts those and goes on.
"""


class LoadtestError(Exception):
    """The load test cannot go on; the message says why and what is allowed."""


class InputError(LoadtestError):
    """A file does not hold what it should; the message begins with `file:line: `."""


class ProbeFailed(LoadtestError):
    """The target cannot be asked, or not for this: there is nothing to measure."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status

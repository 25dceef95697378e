"""Every failure that ends a load test with one line, and no traceback.

LoadtestError
└── InputError     a workload, run or collection cannot be read: the message begins with file and line

What a single call fails with is `targets.TargetError`; a load test counts those and goes on.
"""


class LoadtestError(Exception):
    """The load test cannot go on; the message says why and what is allowed."""


class InputError(LoadtestError):
    """A file does not hold what it should; the message begins with `file:line: `."""

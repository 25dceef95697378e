"""Every failure that ends a load test with one line, and no traceback.

LoadtestError
└── TargetFailed    a call failed that the test cannot go on without: `status` says how

A file that cannot be read is `farrank_trec.errors.InputError`, whatever file it is. What a single call fails
with is `targets.TargetError`; a load counts those and goes on.
"""


class LoadtestError(Exception):
    """The load test cannot go on; the message says why and what is allowed."""


class TargetFailed(LoadtestError):
    """The target cannot be asked, or not for this.

    The message says why, and ends with the status in brackets.
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(f"{' '.join(message.split())} [{status}]")
        self.status = status

"""Errors that end a load test with one line and without a traceback.

LoadtestError
└── TargetFailed    a call that the test needs failed: `status` says how

An unreadable file raises `farrank_trec.errors.InputError`. A single failed call raises `targets.TargetError`;
a load test counts these and goes on.
"""


class LoadtestError(Exception):
    """The load test cannot go on; the message says why and what is allowed."""


class TargetFailed(LoadtestError):
    """The target cannot be reached, or refuses the call.

    The message gives the reason and ends with the status in brackets.
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(f"{' '.join(message.split())} [{status}]")
        self.status = status

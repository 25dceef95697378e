"""What became of one call."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from farrank_loadtest.targets.interface import Answer
from farrank_loadtest.workloads.call import Call

OK = "OK"
# The call was due while too many others were still unanswered.
NOT_SENT = "not sent: too many in flight"


@dataclass(frozen=True, slots=True)
class Sample:
    """One call's times, in seconds from the start of its loop, and how it ended.

    `due_s` is when it should have been sent, `sent_s` when it was. `status` is `OK`, `NOT_SENT` or that of
    the `TargetError`; `stages_s` is what the server told of itself.
    """

    due_s: float
    sent_s: float
    done_s: float
    status: str
    stages_s: Mapping[str, float]

    @property
    def is_ok(self) -> bool:
        """Whether it was answered."""
        return self.status == OK

    @property
    def latency_s(self) -> float:
        """From the intended arrival to the answer: a late generator or a full queue hides nothing."""
        return self.done_s - self.due_s

    @property
    def lag_s(self) -> float:
        """How late the generator was."""
        return self.sent_s - self.due_s


Ask = Callable[[Call], Awaitable[Answer]]
Sink = Callable[[Sample], None]

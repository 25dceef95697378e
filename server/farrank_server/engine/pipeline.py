"""In which order batches are begun and finished, so that the device never waits for Python."""

from collections import deque

from farrank_server.engine.begun import Begun, Items, begin
from farrank_server.engine.execution import Execution
from farrank_server.engine.lane import Lane, Ready

# Batches begun behind the one that runs. One is enough for the device to go on while the features of the last
# are scored; each more would be one that no urgent call can pass, and that runs though its callers have gone.
AHEAD = 1


class Pipeline:
    """The batches on the device, of whatever lane. Used on the worker's thread alone.

    A runtime that queues gets the next batch before the last one is waited for; of any other, a batch is
    finished as soon as it is begun. Losing the device leaves a pipeline useless: all it held is lost.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._begun: deque[Begun] = deque()

    @property
    def holds_batches(self) -> bool:
        """Whether anything that was begun is still to be finished."""
        return bool(self._begun)

    def run(self, lane: Lane, items: Items) -> None:
        """Begin a batch, then finish those before it.

        Raises: DeviceLost.
        """
        queued = lane.runtime.capabilities().queued
        if not queued:
            # It keeps this thread until it is done: nobody's scores shall wait for that.
            self._finish_to(0)
        begun = begin(lane, items, queued=queued)
        self._begun.append(begun)
        # Of a batch that failed at once, the next one should know.
        self._finish_to(AHEAD if begun.in_flight else 0)

    def score(self, lane: Lane, ready: list[Ready]) -> None:
        """Score documents that need no encoding, beside what runs. Raises: DeviceLost."""
        self._execution.score(lane, ready, beside=self._in_flight)

    def settle(self) -> None:
        """Wait for the oldest batch, or, if that is done, finish it. Raises: DeviceLost.

        In two steps: what came in during the first can be begun before the second.
        """
        if self._begun[0].in_flight:
            self._begun[0].wait()
        else:
            self._finish_to(len(self._begun) - 1)

    def _finish_to(self, left: int) -> None:
        while len(self._begun) > left:
            oldest = self._begun.popleft()
            self._execution.finish(oldest, beside=self._in_flight)

    @property
    def _in_flight(self) -> bool:
        return any(begun.in_flight for begun in self._begun)

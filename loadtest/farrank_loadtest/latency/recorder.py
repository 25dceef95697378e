"""Count samples as they come, so that a long run needs no more memory than a short one."""

from collections import Counter, defaultdict

from farrank_loadtest.latency.histogram import Histogram
from farrank_loadtest.load.sample import Sample


class Recorder:
    """What was measured at one load.

    Calls due from `warm_up_s` to `end_s` count; those before only warm the server. `goodput` looks at the
    other end: answers that arrived in that time, within `bound_s`, whenever their calls were due.
    """

    def __init__(self, warm_up_s: float, end_s: float, bound_s: float | None) -> None:
        self._warm_up_s = warm_up_s
        self._end_s = end_s
        self._bound_s = float("inf") if bound_s is None else bound_s
        self.seen = 0
        self.offered = 0
        self.statuses: Counter[str] = Counter()
        self.latency = Histogram()
        self.lag = Histogram()
        self.stages: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.good = 0
        self._good_arrivals = 0
        self._measured_s = end_s - warm_up_s
        self._busy_s = 0.0
        self._wall_s = 0.0

    def __call__(self, sample: Sample) -> None:
        """Count a sample."""
        self.seen += 1
        good = sample.is_ok and sample.latency_s <= self._bound_s
        if good and self._warm_up_s <= sample.done_s < self._end_s:
            self._good_arrivals += 1
        if not self._warm_up_s <= sample.due_s < self._end_s:
            return
        self.offered += 1
        self.good += good
        self.statuses[sample.status] += 1
        self.lag.record(sample.lag_s)
        if sample.is_ok:
            self.latency.record(sample.latency_s)
            for stage, seconds in sample.stages_s.items():
                self.stages[stage].record(seconds)

    def ended(self, at_s: float, busy_s: float) -> None:
        """Note when the loop was over, early if it was interrupted, and how long its thread computed."""
        self._measured_s = max(0.0, min(at_s, self._end_s) - self._warm_up_s)
        self._busy_s = busy_s
        self._wall_s = at_s

    def add(self, other: "Recorder") -> None:
        """Count all that a repeat counted."""
        self.seen += other.seen
        self.offered += other.offered
        self.statuses.update(other.statuses)
        self.latency.add(other.latency)
        self.lag.add(other.lag)
        for stage, histogram in other.stages.items():
            self.stages[stage].add(histogram)
        self.good += other.good
        self._good_arrivals += other._good_arrivals
        self._measured_s += other._measured_s
        self._busy_s += other._busy_s
        self._wall_s += other._wall_s

    @property
    def measured_s(self) -> float:
        """How long was measured, warm-up excluded."""
        return self._measured_s

    @property
    def goodput_per_s(self) -> float:
        """Answers a second that were in time."""
        return self._good_arrivals / self._measured_s if self._measured_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """Which share of its time the generator's thread computed; near 1 it cannot send any faster."""
        return self._busy_s / self._wall_s if self._wall_s > 0 else 0.0

"""Count samples as they arrive, so that a long run needs no more memory than a short one."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from hdrh.histogram import HdrHistogram

from farrank_loadtest.loops import OK, Sample

_SECOND_US = 1e6
_HIGHEST_US = 3_600_000_000
_DIGITS = 3


def duration_text(seconds: float) -> str:
    """Write a duration to three digits, in milliseconds below a second: 35.6 ms, 5.49 s."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


class Histogram:
    """Durations from 1 µs to an hour; shorter ones count as 1 µs, longer ones as an hour."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _HIGHEST_US, _DIGITS)
        # The library's own mean takes a tenth of a second, and a report has hundreds.
        self._sum_us = 0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        counted_us = min(max(1, round(seconds * _SECOND_US)), _HIGHEST_US)
        self._counts.record_value(counted_us)
        self._sum_us += counted_us

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self._counts.add(other._counts)
        self._sum_us += other._sum_us

    @property
    def count(self) -> int:
        """The number of durations."""
        return int(self._counts.get_total_count())

    @property
    def mean_s(self) -> float:
        """Their mean; 0 without any."""
        return self._sum_us / self.count / _SECOND_US if self.count else 0.0

    @property
    def max_s(self) -> float:
        """The longest; 0 without any."""
        return float(self._counts.get_max_value()) / _SECOND_US if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """Give the smallest duration that `percent` of them do not exceed; 0 without any."""
        return self.percentiles_s([percent])[0]

    def percentiles_s(self, percents: Sequence[float]) -> list[float]:
        """Give several percentiles in the time of one."""
        if not self.count:
            return [0.0] * len(percents)
        # The library rounds to the nearest rank, which is too low half of the time, hence the ceiling. The
        # rounding error of a float must not raise it by one rank.
        ranks = [math.ceil(percent / 100 * self.count - 1e-9) for percent in percents]
        shares = [100 * rank / self.count for rank in ranks]
        found = self._counts.get_percentile_to_value_dict(shares)
        return [float(found[share]) / _SECOND_US for share in shares]


class Recorder:
    """The measurements of one load.

    Calls due from `warm_up_s` to `end_s` count; earlier ones only warm the server. `goodput` instead counts
    answers that arrived in that time, within `bound_s`, whenever their calls were due. `messages` has the
    first message of each status, `counts` the sums of the server's counts; `measured_s` excludes the warm-up.
    """

    def __init__(self, warm_up_s: float, end_s: float, bound_s: float | None) -> None:
        self._warm_up_s = warm_up_s
        self._end_s = end_s
        self._bound_s = float("inf") if bound_s is None else bound_s
        self.seen = 0
        self.offered = 0
        self.statuses: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.latency = Histogram()
        self.lag = Histogram()
        self.stages: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.good = 0
        self._good_arrivals = 0
        self.measured_s = end_s - warm_up_s
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
            self.counts.update(sample.counts)
        elif sample.message:
            self.messages.setdefault(sample.status, " ".join(sample.message.split()))

    def ended(self, at_s: float, busy_s: float) -> None:
        """Record the end of the loop, early if it was interrupted, and the processor time of its thread."""
        self.measured_s = max(0.0, min(at_s, self._end_s) - self._warm_up_s)
        self._busy_s = busy_s
        self._wall_s = at_s

    def add(self, other: "Recorder") -> None:
        """Add the counts of a repeat."""
        self.seen += other.seen
        self.offered += other.offered
        self.statuses.update(other.statuses)
        self.messages = {**other.messages, **self.messages}
        self.counts.update(other.counts)
        self.latency.add(other.latency)
        self.lag.add(other.lag)
        for stage, histogram in other.stages.items():
            self.stages[stage].add(histogram)
        self.good += other.good
        self._good_arrivals += other._good_arrivals
        self.measured_s += other.measured_s
        self._busy_s += other._busy_s
        self._wall_s += other._wall_s

    @property
    def failed(self) -> int:
        """The number of calls that were not answered."""
        return self.offered - self.latency.count

    @property
    def failures(self) -> str:
        """The number of failed calls, and each status with its number and its first message."""
        if not self.failed:
            return ""
        reasons = (
            f"{status} {count:,}" + (f" ({self.messages[status]})" if status in self.messages else "")
            for status, count in self.statuses.most_common()
            if status != OK
        )
        return f"{self.failed:,} of {self.offered:,} failed: {', '.join(reasons)}"

    @property
    def cached_share(self) -> float:
        """The share of the chunks that the server found in its document cache."""
        return self.counts["cached_chunks"] / self.counts["chunks"] if self.counts["chunks"] else 0.0

    @property
    def goodput_per_s(self) -> float:
        """Answers in time per second."""
        return self._good_arrivals / self.measured_s if self.measured_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """The share of time for which the generator's thread computed; near 1 it cannot send faster."""
        return self._busy_s / self._wall_s if self._wall_s > 0 else 0.0

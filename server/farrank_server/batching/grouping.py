"""Choose, among inputs of mixed length, those that share a batch."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate


def longest_prefix(lengths: Sequence[int], max_tokens: int) -> int:
    """Count the inputs that a batch without padding holds when they go in their order; one always fits."""
    return max(1, bisect_right(list(accumulate(lengths)), max_tokens))


def longest_run(lengths: Sequence[int], anchor: int, max_tokens: int, max_padding_ratio: float) -> range:
    """Find the run of neighbours in length that holds the anchor and the most real tokens.

    `lengths` ascend. A run of n inputs whose longest has l tokens costs n·l padded tokens; it fits when
    that is at most `max_tokens` and at most `max_padding_ratio` times its real tokens. The anchor alone
    always fits. A run ends only where a length ends: inputs of equal length cost no padding, so which of
    them is left out is decided at the run's lower edge alone.

    Returns the run as positions in `lengths`.
    """
    sums = [0, *accumulate(lengths)]
    best = range(anchor, anchor + 1)
    best_tokens = lengths[anchor]
    end = _end_of_length(lengths, anchor)
    while True:
        longest = lengths[end - 1]
        lowest = max(0, end - max_tokens // longest)
        if lowest > anchor:
            return best
        # A run that starts lower has a smaller mean length, so its padding only grows: bisect for the
        # lowest start that keeps the ratio. It may lie above the anchor, and below it for a longer run.
        start = bisect_left(
            range(end),
            True,
            lo=lowest,
            key=lambda i: (end - i) * longest <= max_padding_ratio * (sums[end] - sums[i]),
        )
        if start <= anchor and sums[end] - sums[start] > best_tokens:
            best, best_tokens = range(start, end), sums[end] - sums[start]
        if end == len(lengths):
            return best
        end = _end_of_length(lengths, end)


def _end_of_length(lengths: Sequence[int], position: int) -> int:
    """One past the last input that is as long as the one at `position`."""
    end = position + 1
    while end < len(lengths) and lengths[end] == lengths[position]:
        end += 1
    return end

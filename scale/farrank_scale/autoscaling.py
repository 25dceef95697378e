"""The wanted number of replicas, computed from the seconds of pending work in the current ones.

Serve's own policy counts calls, but calls of one document and of a thousand differ. A backlog in seconds is
the time that a caller waits, whatever the calls, the ranker and the device.
"""

import math
from typing import Any

# The name under which a replica reports its backlog in seconds to Serve.
METRIC = "backlog_s"


class BacklogPolicy:
    """Serve's autoscaling policy: the number of replicas that brings each one's backlog to `target_s`.

    Serve applies bounds and delays. Replicas without a report yet count with the mean backlog of the others.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the wanted number and an empty state."""
        backlogs_s = (context.aggregated_metrics or {}).get(METRIC, {})
        if not backlogs_s:
            return context.target_num_replicas, {}
        mean_s = sum(backlogs_s.values()) / len(backlogs_s)
        return replicas_for(context.current_num_replicas, mean_s, self._target_s), {}


def replicas_for(current: int, backlog_s: float, target_s: float) -> int:
    """Return how many replicas share the work of `current` ones, `backlog_s` each, at `target_s` each.

    It is at least 1.
    """
    return max(1, math.ceil(current * backlog_s / target_s))

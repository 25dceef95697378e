"""How many replicas there are to be: by the seconds of work that wait in those there are.

Serve's own policy counts calls, and calls of one document and of a thousand are not alike. A backlog in
seconds is what a caller waits, whatever the calls, the ranker and the device.
"""

import math
from typing import Any

# What a replica calls its backlog, in seconds, where it tells Serve.
METRIC = "backlog_s"


class BacklogPolicy:
    """Serve's autoscaling policy: as many replicas as bring each one's backlog to `target_s`.

    Bounds and delays are Serve's to apply. Replicas that have told nothing yet count as all others do.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Say how many, and keep no state."""
        told = (context.aggregated_metrics or {}).get(METRIC, {})
        if not told:
            return context.target_num_replicas, {}
        mean_s = sum(told.values()) / len(told)
        return replicas_for(context.current_num_replicas, mean_s, self._target_s), {}


def replicas_for(current: int, backlog_s: float, target_s: float) -> int:
    """As many as share what `current` ones have, `backlog_s` each, with `target_s` for each; at least one."""
    return max(1, math.ceil(current * backlog_s / target_s))

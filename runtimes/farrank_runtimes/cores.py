"""The number of cores for this process's threads."""

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Count the cores that this process may use: its affinity, capped by its container's quota.

    A container limited to two cores of a 64-core host sees 64; 64 threads would share two cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))

"""Which device runs a ranker, with how many threads, and how much it takes in at once."""

import os
from pathlib import Path

import torch

from farrank_runtimes.runtime import DeviceAbsent

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Count the cores that this process may really use: its affinity, capped by its container's quota.

    A container limited to two cores of a 64-core host sees 64; that many threads would take turns on two.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))


# Positions of one batch. A CPU's caches hold the activations of about a thousand tokens, more only
# makes companions wait longer; a GPU needs tens of thousands to fill its multiprocessors.
CPU_BATCH_TOKENS = 1024
CUDA_BATCH_TOKENS = 65_536

# The share of a GPU's memory that one batch's features may take in fp32. Two batches are in flight, a few
# more wait for the last chunks of their documents, and each is made from hidden states half as large:
# together about a quarter of the memory. CEDR keeps every layer of every token, 40 KB for BERT-base.
FEATURES_SHARE = 1 / 32


def choose_device(name: str | None) -> torch.device:
    """Take the named device; None is the first CUDA device, else the CPU.

    Raises: DeviceAbsent if the named device is not here.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceAbsent(f"{name!r} is no device; try cpu or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceAbsent(f"{name!r} is not here; torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise DeviceAbsent(f"{name!r} is not supported; use cpu or cuda:0")
    return device


def batch_tokens(device: torch.device) -> int:
    """Give the positions that one batch of this device should have."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS


def affordable_tokens(batch_tokens: int, feature_values: int, memory_bytes: int) -> int:
    """Bound a batch by its features' memory, so many values for each of its tokens."""
    return min(batch_tokens, max(1, int(memory_bytes * FEATURES_SHARE) // (4 * feature_values)))

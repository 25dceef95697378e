"""Which device runs a ranker, and how much fits into its memory."""

import gc
from contextlib import suppress

import torch

from farrank_runtimes.runtime import DeviceAbsent

# Positions of one batch. A CPU's caches hold the activations of about a thousand tokens; more would only make
# companions wait longer. A GPU needs tens of thousands to fill its multiprocessors.
CPU_BATCH_TOKENS = 1024
CUDA_BATCH_TOKENS = 65_536

# Shares of a GPU's memory that features in fp32 may take: those of one batch, and those of documents that
# still miss chunks. Two batches are in flight, and each is made from hidden states half as large. CEDR keeps
# every layer of every token, 40 KB a token for BERT-base.
BATCH_FEATURES_SHARE = 1 / 32
KEPT_FEATURES_SHARE = 1 / 8


def choose_device(name: str | None) -> torch.device:
    """Take the named device; None is the first CUDA device, else the CPU.

    Raises: DeviceAbsent if this machine does not have the named device.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceAbsent(f"{name!r} is not a device; try cpu or cuda:0") from error
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
    return min(batch_tokens, max(1, int(memory_bytes * BATCH_FEATURES_SHARE) // (4 * feature_values)))


def max_kept_bytes(device: torch.device) -> int | None:
    """Bound the features of incomplete documents in a GPU's memory; None for a CPU."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * KEPT_FEATURES_SHARE)


def free_memory(device: torch.device) -> None:
    """Give back what nobody refers to any more, whatever state the device is in."""
    gc.collect()  # modules and compiled graphs refer to each other in circles
    if device.type == "cuda":
        with suppress(RuntimeError):  # a lost device has nothing to give back
            torch.cuda.empty_cache()

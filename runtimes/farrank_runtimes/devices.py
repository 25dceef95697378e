"""Choice of a ranker's device, and limits from its memory."""

import gc
from contextlib import suppress

import torch

from farrank_runtimes.runtime import DeviceAbsent

# Positions of one batch. A CPU's caches hold the activations of about a thousand tokens; more would only
# delay the other inputs of a batch. A GPU needs tens of thousands to fill its multiprocessors.
CPU_BATCH_TOKENS = 1024
CUDA_BATCH_TOKENS = 65_536

# Shares of a GPU's memory for features in fp32: those of one batch, and those of incomplete documents. Two
# batches are in flight, and each is made from hidden states half as large. CEDR keeps every layer of every
# token, 40 KB per token for BERT-base.
BATCH_FEATURES_SHARE = 1 / 32
KEPT_FEATURES_SHARE = 1 / 8


def choose_device(name: str | None) -> torch.device:
    """Return the named device; None means the first CUDA device, else the CPU.

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
    """Return the number of positions that one batch of this device should have."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS


def affordable_tokens(batch_tokens: int, feature_values: int, memory_bytes: int) -> int:
    """Limit a batch by its features' memory, for a number of values per token."""
    return min(batch_tokens, max(1, int(memory_bytes * BATCH_FEATURES_SHARE) // (4 * feature_values)))


def max_kept_bytes(device: torch.device) -> int | None:
    """Limit the features of incomplete documents in a GPU's memory; None for a CPU."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * KEPT_FEATURES_SHARE)


def free_memory(device: torch.device) -> None:
    """Free unreferenced memory, in any state of the device."""
    gc.collect()  # modules and compiled graphs have reference cycles
    if device.type == "cuda":
        with suppress(RuntimeError):  # a lost device has no memory to free
            torch.cuda.empty_cache()

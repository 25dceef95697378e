"""Which device runs a ranker, and how much it takes in at once."""

import torch

from farrank_runtimes.interface import DeviceAbsent

# Padded positions of one batch. A CPU's caches hold the activations of about a thousand tokens, more only
# makes companions wait longer; a GPU needs tens of thousands to fill its multiprocessors.
CPU_BATCH_TOKENS = 1024
CUDA_BATCH_TOKENS = 65_536


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
    """Give the padded positions that one batch of this device should have."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS

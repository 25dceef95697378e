"""Wall time of work that a device does behind the host's back."""

import time
from collections.abc import Callable

import torch


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Time work from an idle device to an idle device."""
    wait_for(device)
    started_s = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started_s

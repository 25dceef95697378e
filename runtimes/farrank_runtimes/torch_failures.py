"""What torch raises when the device, not the model, is at fault."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from farrank_runtimes.runtime import DeviceLost, OutOfMemory

# How libraries below torch say, in words alone, that memory was refused: the CPU's allocator, the CUDA
# runtime, and cuBLAS, which allocates beside torch.
_REFUSED = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")

# How torch and Triton begin what the CUDA driver says.
_LOST = ("CUDA error", "Triton Error [CUDA]")


@contextmanager
def device_failures() -> Iterator[None]:
    """Translate failures of the device; behind one for want of memory, the batch's is free again.

    Raises: OutOfMemory, DeviceLost.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        _let_go(error)
        raise OutOfMemory(str(error) or "the host's memory is exhausted") from error
    except RuntimeError as error:
        message = str(error)
        if any(words in message for words in _REFUSED):
            _let_go(error)
            raise OutOfMemory(message) from error
        if any(words in message for words in _LOST):
            raise DeviceLost(message) from error
        raise


def _let_go(error: Exception) -> None:
    """Free what the failed batch held, so that its halves find room."""
    # The traceback's frames hold every tensor that was alive when memory ran out, for as long as somebody
    # holds the error.
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # What torch keeps was cut for the batch that did not fit; whole again, it may fit others.
        torch.cuda.empty_cache()

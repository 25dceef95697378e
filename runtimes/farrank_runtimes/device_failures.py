"""Exceptions of libraries that are failures of the device, not of the model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from farrank_runtimes.runtime import DeviceLost, OutOfMemory, forget_locals

# Most libraries signal it only in messages. In lower case: messages of the allocators of torch, ONNX Runtime
# and OpenVINO, then of CUDA, of cuBLAS, which allocates outside torch, and of TensorRT.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "alloc_failed",
    "bad_alloc",
    "defaultcpuallocator",
    "failed to allocate",
    "cannot allocate",
    "can't alloc",
)
_DEVICE_LOST = ("cuda error", "cuda failure", "triton error [cuda]", "cudnn failure", "cublas failure")


@contextmanager
def device_failures() -> Iterator[None]:
    """Translate failures of the device. After an OutOfMemory the failed batch's memory is free.

    Raises: OutOfMemory, DeviceLost.
    """
    try:
        yield
    except (OutOfMemory, DeviceLost):
        raise
    # ONNX Runtime's exceptions have no other base.
    except Exception as error:
        message = str(error).strip()
        out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if out_of_memory or any(words in message.lower() for words in _OUT_OF_MEMORY):
            _free_batch(error)
            raise OutOfMemory(message or "the host's memory is exhausted") from error
        if any(words in message.lower() for words in _DEVICE_LOST):
            raise DeviceLost(message) from error
        raise


def _free_batch(error: Exception) -> None:
    forget_locals(error)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # torch's cached memory was split for the failed batch; returned and unsplit, it may fit others.
        torch.cuda.empty_cache()

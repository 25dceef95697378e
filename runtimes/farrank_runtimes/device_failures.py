"""What libraries raise when the device, not the model, is at fault."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from farrank_runtimes.runtime import DeviceLost, OutOfMemory, forget_locals

# Most libraries say it in words only. In lower case: what the allocators of torch, ONNX Runtime and OpenVINO
# say, then CUDA, cuBLAS, which allocates beside torch, and TensorRT.
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
    """Translate failures of the device. When memory ran out, the failed batch's is free again.

    Raises: OutOfMemory, DeviceLost.
    """
    try:
        yield
    except (OutOfMemory, DeviceLost):
        raise
    # ONNX Runtime's exceptions have no base but this one.
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
        # What torch keeps was cut for the batch that did not fit; in one piece again, it may fit others.
        torch.cuda.empty_cache()
